"""A spout as a source of a topology that is bound to partitions: its rows get the partition column.

The metadata of a batch are ``{"partition": key, "batch": metadata}``, with what `Coordinator.partition` of the spout
gave. So an emitter knows from its metadata alone which partition its rows are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import (
    BatchFrame,
    Coordinator,
    Emitter,
    PartitionChange,
    SparkRead,
    Split,
    Spout,
    not_metadata_of,
)
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.io.arrow import arrow_type
from airflow_trident.io.datasets import Dataset
from airflow_trident.protocol.partition_keys import BOUND_METADATA
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import Field, Json, Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa


def bound(stream: str, spout: Spout, partitions: Partitions) -> BoundSpout:
    """:raises PlanError: the spout has no data of a partition, or already has a field like the partition column."""
    if spout.kind is not SpoutKind.TRANSACTIONAL:
        raise PlanError(
            f"stream {stream!r} of a topology that is bound to partitions begins at a {spout.kind} spout, "
            f"{spout.describe()}",
            "Use a transactional one: it reads the same rows of a partition again.",
        )
    fields = spout.schema if spout.spark_read is None else spout.spark_read.fields
    if partitions.column in names_of(fields):
        raise PlanError(
            f"stream {stream!r} has the field {partitions.column!r}, as the partition column",
            "Leave it out of the spout's fields, or give Partitions(column=...) another name.",
        )
    return BoundSpout(spout.bound(partitions), partitions)


@dataclass(frozen=True)
class BoundSpout(Spout):
    """`spout`: one whose coordinator has `Coordinator.partition`."""

    spout: Spout
    partitions: Partitions

    @property
    def schema(self) -> Schema:
        return (*self.spout.schema, self.partitions.field)

    def coordinator(self) -> BoundCoordinator:
        return BoundCoordinator(self.spout.coordinator(), self.partitions)

    def emitter(self) -> BoundEmitter:
        return BoundEmitter(self.spout.emitter(), self.partitions, names_of(self.schema))

    @property
    def spark_read(self) -> SparkRead | None:
        """Its function gets the partition. Rows that have the partition column keep what is in it."""
        read = self.spout.spark_read
        if read is None:
            return None
        return replace(
            read,
            fields=(*read.fields, self.partitions.field),
            position_of=partial(_partition_with_data, self.partitions),
            completed=partial(_with_partition, self.partitions),
        )

    @property
    def notes(self) -> tuple[str, ...]:
        return self.spout.notes

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        inner = _batch(metadata)
        return () if inner is None else self.spout.lineage_datasets(inner)

    @property
    def adapts(self) -> str:
        return self.spout.adapts or type(self.spout).__name__

    def describe(self) -> str:
        return f"{self.spout.describe()} by {self.partitions.step}"


@dataclass(frozen=True)
class KeyedFollower(Spout):
    """Reads one partition of the log that the spout `follower` would follow. It has the fields of that spout."""

    follower: Spout

    @property
    def schema(self) -> Schema:
        return self.follower.schema

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return self.follower.lineage_datasets(metadata)

    @property
    def adapts(self) -> str:
        return type(self.follower).__name__


class KeyedCoordinator(Coordinator):
    """Never says what is new: a bound topology asks for a partition."""

    def is_ready(self, previous: Json) -> bool:
        raise _asked_what_is_new()

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        raise _asked_what_is_new()


@dataclass(frozen=True)
class BoundCoordinator(KeyedCoordinator):
    coordinator: Coordinator
    partitions: Partitions

    def partition(self, partition: Partition, before: Json = None) -> Json:
        former = None if before is None else _batch(before)
        return {"partition": partition.key, "batch": self.coordinator.partition(partition, former)}

    def accept_source(self, metadata: Json) -> Json:
        return self.partition(self.partitions.parse(_key(metadata)))

    def compared(self, before: Json, now: Json) -> PartitionChange:
        former, present = _batch(before), _batch(now)
        if former is None or present is None:
            if former is present:
                return PartitionChange()
            return PartitionChange(gone=("all of it",)) if present is None else PartitionChange(new=("all of it",))
        return self.coordinator.compared(former, present)

    def expired(self, metadata: Json) -> tuple[str, ...]:
        inner = _batch(metadata)
        return () if inner is None else self.coordinator.expired(inner)

    def size_bytes(self, metadata: Json) -> int | None:
        inner = _batch(metadata)
        return 0 if inner is None else self.coordinator.size_bytes(inner)

    def close(self) -> None:
        self.coordinator.close()


def has_data(metadata: Json) -> bool:
    """Has a stream of a bound topology any data in its batch?"""
    return _batch(metadata) is not None


def partition_of(metadata: Mapping[str, Json]) -> str:
    """The key of the partition of a transaction, by the metadata of its streams.

    :raises SourceChangedError: they are not of a bound topology, or of several partitions.
    """
    keys = {_key(stream_metadata) for stream_metadata in metadata.values()}
    if len(keys) != 1:
        raise not_metadata_of("streams of one partition", dict(metadata))
    return keys.pop()


@dataclass(frozen=True)
class BoundEmitter(Emitter):
    """`fields`: what it gives, in this order."""

    emitter: Emitter
    partitions: Partitions
    fields: tuple[str, ...]

    @property
    def is_fitted(self) -> bool:  # type: ignore[override]
        return self.emitter.is_fitted

    def splits(self, metadata: Json) -> list[Split]:
        inner = _batch(metadata)
        if inner is None:
            return []
        return splits_of_key(_key(metadata), self.emitter.splits(inner))

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        key, inner = key_and_split(split)
        column, value = self._column, self._value(key)
        kind = arrow_type(column.type)
        for batch in self.emitter.read(inner):
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            columns[column.name] = pa.repeat(pa.scalar(value, kind), batch.num_rows)
            yield pa.RecordBatch.from_arrays([columns[name] for name in self.fields], names=list(self.fields))

    def name_of(self, split: Split) -> str:
        return self.emitter.name_of(key_and_split(split)[1])

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        inner = _batch(metadata)
        frame = None if inner is None else self.emitter.data_frame(session, inner)
        if frame is None:
            return None
        return replace(frame, frame=_with_partition(self.partitions, frame.frame, metadata).select(*self.fields))

    def is_everywhere(self, metadata: Json) -> bool:
        inner = _batch(metadata)
        return inner is not None and self.emitter.is_everywhere(inner)

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        inner = self.emitter.prune(tuple(name for name in fields if name != self._column.name))
        return self if inner is self.emitter else replace(self, emitter=inner, fields=fields)

    @property
    def _column(self) -> Field:
        return self.partitions.field

    def _value(self, key: str) -> date | str:
        return self.partitions.parse(key).value


def _partition_with_data(partitions: Partitions, metadata: Json) -> Partition | None:
    return partitions.parse(_key(metadata)) if has_data(metadata) else None


def _with_partition(partitions: Partitions, frame: Any, metadata: Json) -> Any:
    """The DataFrame with the partition column."""
    column, value = partitions.field, partitions.parse(_key(metadata)).value
    if column.name.casefold() in map(str.casefold, frame.columns):
        return frame
    literal = f"DATE'{value}'" if column.type == "date" else f"'{value}'"
    return frame.selectExpr("*", f"{literal} AS `{column.name}`")


def _asked_what_is_new() -> ConfigurationError:
    return ConfigurationError(
        "a topology that is bound to partitions was asked what is new", "Ask for a partition by its key."
    )


def _parts(metadata: Json) -> tuple[str, Json]:
    if isinstance(metadata, dict) and metadata.keys() == BOUND_METADATA:
        key = metadata["partition"]
        if isinstance(key, str):
            return key, metadata["batch"]
    raise not_metadata_of("a spout of a bound topology", metadata)


def _key(metadata: Json) -> str:
    return _parts(metadata)[0]


def _batch(metadata: Json) -> Json:
    return _parts(metadata)[1]


def splits_of_key(key: str, splits: Iterable[Split]) -> list[Split]:
    """The splits with the key of their partition, which :func:`key_and_split` gives back."""
    return [replace(split, body={"partition": key, "split": split.body}) for split in splits]


def key_and_split(split: Split) -> tuple[str, Split]:
    assert isinstance(split.body, dict)
    key = split.body["partition"]
    assert isinstance(key, str)
    return key, replace(split, body=split.body["split"])
