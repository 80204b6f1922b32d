"""The spouts of transactional topologies, after Storm's ITransactionalSpout, IPartitionedTransactionalSpout and
IOpaquePartitionedTransactionalSpout: classes with a coordinator and an emitter, as Storm's documents write them.

One difference from Storm: coordinator and emitter live for one batch only. So the beginning of a batch comes from the
metadata before it, not from what an object remembers. Metadata is a JSON value, or a dataclass of such values,
named in `metadata_class`. In the TransactionAttempt of an emitter, `attempt` is `NO_ATTEMPT`: all attempts have the
same batch.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Generic, TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.operations.api import TransactionAttempt
from airflow_trident.storm.bolts import BatchOutputCollector, Component, TopologyContext
from airflow_trident.types import Json

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
