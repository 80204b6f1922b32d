"""What a reader of a range of Kafka makes of what the driver gives it, without a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.kafka.consumer import KafkaCluster, RecordedRange, SplitReader
from airflow_trident.spouts.kafka.ranges import LogOffsets, OffsetRange, TopicPartition
from airflow_trident.types import parse_declared

PLACE = TopicPartition("t", 0)


@dataclass(frozen=True)
class Event:
    """An error of the driver, by its name."""

    of: str

    def name(self) -> str:
        return self.of


@dataclass(frozen=True)
class Message:
    """A record, or an event in its place."""

    at: int
    event: Event | None = None
    of: int = 0
    epoch: int | None = None
    time: int = 0

    def offset(self) -> int:
        return self.at

    def topic(self) -> str:
        return PLACE.topic

    def partition(self) -> int:
        return self.of

    def leader_epoch(self) -> int | None:
        return self.epoch

    def timestamp(self) -> tuple[int, int]:
        return 1, self.time

    def error(self) -> Event | None:
        return self.event

    def value(self) -> bytes:
        return b"Broker: No more messages" if self.event else str(self.at).encode()


class Cluster:
    """Gives all messages with the first question. `ids`: how it answers questions for the topic's id, in turn; the last
    answer goes on."""

    retried = KafkaCluster.retried

    def __init__(self, messages: list[Message], *, compacted: bool, ids: Sequence[str | None] = ("T",)) -> None:
        self._messages, self._compacted = messages, compacted
        self._ids, self._timeout_s = list(ids), 0.1

    def topic_ids(self, names: list[str]) -> dict[str, str]:
        now = self._ids.pop(0) if len(self._ids) > 1 else self._ids[0]
        return {} if now is None else dict.fromkeys(names, now)

    def logs(self, places: Sequence[TopicPartition], *, committed: bool) -> dict[TopicPartition, LogOffsets]:
        return {place: LogOffsets("T", 0, 5) for place in places}

    def is_compacted(self, topic: str) -> bool:
        return self._compacted

    @contextmanager
    def consumer(self, **more: Any) -> Iterator[Cluster]:
        yield self

    def assign(self, partitions: list[Any]) -> None:
        pass

    def pause(self, partitions: list[Any]) -> None:
        pass

    def consume(self, most: int, wait_s: float) -> list[Message]:
        given, self._messages = self._messages, []
        return given


def reader(
    messages: list[Message],
    *,
    compacted: bool = False,
    strict: bool = True,
    ids: Sequence[str | None] = ("T",),
    fields: str = "offset long, value string",
    epoch: int = -1,
    partitions: int = 1,
) -> SplitReader:
    recorded = [
        RecordedRange(place=TopicPartition("t", number), range=OffsetRange(0, 5), topic_id="T", epoch=epoch)
        for number in range(partitions)
    ]
    cluster: Any = Cluster(messages, compacted=compacted, ids=ids)
    return SplitReader(cluster, "KafkaSpout(t)", recorded, parse_declared(fields), "read_committed", 1.0, strict)


def rows(of: SplitReader) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in of.batches() for row in batch.to_pylist()]


END_OF_LOG = Event("_PARTITION_EOF")


def test_the_end_of_the_log_is_no_record_where_a_transactions_marker_is() -> None:
    messages = [Message(0), Message(1), Message(2, END_OF_LOG), Message(3), Message(4)]
    assert rows(reader(messages)) == [(0, "0"), (1, "1"), (3, "3"), (4, "4")]
    with pytest.raises(SourceChangedError, match=r"no longer has the offsets 2 to 2,.*compacted"):
        rows(reader(messages, compacted=True))


def test_records_without_a_gap_are_all_there_is_to_read() -> None:
    assert rows(reader([Message(at) for at in range(5)], compacted=True)) == [(at, str(at)) for at in range(5)]


ALL = [Message(at) for at in range(5)]


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("ids", [(None, "T"), ("of the former topic", "T"), ("T", None, "T")])
def test_one_broker_that_does_not_know_the_topic_yet_empties_no_batch(strict: bool, ids: Sequence[str | None]) -> None:
    assert len(rows(reader(ALL, strict=strict, ids=ids))) == 5


@pytest.mark.parametrize(
    ("now", "why"), [(None, "the topic is gone"), ("another", "the topic was deleted and made again")]
)
@pytest.mark.parametrize("before", [(), ("T",)])
def test_of_a_topic_that_is_no_more_an_opaque_batch_is_decided_anew_and_not_emptied(
    before: tuple[str, ...], now: str | None, why: str
) -> None:
    what = f"no longer has the offsets 0 to 4, which the transaction recorded: {why}"
    with pytest.raises(SourceUnavailableError, match=f"{what}. A new attempt takes what is there"):
        rows(reader(ALL, strict=False, ids=(*before, now)))
    with pytest.raises(SourceChangedError, match=what):
        rows(reader(ALL, strict=True, ids=(*before, now)))


# ---- several ranges, logs that were cut off, moments ------------------------------------------------------------


@given(st.permutations([number for number in range(4) for _ in range(5)]))
def test_ranges_that_are_fetched_together_come_one_after_the_other(order: list[int]) -> None:
    """The messages of each partition come in their order, those of several in any."""
    offsets = [iter(range(5)) for _ in range(4)]
    messages = [Message(next(offsets[number]), of=number) for number in order]
    read = rows(reader(messages, partitions=4, fields="partition int, offset long"))
    assert read == [(number, at) for number in range(4) for at in range(5)]


@pytest.mark.parametrize("epochs", [[2, 2, 2, 2, 2], [0, 0, 1, 2, 2], [None] * 5])
def test_records_that_are_as_old_as_the_recorded_leader_are_read(epochs: list[int | None]) -> None:
    assert len(rows(reader([Message(at, epoch=epoch) for at, epoch in enumerate(epochs)], epoch=2))) == 5


@pytest.mark.parametrize("strict", [True, False])
def test_a_record_of_a_later_leader_was_written_instead_of_one_that_is_gone(strict: bool) -> None:
    messages = [Message(at, epoch=2 if at < 3 else 4) for at in range(5)]
    with pytest.raises(SourceChangedError if strict else SourceUnavailableError, match=r"offsets 3 to 4.*cut off"):
        rows(reader(messages, epoch=2, strict=strict))
    assert len(rows(reader(messages))) == 5, "nobody knew the epoch"


FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999


@given(st.lists(st.integers(FIRST_MS, LAST_MS), min_size=5, max_size=5))
def test_every_moment_of_the_years_1_to_9999_is_read(times: list[int]) -> None:
    messages = [Message(at, time=time) for at, time in enumerate(times)]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows(reader(messages, fields="timestamp timestamp")) == [
        (epoch + timedelta(milliseconds=time),) for time in times
    ]


@given(st.integers(LAST_MS + 1, 2**63 - 1) | st.integers(-(2**63), FIRST_MS - 1), st.integers(0, 4))
def test_any_other_moment_is_an_error_that_names_its_record(time: int, place: int) -> None:
    messages = [Message(at, time=time if at == place else 0) for at in range(5)]
    with pytest.raises(DamagedInputError, match=f"timestamp of the record at offset {place} of t-0 is {time}, which"):
        rows(reader(messages, fields="timestamp timestamp"))
    assert len(rows(reader(messages))) == 5, "who does not ask for it reads the records"
