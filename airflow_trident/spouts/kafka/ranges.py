"""The batches of a Kafka spout: ranges of offsets, as metadata. Pure: nothing here asks a broker.

Metadata: ``{"topics": {topic: {"id": topic id, "partitions": {"0": [from, to], ...}}}, "lost": [...]}``. It contains
every known partition, also those without new records (``from == to``), so the last transaction's metadata is the whole
position. `to` is the offset after the last one. The id of a topic tells it from a later topic with the same name.
A topic has ``"gone": [partition, ...]`` if some of its partitions were not there: they are recorded as lost once, then
or before. Versions that do not know that record them again. ``"epochs": {"0": 3, ...}`` are the leader epochs in which
the broker gave the ends of the ranges; a partition without one has never been asked, or its broker counts none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from airflow_trident.spouts.metadata import read_back
from airflow_trident.types import Json

NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""The id that brokers before 2.8 give for every topic."""
NO_EPOCH = -1
"""The leader epoch of a broker that counts none."""
CUT_OFF = "the log was cut off there and grew again"
_FEW_SPLITS = 64
"""So many splits have a reader each, however small they are."""
_MADE_AGAIN = "the topic was deleted and made again"


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
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class LogPosition:
    """An offset, and the leader epoch in which the log had all records below it."""

    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Records that the log no longer has as they were when it was last looked at. `range` ends at -1 if the end is
    unknown."""

    place: TopicPartition
    range: OffsetRange
    reason: str

    def __str__(self) -> str:
        end = f" to {self.range.end - 1}" if self.range.end > 0 else " on"
        return f"{self.place} from offset {self.range.begin}{end}: {self.reason}"


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """Decoded metadata.

    `gone`: those of `ranges` that were not there, and are recorded as lost.
    `epochs`: the leader epochs in which the logs had all records of `ranges`, where they are known.
    """

    ids: Mapping[str, str]
    ranges: Mapping[TopicPartition, OffsetRange]
    lost: tuple[LostOffsets, ...] = ()
    gone: frozenset[TopicPartition] = frozenset()
    epochs: Mapping[TopicPartition, int] = field(default_factory=dict)

    def epoch(self, place: TopicPartition) -> int:
        return self.epochs.get(place, NO_EPOCH)

    def to_json(self) -> dict[str, Json]:
        topics: dict[str, Any] = {}
        for place, each in sorted(self.ranges.items()):
            topic = topics.setdefault(place.topic, {"id": self.ids[place.topic], "partitions": {}})
            topic["partitions"][str(place.partition)] = [each.begin, each.end]
            if place in self.gone:
                topic.setdefault("gone", []).append(place.partition)
            if self.epoch(place) != NO_EPOCH:
                topic.setdefault("epochs", {})[str(place.partition)] = self.epoch(place)
        record: dict[str, Json] = {"topics": topics}
        if self.lost:
            record["lost"] = [[loss.place.topic, loss.place.partition, loss.range.begin, loss.range.end, loss.reason]
                             for loss in self.lost]  # fmt: skip
        return record


NOTHING = KafkaBatch({}, {})


class _RecordedTopic(msgspec.Struct):
    id: str
    partitions: dict[int, tuple[int, int]]
    gone: tuple[int, ...] = ()
    epochs: dict[int, int] = {}


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
    gone_partitions = frozenset(TopicPartition(name, number) for name, topic in topics.items() for number in topic.gone)
    epochs = {
        TopicPartition(name, number): epoch for name, topic in topics.items() for number, epoch in topic.epochs.items()
    }
    return KafkaBatch({name: topic.id for name, topic in topics.items()}, ranges, gone=gone_partitions, epochs=epochs)


def lags(before: KafkaBatch, logs: Mapping[TopicPartition, LogOffsets]) -> bool:
    """Does the answer know less than an earlier one? Brokers that have just started may give such an answer. What is
    recorded as gone, or was a partition of an earlier topic of the name, is not waited for."""
    done_with = before.gone | _of_former_topics(before, logs)
    for place, previous_range in before.ranges.items():
        log = logs.get(place)
        if log is None:
            if place not in done_with:
                return True
        elif log.topic_id == before.ids[place.topic] and (
            log.end < previous_range.end or _went_back(before, place, log)
        ):
            return True
    return False


def _went_back(before: KafkaBatch, place: TopicPartition, log: LogOffsets) -> bool:
    """Is the leader epoch lower than it was? A broker that has just started may answer so; after a while, it is a
    cluster that was restored."""
    return NO_EPOCH < log.epoch < before.epoch(place)


def unproved(before: KafkaBatch, logs: Mapping[TopicPartition, LogOffsets]) -> dict[TopicPartition, LogPosition]:
    """The ends of the ranges that have had another leader since: their logs may have been cut off below them. A log is
    never cut off while its leader stays (KIP-101), so all others are as they were."""
    return {
        place: LogPosition(previous_range.end, before.epoch(place))
        for place, previous_range in sorted(before.ranges.items())
        if (log := logs.get(place)) is not None
        and NO_EPOCH < before.epoch(place) < log.epoch
        and log.begin < previous_range.end
        and not _is_another(before.ids[place.topic], log.topic_id)
    }


def _is_another(old_id: str, new_id: str) -> bool:
    return NO_ID not in (old_id, new_id) and old_id != new_id


def _of_former_topics(before: KafkaBatch, logs: Mapping[TopicPartition, LogOffsets]) -> frozenset[TopicPartition]:
    """Partitions of topics that were made again without them."""
    ids = {place.topic: log.topic_id for place, log in logs.items()}
    return frozenset(
        place
        for place in before.ranges.keys() - logs.keys()
        if place.topic in ids and _is_another(before.ids[place.topic], ids[place.topic])
    )


def resumed(
    previous: KafkaBatch, logs: Mapping[TopicPartition, LogOffsets], cuts: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], tuple[LostOffsets, ...]]:
    """Where each known or new partition continues, and which records before that are lost.

    A new topic and a new partition begin at their oldest record: nothing that was written to them is left out. What is
    recorded as gone is not lost again.

    :param logs: the present offsets, without topics that the spout does not read (any more).
    :param cuts: the first new offset of each log that was cut off below its range and grew again.
    """
    begins: dict[TopicPartition, int] = {}
    lost: list[LostOffsets] = []
    for place, log in sorted(logs.items()):
        previous_range, old_id = previous.ranges.get(place), previous.ids.get(place.topic)
        if old_id is None or _is_another(old_id, log.topic_id):
            if previous_range is not None and place not in previous.gone:
                lost.append(LostOffsets(place, OffsetRange(previous_range.end, -1), _MADE_AGAIN))
            begins[place] = log.begin
            continue
        wanted = previous_range.end if previous_range is not None else 0
        if place in cuts:
            lost.append(LostOffsets(place, OffsetRange(cuts[place], wanted), CUT_OFF))
            wanted = cuts[place]
        elif wanted < log.begin:
            lost.append(LostOffsets(place, OffsetRange(wanted, log.begin), "expired before it was read"))
        elif wanted > log.end:
            lost.append(LostOffsets(place, OffsetRange(log.end, wanted), "the log was cut off or made again"))
        elif _went_back(previous, place, log):
            why = f"its leader epoch fell from {previous.epoch(place)} to {log.epoch}: the cluster was restored"
            lost.append(LostOffsets(place, OffsetRange(wanted, -1), why))
        begins[place] = min(max(wanted, log.begin), max(log.end, log.begin))
    former = _of_former_topics(previous, logs)
    for place in sorted(previous.ranges.keys() - logs.keys() - previous.gone):
        why = _MADE_AGAIN if place in former else "the partition is gone"
        lost.append(LostOffsets(place, OffsetRange(previous.ranges[place].end, -1), why))
    return begins, tuple(lost)


def following(
    before: KafkaBatch,
    logs: Mapping[TopicPartition, LogOffsets],
    begins: Mapping[TopicPartition, int],
    chosen: Mapping[TopicPartition, OffsetRange],
    wanted: Callable[[str], bool],
) -> KafkaBatch:
    """The batch after `before`, without what is lost.

    :param begins: where the partitions of `logs` continue.
    :param chosen: what of them is in the batch.
    :param wanted: does the spout read a topic? Others are not in `logs`.
    """
    # An offset in a topic that is no more says nothing about the one that has its name.
    former = _of_former_topics(before, logs)
    # Other partitions that are not read now keep their place: a topic that comes back continues there.
    ranges = {place: OffsetRange(each.end, each.end) for place, each in before.ranges.items() if place not in former}
    gone_partitions = frozenset(
        place for place in ranges.keys() - logs.keys() if wanted(place.topic) or place in before.gone
    )
    ranges |= {place: OffsetRange(begin, begin) for place, begin in begins.items()}
    ranges |= chosen
    ids = {**before.ids, **{place.topic: log.topic_id for place, log in logs.items()}}
    epochs = {place: before.epoch(place) for place in ranges} | {place: log.epoch for place, log in logs.items()}
    return KafkaBatch(ids, ranges, gone=gone_partitions, epochs=epochs)


def limited(
    available: Mapping[TopicPartition, OffsetRange], max_rows: int | None, turn: int
) -> dict[TopicPartition, OffsetRange]:
    """At most `max_rows` offsets: small backlogs as a whole, and equal parts of the others.

    :param available: of every partition, also those without new records: so each has a turn of its own.
    :param turn: one more from batch to batch. What cannot be shared equally goes to the partition whose turn it is and
        to those after it, one offset each. So a partition waits for at most as many batches as there are partitions.
    """
    if max_rows is None or sum(each.size for each in available.values()) <= max_rows:
        return dict(available)
    places = sorted(available)
    share, rest = _shares([each.size for each in available.values()], max_rows)
    sizes = {place: min(share, available[place].size) for place in places}
    first = turn % len(places)
    larger = [place for place in [*places[first:], *places[:first]] if sizes[place] < available[place].size]
    sizes |= {place: sizes[place] + 1 for place in larger[:rest]}
    return {place: OffsetRange(available[place].begin, available[place].begin + size) for place, size in sizes.items()}


def _shares(sizes: Iterable[int], total: int) -> tuple[int, int]:
    """How much each may have so that the smaller ones get all they need, and what is left then: less than the number of
    those that need more.

    :param total: less than the sum of `sizes`.
    """
    ascending = sorted(sizes)
    for number, size in enumerate(ascending):
        share, rest = divmod(total, len(ascending) - number)
        if size > share:
            return share, rest
        total -= size
    raise AssertionError("the sizes are not more than the total")


def pieces(
    ranges: Iterable[tuple[TopicPartition, OffsetRange]], split_rows: int
) -> list[tuple[TopicPartition, OffsetRange]]:
    """The ranges: large ones are cut, empty ones are left out."""
    cut: list[tuple[TopicPartition, OffsetRange]] = []
    for place, each in ranges:
        begins = range(each.begin, each.end, split_rows)
        cut.extend((place, OffsetRange(at, min(at + split_rows, each.end))) for at in begins)
    return cut


def packs(
    cut: Sequence[tuple[TopicPartition, OffsetRange]], split_rows: int
) -> list[list[tuple[TopicPartition, OffsetRange]]]:
    """The pieces, in groups that are read together: a few have a group each, many small ones share one.

    :param cut: as :func:`pieces` cuts by `split_rows`. No group has two pieces of one partition.
    """
    if len(cut) <= _FEW_SPLITS:
        return [[piece] for piece in cut]
    total = sum(each.size for _, each in cut)
    count = max(_FEW_SPLITS, -(-total // split_rows))
    groups: dict[int, list[tuple[TopicPartition, OffsetRange]]] = {}
    begin = 0
    for piece in cut:
        groups.setdefault(begin * count // total, []).append(piece)
        begin += piece[1].size
    return list(groups.values())
