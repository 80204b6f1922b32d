"""The spout without promises, after Storm's IBatchSpout: each attempt may give other rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout, not_metadata_of
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import Json

if TYPE_CHECKING:
    import pyarrow as pa


class BatchSpout(Spout):
    """A source that cannot give a batch again, used as it is: a repeated attempt may lose or double records. Only for a
    ``Topology(name, exactly_once=False)``; :class:`SpooledSpout` makes such a source exact."""

    kind = SpoutKind.NON_TRANSACTIONAL

    @abstractmethod
    def has_more(self) -> bool:
        """Should another transaction begin?"""

    @abstractmethod
    def emit_batch(self, batch: int) -> Iterator[pa.RecordBatch]:
        """The rows of batch number `batch` (1, 2, ...). Called once per attempt, where the data is processed."""

    def ack(self, batch: int) -> None:
        """The transaction with this batch is committed (Storm: IBatchSpout.ack). May be called again."""

    def coordinator(self) -> BatchCoordinator:
        return (BatchCoordinator if type(self).ack is BatchSpout.ack else _Acknowledging)(self)

    def emitter(self) -> BatchEmitter:
        return BatchEmitter(self)


@dataclass(frozen=True)
class BatchCoordinator(Coordinator):
    """Metadata: ``{"batch": number}``."""

    spout: BatchSpout

    def is_ready(self, previous: Json) -> bool:
        return self.spout.has_more()

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        last = 0 if previous is None else _number(previous)
        return {"batch": last + 1} if self.spout.has_more() else None


class _Acknowledging(BatchCoordinator):
    def success(self, txid: int, metadata: Json) -> None:
        self.spout.ack(_number(metadata))


@dataclass(frozen=True)
class BatchEmitter(Emitter):
    """One split, because nothing is known about the batch before it is read."""

    spout: BatchSpout

    def splits(self, metadata: Json) -> list[Split]:
        return [Split(0, _number(metadata))]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, int)
        return self.spout.emit_batch(split.body)


def _number(metadata: Json) -> int:
    if isinstance(metadata, dict) and metadata.keys() == {"batch"}:
        number = metadata["batch"]
        if isinstance(number, int) and number >= 1:
            return number
    raise not_metadata_of("a BatchSpout", metadata)
