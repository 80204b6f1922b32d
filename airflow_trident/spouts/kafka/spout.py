"""Spouts of Kafka topics: a batch is a range of offsets of every partition (Storm: KafkaTridentSpoutTransactional and
KafkaTridentSpoutOpaque). The ledger keeps the position; a consumer group is only asked where to begin, if wanted.

Executors read the ranges with librdkafka and account for each offset (:mod:`airflow_trident.spouts.kafka.consumer`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, OnDataLoss, Split, Spout, one_of
from airflow_trident.errors import ConfigurationError, PlanError, SourceChangedError
from airflow_trident.io.database_limits import KAFKA
from airflow_trident.io.datasets import Dataset, topic_dataset
from airflow_trident.names import require_conn_id, require_counts, require_durations, require_flags, without_none
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.partitions import Partitions, duration
from airflow_trident.spouts.kafka.bound import BoundKafka
from airflow_trident.spouts.kafka.consumer import KafkaCluster, RecordedRange, SplitReader
from airflow_trident.spouts.kafka.ranges import (
    FirstPoll,
    KafkaBatch,
    LogOffsets,
    OffsetRange,
    TopicPartition,
    batch_of,
    following,
    limited,
    packs,
    pieces,
    resumed,
    unproved,
)
from airflow_trident.spouts.kafka.topics import BatchOptions, KafkaTopics, milliseconds
from airflow_trident.types import Field, FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_ROWS = 1_000_000
DEFAULT_SPLIT_ROWS = 500_000
_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "offset": ("long",),
    "timestamp": ("timestamp",),
    "header_keys": ("array<string>",),
    "header_values": ("array<binary>",),
}


class KafkaSpout(Spout):
    """Reads topics; the batch of a txid is always the same (Storm: KafkaTridentSpoutTransactional).

    With `opaque` it reads topics that may lose records: compacted ones, or with short retention (Storm:
    KafkaTridentSpoutOpaque). A new attempt decides its ranges again, without expired records. They are written to the
    task's log, and to the metadata if the loss was found before reading. No record is in two committed batches.

    :param topics: a name or several; or give `pattern`.
    :param pattern: a regular expression for whole names; topics that appear later are read from their oldest record.
    :param conn_id: an Airflow connection of type ``kafka``: its extras are settings of librdkafka.
    :param bootstrap_servers: ``host:port,host:port``; overrides the connection and `config`.
    :param config: more settings of librdkafka; they override those of the connection.
    :param fields: any of key, value (``binary`` or ``string``), topic, partition, offset, timestamp, header_keys,
        header_values.
    :param first_poll: where the first transaction begins; see :class:`FirstPoll`. The setting ``group.id`` is the
        consumer group of ``uncommitted_...``.
    :param start_time: for ``timestamp``; with a time zone.
    :param max_rows: offsets of one batch.
    :param max_bytes: of one batch, about; estimated from a sample of its records.
    :param isolation: ``read_committed`` or ``read_uncommitted``: records of producers' transactions.
    :param opaque: a new attempt may read another batch.
    :param on_data_loss: ``error`` or ``continue``, for records that are gone before a transaction has read them; by
        default ``continue`` if `opaque`.
    :param split_rows: a larger range is read in several splits.
    :param timeout_s: how long to wait for the cluster.
    :param time: in a topology that is bound to partitions: ``"timestamp"``, the time of a record, says in which one it
        is. `first_poll` and the limits of a batch mean nothing then.
    :param slack: how late a record may come: one of a partition may be behind records that are so much younger than
        the partition's end. A timedelta, or a text such as ``"10m"``.
    :raises ConfigurationError: an argument is wrong, or arguments contradict each other.
    """

    schema: Schema = ()

    def __init__(
        self,
        topics: str | Sequence[str] = (),
        *,
        pattern: str | None = None,
        conn_id: str | None = None,
        bootstrap_servers: str | None = None,
        config: Mapping[str, Any] | None = None,
        fields: FieldSpec = "key binary, value binary, topic string, partition int, offset long, timestamp timestamp",
        first_poll: FirstPoll | str = FirstPoll.EARLIEST,
        start_time: datetime | None = None,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int | None = None,
        isolation: str = "read_committed",
        opaque: bool = False,
        on_data_loss: OnDataLoss | str | None = None,
        split_rows: int = DEFAULT_SPLIT_ROWS,
        timeout_s: float = KAFKA.answer_s,
        time: str = "",
        slack: timedelta | str = timedelta(),
    ) -> None:
        who = type(self).__name__
        require_flags(who, opaque=opaque)
        if conn_id is not None:
            require_conn_id(who, conn_id)
        self.opaque = opaque
        names = (topics,) if isinstance(topics, str) else tuple(topics)
        self._reach = KafkaTopics(
            topics=names, pattern=pattern, conn_id=conn_id, settings=_settings(bootstrap_servers, config), who=who
        )
        self._reach.require_complete()
        require_counts(who, max_rows=max_rows, split_rows=split_rows, **without_none(max_bytes=max_bytes))
        require_durations(who, timeout_s=timeout_s)
        first = FirstPoll(one_of(who, "first_poll", str(first_poll).lower(), tuple(FirstPoll)))
        if (first.otherwise is FirstPoll.TIMESTAMP) != (start_time is not None):
            raise ConfigurationError(
                f"{who} with first_poll={first.value!r} and start_time={start_time}", "They belong together."
            )
        if first.asks_the_group and conn_id is None:
            self._reach.require_group()
        if start_time is not None and start_time.tzinfo is None:
            raise ConfigurationError(f"{who} with start_time={start_time}", "Give it a time zone.")
        self._deciding = BatchOptions(
            first_poll=first,
            start_ms=milliseconds(start_time) if start_time else None,
            max_rows=max_rows,
            max_bytes=max_bytes,
            committed=one_of(who, "isolation", isolation, ("read_committed", "read_uncommitted")) == "read_committed",
            on_data_loss=OnDataLoss(
                one_of(who, "on_data_loss", on_data_loss or _on_data_loss(opaque), tuple(OnDataLoss))
            ),
            timeout_s=timeout_s,
        )
        self.schema = _declared(who, fields)
        self._split_rows = split_rows
        if time:
            one_of(who, "time", time, ("timestamp",))
        self.needs_partitions = bool(time)
        self._slack = duration("slack", slack)
        if self._slack and not time:
            raise ConfigurationError(f"{who} with slack, and without time", 'Add time="timestamp", or leave it out.')

    def bound(self, partitions: Partitions) -> BoundKafka:
        """
        :raises PlanError: nothing says in which partition a record is.
        """
        if not self.needs_partitions:
            raise PlanError(
                f"{self.describe()} in a bound topology: nothing says in which {partitions.step} a record is",
                'Name the time of the records: time="timestamp".',
            )
        return BoundKafka(self, self._reader, self._reach, self._deciding, self._slack, partitions)

    def _reader(self, fields: Schema) -> KafkaEmitter:
        return KafkaEmitter(self._reach.resolved(), fields, self._deciding, self._split_rows, not self.opaque)

    def coordinator(self) -> KafkaCoordinator:
        return KafkaCoordinator(self._reach, self._deciding)

    def emitter(self) -> KafkaEmitter:
        return self._reader(self.schema)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        """The topics in the batch, even if `pattern` matches others by now."""
        servers = str(self._reach.resolved().settings["bootstrap.servers"])
        batch: Any = metadata
        return tuple(topic_dataset(servers, topic) for topic in batch["topics"])

    def describe(self) -> str:
        return self._reach.describe()

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: the receiver may not know the connection."""
        return {**self.__dict__, "_reach": self._reach.resolved(required=False)}


