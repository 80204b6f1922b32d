"""What a reader of a range of Kafka makes of what the driver gives it, without a broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_trident.errors import SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.kafka.client import KafkaCluster
from airflow_trident.spouts.kafka.ranges import LogOffsets, OffsetRange, TopicPartition
from airflow_trident.spouts.kafka.read import RangeReader, RecordedRange
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

    def offset(self) -> int:
        return self.at

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

    def logs(self, partitions: dict[str, int], *, committed: bool) -> dict[TopicPartition, LogOffsets]:
        return {PLACE: LogOffsets("T", 0, 5)}

    def is_compacted(self, topic: str) -> bool:
        return self._compacted

    @contextmanager
    def consumer(self, **more: Any) -> Iterator[Cluster]:
        yield self

    def assign(self, partitions: list[Any]) -> None:
        pass

    def consume(self, most: int, wait_s: float) -> list[Message]:
        given, self._messages = self._messages, []
        return given


def reader(
    messages: list[Message], *, compacted: bool = False, strict: bool = True, ids: Sequence[str | None] = ("T",)
) -> RangeReader:
    recorded = RecordedRange(
        place=PLACE,
        range=OffsetRange(0, 5),
        topic_id="T",
        schema=parse_declared("offset long, value string"),
        strict=strict,
    )
    cluster: Any = Cluster(messages, compacted=compacted, ids=ids)
    return RangeReader(cluster, "KafkaSpout(t)", recorded, "read_committed", 1.0)


def rows(of: RangeReader) -> list[tuple[Any, ...]]:
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
