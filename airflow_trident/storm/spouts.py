"""The spouts of transactional topologies, after Storm's ITransactionalSpout, IPartitionedTransactionalSpout and
IOpaquePartitionedTransactionalSpout: classes with a coordinator and an emitter, as Storm's documents write them.

One difference from Storm: coordinator and emitter live for one batch only. So the beginning of a batch comes from the
metadata before it, not from what an object remembers. Metadata is a JSON value, or a dataclass of such values,
named in `metadata_class`. In the TransactionAttempt of an emitter, `attempt` is `NO_ATTEMPT`: all attempts have the
same batch.

Adapts the spouts of transactional topologies to the spouts that engines run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.contracts.partitioned_spout import PartitionedSpout
from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, PlanError, SourceChangedError
from airflow_trident.io.arrow import fitting, rows_to_table
from airflow_trident.operations.interfaces import TransactionAttempt
from airflow_trident.operations.state_functions import Row
from airflow_trident.protocol.records import NO_ATTEMPT
from airflow_trident.storm.bolts import (
    DEFAULT_STREAM,
    BatchOutputCollector,
    Component,
    OutputFieldsDeclarer,
    Outputs,
    TopologyContext,
)
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

X = TypeVar("X")


class _AnyCoordinator(Closing):
    def is_ready(self) -> bool:
        """May another transaction begin? Asked before each one."""
        return True


class SpoutCoordinator(_AnyCoordinator, Generic[X]):
    """Decides what a batch is (Storm: ITransactionalSpout.Coordinator)."""

    @abstractmethod
    def initialize_transaction(self, txid: int, prev_metadata: X | None) -> X | None:
        """The metadata of the batch after `prev_metadata` (None: of the first batch). None: nothing is new, and no
        transaction begins."""


class SpoutEmitter(Closing, Generic[X]):
    """Emits batches (Storm: ITransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_batch(self, tx: TransactionAttempt, coordinator_meta: X, collector: BatchOutputCollector) -> None:
        """Emits this task's part of the batch: the same tuples for the same txid and metadata."""

    def cleanup_before(self, txid: int) -> None:
        """No batch of a transaction below `txid` is emitted any more: all of them are committed, or closed for good. A
        SKIPPED one can still be backfilled, and holds this back."""


class PartitionCoordinator(_AnyCoordinator):
    """Knows the number of partitions (Storm: IPartitionedTransactionalSpout.Coordinator)."""

    @abstractmethod
    def num_partitions(self) -> int: ...


class PartitionEmitter(Closing, Generic[X]):
    """Emits the parts of batches (Storm: IPartitionedTransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_partition_batch_new(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, last_partition_meta: X | None
    ) -> X:
        """Chooses the next part of a partition, emits it, and returns its metadata.

        The coordinator of the topology calls it, and only counts the emitted tuples: none means that nothing is new.
        """

    @abstractmethod
    def emit_partition_batch(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, partition_meta: X
    ) -> None:
        """Emits the part with this metadata again."""


class OpaqueCoordinator(_AnyCoordinator):
    """Storm: IOpaquePartitionedTransactionalSpout.Coordinator."""


class OpaqueEmitter(Closing, Generic[X]):
    """Emits parts that need not be the same the next time (Storm: IOpaquePartitionedTransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_partition_batch(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, last_partition_meta: X | None
    ) -> X:
        """Emits what comes after the part with `last_partition_meta` now, and returns its metadata.

        It is called when an attempt begins, and again where that attempt's tuples are processed. If more data have come
        meanwhile, the first tuples of the second call must be the same; otherwise the attempt fails, and the next one
        takes what is there then.
        """

    @abstractmethod
    def num_partitions(self) -> int: ...


class _TransactionalComponent(Component, Generic[X]):
    metadata_class: type[X] | None = None
    """The dataclass of the metadata; None: plain JSON."""

    def to_json(self, metadata: X) -> Json:
        if is_dataclass(metadata) and not isinstance(metadata, type):
            return asdict(metadata)
        return metadata  # type: ignore[return-value]

    def from_json(self, recorded: Json) -> X:
        if self.metadata_class is not None and isinstance(recorded, dict):
            return self.metadata_class(**recorded)
        return recorded  # type: ignore[return-value]


class TransactionalSpout(_TransactionalComponent[X]):
    """One coordinator, and as many emitters as the spout's parallelism says; each emits its part of every batch (Storm:
    ITransactionalSpout, BaseTransactionalSpout). The same txid must give the same batch.

    `repeats_metadata`: may the coordinator return the metadata of the transaction before again? Say True only if the
    emitter finds the batch by the txid.
    """

    repeats_metadata: bool = False

    Coordinator = SpoutCoordinator
    Emitter = SpoutEmitter

    @abstractmethod
    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> SpoutCoordinator[X]: ...

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> SpoutEmitter[X]: ...


class PartitionedTransactionalSpout(_TransactionalComponent[X]):
    """A source with partitions, each with its own metadata (Storm: IPartitionedTransactionalSpout,
    BasePartitionedTransactionalSpout)."""

    Coordinator = PartitionCoordinator
    Emitter = PartitionEmitter

    @abstractmethod
    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> PartitionCoordinator: ...

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> PartitionEmitter[X]: ...


class OpaquePartitionedTransactionalSpout(_TransactionalComponent[X]):
    """A source with partitions that may give another batch on a retry (Storm: IOpaquePartitionedTransactionalSpout)."""

    Coordinator = OpaqueCoordinator
    Emitter = OpaqueEmitter

    @abstractmethod
    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> OpaqueCoordinator: ...

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> OpaqueEmitter[X]: ...


AnyTransactionalSpout: TypeAlias = (
    TransactionalSpout[Any] | PartitionedTransactionalSpout[Any] | OpaquePartitionedTransactionalSpout[Any]
)


@dataclass(frozen=True)
class SpoutOfTopology:
    """Id, outputs, configuration and number of tasks of a spout. Picklable."""

    id: str
    outputs: Outputs
    conf: Mapping[str, Any] = field(repr=False)
    tasks: int

    @property
    def schema(self) -> Schema:
        return self.outputs.schema

    def context(self, task: int = 0) -> TopologyContext:
        return TopologyContext(self.id, task, self.tasks)

    def collector(self, txid: int, rows: list[Row]) -> tuple[TransactionAttempt, BatchOutputCollector]:
        attempt = TransactionAttempt(txid, NO_ATTEMPT)
        return attempt, BatchOutputCollector(self.outputs, attempt, lambda *row: rows.append(row))

    def batches(self, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        """The rows in Arrow.

        :raises DamagedInputError: a value does not fit its field.
        """
        cure = "Mend the source or the types in declare_output_fields()."
        with fitting(f"spout {self.id!r} emitted what does not fit its fields", self.schema, cure):
            table = rows_to_table(self.schema, rows)
        yield from table.to_batches()


def adapted(id: str, spout: AnyTransactionalSpout, conf: Mapping[str, Any], tasks: int) -> Spout:
    """:raises PlanError: the spout does not declare exactly one stream, the default one."""
    declarer = OutputFieldsDeclarer(id)
    spout.declare_output_fields(declarer)
    if declarer.streams.keys() != {DEFAULT_STREAM}:
        raise PlanError(
            f"spout {id!r} declares the streams {', '.join(map(repr, declarer.streams)) or 'none'}",
            'A spout has one stream: declare it with declarer.declare("txid, word string").',
        )
    component = SpoutOfTopology(id, Outputs(id, declarer.streams), conf, tasks)
    if isinstance(spout, TransactionalSpout):
        return TransactionalSource(spout, component)
    if isinstance(spout, PartitionedTransactionalSpout):
        return PartitionedSource(spout, component)
    return OpaquePartitionedSource(spout, component)


class _OfStorm(Spout):
    """What all three adapters have in common."""

    spout: AnyTransactionalSpout
    where: SpoutOfTopology

    @property
    def schema(self) -> Schema:
        return self.where.schema

    @property
    def adapts(self) -> str:
        return self.describe()

    def describe(self) -> str:
        return type(self.spout).__qualname__.rpartition("<locals>.")[2]


# ---- ITransactionalSpout ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransactionalSource(_OfStorm):
    """Metadata: ``{"txid": of the batch, "meta": from the coordinator}``."""

    spout: TransactionalSpout[Any]
    where: SpoutOfTopology

    def coordinator(self) -> Coordinator:
        return _Coordinator(self)

    def emitter(self) -> Emitter:
        return _Emitter(self)

    def read(self, metadata: Json) -> tuple[int, Any]:
        if isinstance(metadata, dict) and metadata.keys() == {"txid", "meta"} and isinstance(metadata["txid"], int):
            return metadata["txid"], self.spout.from_json(metadata["meta"])
        raise _other_spout(metadata, self.describe())


@dataclass(frozen=True)
class _Coordinator(Coordinator):
    source: TransactionalSource

    def is_ready(self, previous: Json) -> bool:
        return self._decided(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        made = self._decided(txid, previous)
        if made is not None and isinstance(previous, dict) and made["meta"] == previous["meta"]:
            self._require_repeatable(txid, made["meta"])
        return made

    def _decided(self, txid: int, previous: Json) -> dict[str, Json] | None:
        source = self.source
        before = None if previous is None else source.read(previous)[1]
        with closing(source.spout.get_coordinator(source.where.conf, source.where.context())) as coordinator:
            made = coordinator.initialize_transaction(txid, before) if coordinator.is_ready() else None
        return None if made is None else {"txid": txid, "meta": source.spout.to_json(made)}

    def _require_repeatable(self, txid: int, meta: Json) -> None:
        """A coordinator that looks up its position, instead of taking it from `prev_metadata`, decides the same batch
        again until the transaction before is committed (the coordinator of the tweets chapter, as printed)."""
        if self.source.spout.repeats_metadata:
            return
        raise ConfigurationError(
            f"the coordinator of spout {self.source.where.id!r} ({self.source.describe()}) returned for transaction "
            f"{txid} the metadata of the one before, {meta!r:.200}: both would read the same tuples",
            "Begin where prev_metadata ends, and return None where nothing is new. If the coordinator must look its "
            "position up, set max_pending=1. If the emitter finds its batch by the txid, set the spout's "
            "repeats_metadata = True.",
        )

    def cleanup_before(self, txid: int) -> None:
        source = self.source
        with closing(source.spout.get_emitter(source.where.conf, source.where.context())) as emitter:
            emitter.cleanup_before(txid)


@dataclass(frozen=True)
class _Emitter(Emitter):
    source: TransactionalSource

    def splits(self, metadata: Json) -> list[Split]:
        """One for each task: only the emitters know which tuples are whose."""
        self.source.read(metadata)
        return [Split(task, [task, metadata]) for task in range(self.source.where.tasks)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, list)
        task, metadata = split.body
        assert isinstance(task, int)
        txid, meta = self.source.read(metadata)
        component, rows = self.source.where, list[Row]()
        attempt, collector = component.collector(txid, rows)
        with closing(self.source.spout.get_emitter(component.conf, component.context(task))) as emitter:
            emitter.emit_batch(attempt, meta, collector)
        yield from component.batches(rows)


# ---- partitions ------------------------------------------------------------------------------------------------


class _Partitioned(_OfStorm, PartitionedSpout):
    def next_parts(self, partitions: Sequence[str], last: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
        with closing(self.spout.get_coordinator(self.where.conf, self.where.context())) as coordinator:
            if not coordinator.is_ready():
                return
        yield from super().next_parts(partitions, last)


@dataclass(frozen=True)
class PartitionedSource(_Partitioned):
    """A part's metadata: ``{"meta": from the emitter, "rows": number of rows, "digest": of the rows}``. The digest
    reveals a partition that emits other tuples when it is read again."""

    spout: PartitionedTransactionalSpout[Any]
    where: SpoutOfTopology

    def partitions(self) -> list[str]:
        with closing(self.spout.get_coordinator(self.where.conf, self.where.context())) as coordinator:
            return list(map(str, range(coordinator.num_partitions())))

    def next_part(self, partition: str, last: Json) -> Json:
        rows = list[Row]()
        attempt, collector = self.where.collector(0, rows)
        before = None if last is None else self.spout.from_json(_part(last, self.describe())["meta"])
        with closing(self.spout.get_emitter(self.where.conf, self.where.context())) as emitter:
            meta = emitter.emit_partition_batch_new(attempt, collector, int(partition), before)
        return {"meta": self.spout.to_json(meta), "rows": len(rows), "digest": _digest(rows)} if rows else None

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        rows, recorded = list[Row](), _part(part, self.describe())
        attempt, collector = self.where.collector(0, rows)
        with closing(self.spout.get_emitter(self.where.conf, self.where.context())) as emitter:
            meta = self.spout.from_json(recorded["meta"])
            emitter.emit_partition_batch(attempt, collector, int(partition), meta)
        _require_same(rows, recorded, partition, self.describe())
        yield from self.where.batches(rows)


@dataclass(frozen=True)
class OpaquePartitionedSource(_Partitioned):
    """A part's metadata: as for :class:`PartitionedSource`, and ``"last"``: the ``"meta"`` of the part before."""

    opaque = True
    spout: OpaquePartitionedTransactionalSpout[Any]
    where: SpoutOfTopology

    def partitions(self) -> list[str]:
        with closing(self.spout.get_emitter(self.where.conf, self.where.context())) as emitter:
            return list(map(str, range(emitter.num_partitions())))

    def next_part(self, partition: str, last: Json) -> Json:
        before = None if last is None else _part(last, self.describe())["meta"]
        rows, meta = self._emitted(partition, before)
        return {"last": before, "meta": meta, "rows": len(rows), "digest": _digest(rows)} if rows else None

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        recorded = _part(part, self.describe())
        rows, _ = self._emitted(partition, recorded["last"])
        rows = rows[: recorded["rows"]]
        _require_same(rows, recorded, partition, self.describe())
        yield from self.where.batches(rows)

    def _emitted(self, partition: str, last: Json) -> tuple[list[Row], Json]:
        rows = list[Row]()
        attempt, collector = self.where.collector(0, rows)
        before = None if last is None else self.spout.from_json(last)
        with closing(self.spout.get_emitter(self.where.conf, self.where.context())) as emitter:
            meta = emitter.emit_partition_batch(attempt, collector, int(partition), before)
        return rows, self.spout.to_json(meta)


def _part(recorded: Json, spout: str) -> dict[str, Any]:
    if isinstance(recorded, dict) and {"meta", "rows", "digest"} <= recorded.keys():
        return recorded
    raise _other_spout(recorded, spout)


def _digest(rows: list[Row]) -> str:
    made = sha256()
    for row in rows:
        made.update(repr(row).encode())
    return made.hexdigest()


def _require_same(rows: list[Row], recorded: dict[str, Any], partition: str, spout: str) -> None:
    if len(rows) != recorded["rows"] or _digest(rows) != recorded["digest"]:
        raise SourceChangedError(
            f"{spout}: partition {partition!r} emitted other tuples than when the transaction was decided "
            f"({len(rows)} now, {recorded['rows']} then)",
            "Bring back what the source held and replay; or use an OpaquePartitionedTransactionalSpout.",
        )


def _other_spout(recorded: Json, spout: str) -> SourceChangedError:
    return SourceChangedError(
        f"the recorded metadata {recorded!r:.80} is not that of {spout}",
        "Another spout had this id: give the topology a new id, or the spout.",
    )