def _on_data_loss(opaque: bool) -> OnDataLoss:
    return OnDataLoss.CONTINUE if opaque else OnDataLoss.ERROR


@dataclass(frozen=True)
class KafkaCoordinator(Coordinator):
    """Metadata: see :mod:`airflow_trident.spouts.kafka.ranges`."""

    source: KafkaTopics
    options: BatchOptions

    def is_ready(self, previous: Json) -> bool:
        return self._decide(0, previous, max_bytes=None) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: records that no transaction has read are gone, and `on_data_loss` is "error".
        """
        batch = self._decide(txid, previous, max_bytes=self.options.max_bytes)
        return None if batch is None else batch.to_json()

    def accept_source(self, metadata: Json) -> Json:
        """The same offsets of the logs as they are now: one that was cut off and grew again has other records.

        :raises SourceChangedError: the logs do not have all of these offsets.
        """
        batch = batch_of(metadata)
        ranges = {place: each for place, each in batch.ranges.items() if each.size}
        with self.source.open(self.options.timeout_s) as cluster:
            logs = cluster.logs(sorted(ranges), committed=False)
        for place, each in ranges.items():
            now = logs.get(place)
            if now is None or now.topic_id != batch.ids[place.topic] or now.begin > each.begin or now.end < each.end:
                raise SourceChangedError(
                    f"{place} does not have the offsets {each.begin} to {each.end - 1} of the transaction any more",
                    "Put the records back into the topic's log, or skip the transaction.",
                )
        epochs = {**batch.epochs, **{place: log.epoch for place, log in logs.items()}}
        recorded: Any = metadata
        accepted = replace(batch, epochs=epochs).to_json()
        return {**accepted, **({"lost": recorded["lost"]} if "lost" in recorded else {})}

    def lag(self, position: Json) -> Lag:
        """Counts offsets: a compacted topic, or one written in transactions, has fewer records. What is behind a
        producer that has not decided yet counts, too: one that hangs would look like a source with nothing new."""
        unlimited = replace(self, options=replace(self.options, max_rows=sys.maxsize, committed=False))
        batch = unlimited._decide(0, position, max_bytes=None)
        return {"records": 0 if batch is None else sum(each.end - each.begin for each in batch.ranges.values())}

    def _decide(self, txid: int, previous: Json, *, max_bytes: int | None) -> KafkaBatch | None:
        before = batch_of(previous)
        read = replace(
            before, ranges={place: each for place, each in before.ranges.items() if self.source.wants(place.topic)}
        )
        with self.source.open(self.options.timeout_s) as cluster:
            logs = self.source.logs(cluster, read, committed=self.options.committed)
            begins, lost = resumed(read, logs, cluster.cuts(unproved(read, logs)))
            if previous is None:
                begins = self._first(cluster, logs)
            if lost and self.options.on_data_loss is OnDataLoss.ERROR:
                raise SourceChangedError(
                    f"{self.source.describe()} does not have what follows the last transaction: "
                    f"{'; '.join(map(str, lost))}",
                    'Nothing was begun. on_data_loss="continue" records the loss and goes on with what is there.',
                )
            every = {place: OffsetRange(begin, max(begin, logs[place].end)) for place, begin in begins.items()}
            new = {place: each for place, each in every.items() if each.size}
            if not new and not (previous is None and self.options.first_poll.moves):
                return None
            chosen = limited(every, self._max_rows(cluster, new, max_bytes), txid)
        return replace(following(before, logs, begins, chosen, self.source.wants), lost=lost)

    def _first(self, cluster: KafkaCluster, logs: Mapping[TopicPartition, LogOffsets]) -> dict[TopicPartition, int]:
        first, places = self.options.first_poll, sorted(logs)
        offsets = dict[TopicPartition, int]()
        if first.otherwise is FirstPoll.TIMESTAMP:
            times = cluster.offsets_of_time(places, self.options.start_ms or 0)
            offsets = {place: offset if offset >= 0 else logs[place].end for place, offset in times.items()}
        elif first.otherwise is FirstPoll.LATEST:
            offsets = {place: log.end for place, log in logs.items()}
        if first.asks_the_group:
            offsets |= self._of_group(cluster, places)
        return {place: min(max(offsets.get(place, log.begin), log.begin), log.end) for place, log in logs.items()}

    def _of_group(self, cluster: KafkaCluster, places: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """:raises SourceChangedError: the group is ahead of a log, and `on_data_loss` is "error"."""
        self.source.resolved().require_group()
        committed = cluster.offsets_of_group(places)
        logs = cluster.logs(sorted(committed), committed=False)
        ahead = {place: offset for place, offset in committed.items() if offset > logs[place].end}
        if ahead and self.options.on_data_loss is OnDataLoss.ERROR:
            place, offset = min(ahead.items())
            raise SourceChangedError(
                f"the consumer group of {self.source.describe()} committed offset {offset} of {place}, whose log ends "
                f"at {logs[place].end}: the log was cut off or made again",
                f'Nothing was begun. Reset the group\'s offsets. on_data_loss="continue" begins such partitions as '
                f'first_poll="{self.options.first_poll.otherwise}" does.',
            )
        return {place: offset for place, offset in committed.items() if place not in ahead}

    def _max_rows(self, cluster: KafkaCluster, new: Mapping[TopicPartition, OffsetRange], max_bytes: int | None) -> int:
        if not max_bytes or not new:
            return self.options.max_rows
        bytes_each = cluster.record_bytes(new)
        return min(self.options.max_rows, max(1, int(max_bytes / bytes_each))) if bytes_each else 1


@dataclass(frozen=True)
class KafkaEmitter(Emitter):
    """One split for each partition with records, several for a large range, one for many small ranges."""

    source: KafkaTopics
    row_schema: Schema
    options: BatchOptions
    split_rows: int
    strict: bool

    def splits(self, metadata: Json) -> list[Split]:
        batch = batch_of(metadata)
        return [
            Split(index, [_body(batch, place, part) for place, part in packed])
            for index, packed in enumerate(packs(pieces(batch.ranges.items(), self.split_rows), self.split_rows))
        ]

    def name_of(self, split: Split) -> str:
        bodies: Any = split.body
        first, more = bodies[0], len(bodies) - 1
        place = f"{first['topic']}-{first['partition']} from offset {first['from']} to {first['to']}"
        return f"{place} (and {more} more ranges)" if more else place

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        bodies: Any = split.body
        recorded = [
            RecordedRange(
                place=TopicPartition(body["topic"], body["partition"]),
                range=OffsetRange(body["from"], body["to"]),
                topic_id=body["id"],
                epoch=body["epoch"],
            )
            for body in bodies
        ]
        timeout_s = self.options.timeout_s
        isolation = "read_committed" if self.options.committed else "read_uncommitted"
        with self.source.open(timeout_s) as cluster:
            reader = SplitReader(
                cluster, self.source.describe(), recorded, self.row_schema, isolation, timeout_s, self.strict
            )
            yield from reader.batches()


def _body(batch: KafkaBatch, place: TopicPartition, part: OffsetRange) -> Json:
    return {
        "topic": place.topic,
        "partition": place.partition,
        "id": batch.ids[place.topic],
        "epoch": batch.epoch(place),
        "from": part.begin,
        "to": part.end,
    }


def _settings(bootstrap_servers: str | None, config: Mapping[str, Any] | None) -> dict[str, Any]:
    return {**(config or {}), **({"bootstrap.servers": bootstrap_servers} if bootstrap_servers else {})}


def _declared(who: str, fields: FieldSpec) -> Schema:
    schema = parse_declared(fields, [])
    for each in schema:
        if each.type not in _TYPES.get(each.name, ()):
            choices = ", ".join(str(Field(name, kind)) for name, kinds in _TYPES.items() for kind in kinds)
            raise ConfigurationError(f"{who} has no field {str(each)!r}", f"Use some of {choices}.")
    return schema
