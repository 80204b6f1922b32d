"""The spouts of transactional topologies, after Storm's ITransactionalSpout, IPartitionedTransactionalSpout and
IOpaquePartitionedTransactionalSpout: classes with a coordinator and an emitter, as Storm's documents write them.

What differs from Storm: coordinator and emitter live for one batch, not for ever, so where a batch begins comes from
the metadata before it and not from what an object remembers. Metadata is whatever JSON can hold, or a dataclass of
that, named in `metadata_class`. `attempt` of the TransactionAttempt that an emitter gets is `NO_ATTEMPT`: a batch is
the same in each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Generic, TypeVar

from airflow_trident.closing import Closing
from airflow_trident.operations.api import TransactionAttempt
from airflow_trident.operations.bolts import BatchOutputCollector, Component, TopologyContext
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
        """The metadata of the batch after `prev_metadata` (None: of the first). None: nothing is new, nothing
        begins."""


class SpoutEmitter(Closing, Generic[X]):
    """Emits batches (Storm: ITransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_batch(self, tx: TransactionAttempt, coordinator_meta: X, collector: BatchOutputCollector) -> None:
        """Emit this task's part of the batch, the same tuples for the same txid and metadata."""

    def cleanup_before(self, txid: int) -> None:
        """All transactions below `txid` are committed."""


class PartitionCoordinator(_AnyCoordinator):
    """Knows how many partitions there are (Storm: IPartitionedTransactionalSpout.Coordinator)."""

    @abstractmethod
    def num_partitions(self) -> int: ...


class PartitionEmitter(Closing, Generic[X]):
    """Emits the parts of batches (Storm: IPartitionedTransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_partition_batch_new(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, last_partition_meta: X | None
    ) -> X:
        """Choose the next part of a partition, emit it, and give its metadata.

        The coordinator of the topology calls it, and only counts what is emitted: nothing emitted, nothing is new.
        """

    @abstractmethod
    def emit_partition_batch(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, partition_meta: X
    ) -> None:
        """Emit the part with this metadata again."""


class OpaqueCoordinator(_AnyCoordinator):
    """Storm: IOpaquePartitionedTransactionalSpout.Coordinator."""


class OpaqueEmitter(Closing, Generic[X]):
    """Emits parts that need not be the same another time (Storm: IOpaquePartitionedTransactionalSpout.Emitter)."""

    @abstractmethod
    def emit_partition_batch(
        self, tx: TransactionAttempt, collector: BatchOutputCollector, partition: int, last_partition_meta: X | None
    ) -> X:
        """Emit what is behind the part with `last_partition_meta` now, and give its metadata.

        It is called when an attempt begins, and where that attempt's tuples are processed. There, if more has come
        meanwhile, the first tuples must be the same; else the attempt fails, and the next one takes what is there then.
        """

    @abstractmethod
    def num_partitions(self) -> int: ...


class _TransactionalComponent(Component, Generic[X]):
    metadata_class: type[X] | None = None
    """A dataclass that metadata comes as; None: as plain JSON."""

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
    ITransactionalSpout, BaseTransactionalSpout). It must give the same batch for the same txid."""

    Coordinator = SpoutCoordinator
    Emitter = SpoutEmitter

    @abstractmethod
    def get_coordinator(self, conf: Mapping[str, Any], context: TopologyContext) -> SpoutCoordinator[X]: ...

    @abstractmethod
    def get_emitter(self, conf: Mapping[str, Any], context: TopologyContext) -> SpoutEmitter[X]: ...


class PartitionedTransactionalSpout(_TransactionalComponent[X]):
    """A source with partitions, each with metadata of its own (Storm: IPartitionedTransactionalSpout,
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
