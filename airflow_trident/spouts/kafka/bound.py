"""KafkaSpout in a topology that is bound to partitions: the records whose time is in the partition.

A partition's first record is the first one that is not older than its start, so none before it counts. Its last one is
before the first record that is `slack` younger than its end: producers set times, which do not only rise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.bound_spout import KeyedCoordinator, KeyedFollower, key_and_split, splits_of_key
from airflow_trident.contracts.spout import Emitter, PartitionChange, Split, not_metadata_of
from airflow_trident.errors import IncompletePartitionError
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.spouts.kafka.consumer import KafkaCluster
from airflow_trident.spouts.kafka.ranges import (
    KafkaBatch,
    LogOffsets,
    OffsetRange,
    TopicPartition,
    batch_of,
    unproved,
)
from airflow_trident.spouts.kafka.topics import BatchOptions, KafkaTopics, milliseconds
from airflow_trident.types import Json, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

_TIME = "timestamp"


@dataclass(frozen=True)
class BoundKafka(KeyedFollower):
    """`follower`: the spout that would follow the topics. `reader`: its emitter of some fields. `slack`: how much
    younger a record before one of the partition may be than the partition's end."""

    reader: Callable[[Schema], Emitter]
    topics: KafkaTopics
    options: BatchOptions
    slack: timedelta
    partitions: Partitions

    def coordinator(self) -> BoundKafkaCoordinator:
        return BoundKafkaCoordinator(self.topics, self.options, self.slack)

    def emitter(self) -> BoundKafkaEmitter:
        fields = self.schema
        if _TIME not in names_of(fields):
            fields = (*fields, *parse_declared(f"{_TIME} timestamp"))
        return BoundKafkaEmitter(self.reader(fields), self.partitions, names_of(self.schema))

    @property
    def notes(self) -> tuple[str, ...]:
        return (
            "a record belongs to the partition of its time, which a producer sets unless the topic has "
            f"message.timestamp.type=LogAppendTime; one behind records that are {self.slack} younger than the "
            "partition's end is left out (slack)",
        )

    def describe(self) -> str:
        return f"{self.topics.describe()[:-1]}, time {_TIME})"


@dataclass(frozen=True)
class BoundKafkaCoordinator(KeyedCoordinator):
    """Metadata: those of a KafkaSpout, with the key as `partition`; `expired`, the logs that may have had older records
    of the partition; and `cuts`, how many logs were cut off and grew again since its first look."""

    topics: KafkaTopics
    options: BatchOptions
    slack: timedelta

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """
        :raises IncompletePartitionError: a producer's transaction among the records is not decided.
        """
        former = batch_of(before)
        with self.topics.open(self.options.timeout_s) as cluster:
            logs = self.topics.logs(cluster, former, committed=False)
            cuts = cluster.cuts(unproved(former, logs))
            begins = self._offsets(cluster, logs, milliseconds(partition.start))
            ends = self._offsets(cluster, logs, milliseconds(partition.end + self.slack))
            expired = self._expired(cluster, partition, logs, begins)
            if self.options.committed:
                self._require_decided(partition, begins, ends, self.topics.logs(cluster, former, committed=True))
        ranges = {place: OffsetRange(begin, max(begin, ends[place])) for place, begin in begins.items()}
        if not expired and not any(each.size for each in ranges.values()):
            return None
        ids = {place.topic: log.topic_id for place, log in logs.items()}
        batch = KafkaBatch(ids, ranges, epochs={place: log.epoch for place, log in logs.items()})
        earlier = _cuts(before) if before is not None else 0
        return {
            **batch.to_json(),
            "partition": partition.key,
            "expired": list[Json](expired),
            "cuts": earlier + len(cuts),
        }

    def _offsets(
        self, cluster: KafkaCluster, logs: Mapping[TopicPartition, LogOffsets], time_ms: int
    ) -> dict[TopicPartition, int]:
        """The first offset of a time in each log, or its end."""
        offsets = cluster.offsets_of_time(sorted(logs), time_ms)
        return {
            place: min(max(offsets[place], log.begin), log.end) if offsets[place] >= 0 else log.end
            for place, log in logs.items()
        }

    def _expired(
        self,
        cluster: KafkaCluster,
        partition: Partition,
        logs: Mapping[TopicPartition, LogOffsets],
        begins: Mapping[TopicPartition, int],
    ) -> list[str]:
        """The logs that may have lost records of the partition. Where an older record is left, none of it is lost."""
        ages = dict[str, timedelta | None]()
        doubtful = list[str]()
        for place, log in sorted(logs.items()):
            if 0 < log.begin == begins[place]:
                if place.topic not in ages:
                    ages[place.topic] = cluster.keeps_for(place.topic)
                age = ages[place.topic]
                if age is None or datetime.now(UTC) - partition.start > age:
                    doubtful.append(str(place))
        return doubtful

    def _require_decided(
        self,
        partition: Partition,
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        decided: Mapping[TopicPartition, LogOffsets],
    ) -> None:
        for place, end in sorted(ends.items()):
            if place in decided and begins[place] < end and decided[place].end < end:
                raise IncompletePartitionError(
                    f"{self.topics.describe()}: a producer's transaction at offset {decided[place].end} of {place} is "
                    f"not decided, so the records of the partition {partition.key} are not complete",
                    "Ask for it when the producer has committed or aborted it.",
                )

    def compared(self, before: Json, now: Json) -> PartitionChange:
        former, present = batch_of(before), batch_of(now)
        new = [
            str(place)
            for place, each in present.ranges.items()
            if each.end > former.ranges.get(place, OffsetRange(each.begin, each.begin)).end
        ]
        gone = [
            f"{place} from offset {each.begin}"
            for place, each in former.ranges.items()
            if each.size and _has_lost(place, each, former, present)
        ]
        other = ("records that were cut off",) if _cuts(before) != _cuts(now) else ()
        return PartitionChange(tuple(sorted(new)), tuple(sorted(gone)), other)

    def expired(self, metadata: Json) -> tuple[str, ...]:
        record: Any = metadata
        return tuple(f"{log}, whose oldest record is not before the partition" for log in record["expired"])


def _has_lost(place: TopicPartition, each: OffsetRange, former: KafkaBatch, present: KafkaBatch) -> bool:
    now = present.ranges.get(place)
    if now is None or former.ids[place.topic] != present.ids[place.topic]:
        return True
    return now.begin > each.begin or now.end < each.end


def _cuts(metadata: Json) -> int:
    record: Any = metadata
    return int(record["cuts"])


@dataclass(frozen=True)
class BoundKafkaEmitter(Emitter):
    """Leaves out records of other times. `reader`: of the offsets, with their time. `fields`: what it gives."""

    reader: Emitter
    partitions: Partitions
    fields: tuple[str, ...]

    def splits(self, metadata: Json) -> list[Split]:
        key = metadata.get("partition") if isinstance(metadata, dict) else None
        if not isinstance(key, str):
            raise not_metadata_of("a KafkaSpout of a partition", metadata)
        return splits_of_key(key, self.reader.splits(metadata))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        key, inner = key_and_split(split)
        partition = self.partitions.parse(key)
        for batch in self.reader.read(inner):
            times = batch.column(_TIME)
            begin, end = (pa.scalar(moment, times.type) for moment in (partition.start, partition.end))
            within = pc.and_(pc.greater_equal(times, begin), pc.less(times, end))
            yield batch.filter(within).select(list(self.fields))

    def name_of(self, split: Split) -> str:
        return self.reader.name_of(key_and_split(split)[1])
