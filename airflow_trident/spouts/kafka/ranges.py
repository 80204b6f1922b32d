"""The batches of a Kafka spout: ranges of offsets, as metadata. Pure: nothing here asks a broker.

Metadata: ``{"topics": {topic: {"id": topic id, "partitions": {"0": [from, to], ...}}}, "lost": [...]}``. It contains
every known partition, also those without new records (``from == to``), so the last transaction's metadata is the whole
position. `to` is the offset after the last one. The id of a topic tells it from a later topic with the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from airflow_trident.spouts.metadata import read_back
from airflow_trident.types import Json

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that brokers before 2.8 give for every topic."""


class FirstPoll(StrEnum):
    """Where the first transaction begins (Storm's FirstPollOffsetStrategy). Later ones continue where the ledger
    says."""

    EARLIEST = "earliest"
    """At the oldest record."""
    LATEST = "latest"
    """After the newest record."""
    TIMESTAMP = "timestamp"
    """At the first record of a given time or later."""
    UNCOMMITTED_EARLIEST = "uncommitted_earliest"
    """At the offset that the consumer group has committed; if there is none, like EARLIEST."""
    UNCOMMITTED_LATEST = "uncommitted_latest"
    UNCOMMITTED_TIMESTAMP = "uncommitted_timestamp"

    @property
    def asks_the_group(self) -> bool:
        return self.value.startswith("uncommitted_")

    @property
    def otherwise(self) -> FirstPoll:
        """Where a partition begins if the group has committed no offset of it."""
        return FirstPoll(self.value.removeprefix("uncommitted_"))

    @property
    def moves(self) -> bool:
        """Does it mean another place at a later time? Then the first transaction fixes the place, even with no
        records."""
        return self is not FirstPoll.EARLIEST


@dataclass(frozen=True, slots=True, order=True)
class TopicPartition:
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets from `begin` to below `end`."""

    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """A broker's answer about one partition: its oldest offset, and the one after its newest (decided) offset."""

    topic_id: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Records that no transaction has read and none can read any more. `range` ends at -1 if the end is unknown."""

    place: TopicPartition
    range: OffsetRange
    reason: str

    def __str__(self) -> str:
        upto = f" to {self.range.end - 1}" if self.range.end > 0 else " on"
        return f"{self.place} from offset {self.range.begin}{upto}: {self.reason}"


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """Decoded metadata."""

    ids: Mapping[str, str]
    ranges: Mapping[TopicPartition, OffsetRange]
    lost: tuple[LostOffsets, ...] = ()

    def to_json(self) -> dict[str, Json]:
        topics: dict[str, Any] = {}
        for place, each in sorted(self.ranges.items()):
            topic = topics.setdefault(place.topic, {"id": self.ids[place.topic], "partitions": {}})
            topic["partitions"][str(place.partition)] = [each.begin, each.end]
        known: dict[str, Json] = {"topics": topics}
        if self.lost:
            known["lost"] = [[loss.place.topic, loss.place.partition, loss.range.begin, loss.range.end, loss.reason]
                             for loss in self.lost]  # fmt: skip
        return known


NOTHING = KafkaBatch({}, {})


class _RecordedTopic(msgspec.Struct):
    id: str
    partitions: dict[int, tuple[int, int]]


class _Recorded(msgspec.Struct):
    topics: dict[str, _RecordedTopic]


def batch_of(metadata: Json) -> KafkaBatch:
    """Decode metadata.

    :raises SourceChangedError: it is not metadata of a Kafka spout.
    """
    if metadata is None:
        return NOTHING
    topics = read_back(_Recorded, metadata, "a KafkaSpout").topics
    ranges = {
        TopicPartition(name, number): OffsetRange(begin, end)
        for name, topic in topics.items()
        for number, (begin, end) in topic.partitions.items()
    }
    return KafkaBatch({name: topic.id for name, topic in topics.items()}, ranges)


def resumed(
    previous: KafkaBatch, logs: Mapping[TopicPartition, LogOffsets]
) -> tuple[dict[TopicPartition, int], tuple[LostOffsets, ...]]:
    """Where each known or new partition continues, and which records before that are lost.

    A new topic and a new partition begin at their oldest record: nothing that was written to them is left out.

    :param logs: the present offsets, without topics that the spout does not read (any more).
    """
    begins: dict[TopicPartition, int] = {}
    lost: list[LostOffsets] = []
    for place, log in sorted(logs.items()):
        known, old_id = previous.ranges.get(place), previous.ids.get(place.topic)
        if old_id is None or (NO_ID not in (old_id, log.topic_id) and old_id != log.topic_id):
            if known is not None:
                lost.append(LostOffsets(place, OffsetRange(known.end, -1), "the topic was deleted and made again"))
            begins[place] = log.begin
            continue
        wanted = known.end if known is not None else 0
        if wanted < log.begin:
            lost.append(LostOffsets(place, OffsetRange(wanted, log.begin), "expired before it was read"))
        elif wanted > log.end:
            lost.append(LostOffsets(place, OffsetRange(log.end, wanted), "the log was cut off or made again"))
        begins[place] = min(max(wanted, log.begin), max(log.end, log.begin))
    for place, known in sorted(previous.ranges.items()):
        if place not in logs:
            lost.append(LostOffsets(place, OffsetRange(known.end, -1), "the partition is gone"))
    return begins, tuple(lost)


def limited(
    available: Mapping[TopicPartition, OffsetRange], max_rows: int | None, turn: int
) -> dict[TopicPartition, OffsetRange]:
    """At most `max_rows` offsets: small backlogs as a whole, and equal parts of the others.

    :param turn: a number that differs from batch to batch. It decides which partitions get one more, so none starves.
    """
    if max_rows is None or sum(each.size for each in available.values()) <= max_rows:
        return dict(available)
    places = sorted(available)
    left, sizes = max_rows, dict[TopicPartition, int]()
    for number, place in enumerate(sorted(places, key=lambda place: available[place].size)):
        sizes[place] = min(left // (len(places) - number), available[place].size)
        left -= sizes[place]
    first = turn % len(places)
    for place in [*places[first:], *places[:first]]:
        if left and sizes[place] < available[place].size:
            sizes[place] += 1
            left -= 1
    return {place: OffsetRange(available[place].begin, available[place].begin + size) for place, size in sizes.items()}


def pieces(
    ranges: Iterable[tuple[TopicPartition, OffsetRange]], split_rows: int
) -> list[tuple[TopicPartition, OffsetRange]]:
    """The ranges: large ones are cut, empty ones are left out."""
    cut: list[tuple[TopicPartition, OffsetRange]] = []
    for place, each in ranges:
        begins = range(each.begin, each.end, split_rows)
        cut.extend((place, OffsetRange(at, min(at + split_rows, each.end))) for at in begins)
    return cut
