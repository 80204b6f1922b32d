"""DeltaSpout in a topology that is bound to partitions: the files of one partition of the table, in one version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.contracts.bound_spout import KeyedCoordinator
from airflow_trident.contracts.spout import Emitter, PartitionChange, Split, Spout, not_metadata_of
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.io.datasets import Dataset
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.spouts.delta.log import DeltaLog
from airflow_trident.spouts.table_log import AddedFile, Span, unlike_columns
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class BoundDelta(Spout):
    """`follower`: the spout that would follow the table; it reads the files. `column`: of the table's partitions."""

    follower: Spout
    open_log: Callable[[], DeltaLog]
    column: str
    partitions: Partitions

    @property
    def schema(self) -> Schema:
        return self.follower.schema

    def coordinator(self) -> BoundDeltaCoordinator:
        return BoundDeltaCoordinator(self.open_log, self.column, self.schema)

    def emitter(self) -> BoundDeltaEmitter:
        return BoundDeltaEmitter(self.follower.emitter(), self.column, self.partitions)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return self.follower.lineage_datasets(metadata)

    @property
    def adapts(self) -> str:
        return "DeltaSpout"

    def describe(self) -> str:
        return f"{self.follower.describe()[:-1]}, column {self.column})"


@dataclass(frozen=True)
class BoundDeltaCoordinator(KeyedCoordinator):
    """Metadata: ``{"partition": key, "span": span, "files": n, "digest": text}``: the span is of a whole version, the
    digest of the partition's files in it."""

    open_log: Callable[[], DeltaLog]
    column: str
    row_schema: Schema

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """
        :raises ConfigurationError: the table lacks a column, or is not partitioned by `column`.
        """
        log = self.open_log()
        if why := unlike_columns(self.row_schema, log.columns()):
            raise ConfigurationError(f"{log.what} has {why}", "Correct the spout's fields.")
        version = log.snapshot_at()
        every = log.whole(version, None).added
        if any(self.column not in file.partition for file in every):
            raise ConfigurationError(
                f"{log.what} is not partitioned by {self.column!r}", "Name a column of its partitions."
            )
        files = [file for file in every if _text(file.partition[self.column]) == str(partition.value)]
        if not files:
            return None
        span = Span(
            table_id=log.table_id,
            begin=(version, 0),
            end=(version + 1, 0),
            snapshot=version,
            bytes=sum(file.bytes for file in files),
            mark=log.mark_of(version),
        )
        digest = _digest(files, log.kept_rows(span))
        return {"partition": partition.key, "span": span.to_json(), "files": len(files), "digest": digest}

    def compared(self, before: Json, now: Json) -> PartitionChange:
        former, present = _recorded(before), _recorded(now)
        if former["digest"] == present["digest"]:
            return PartitionChange()
        return PartitionChange(other=(f"{former['files']} files then, {present['files']} now",))

    def size_bytes(self, metadata: Json) -> int | None:
        return Span.of(_recorded(metadata)["span"], "a DeltaSpout").bytes


@dataclass(frozen=True)
class BoundDeltaEmitter(Emitter):
    """`reader`: of the whole version."""

    is_fitted: ClassVar[bool] = True
    reader: Emitter
    column: str
    partitions: Partitions

    def splits(self, metadata: Json) -> list[Split]:
        """
        :raises SourceChangedError: the version no longer exists, or has other files.
        """
        record = _recorded(metadata)
        value = str(self.partitions.parse(record["partition"]).value)
        splits = [split for split in self.reader.splits(record["span"]) if _value(split, self.column) == value]
        if len(splits) != record["files"]:
            raise SourceChangedError(
                f"the partition {record['partition']} has {len(splits)} files in the recorded version of the table, "
                f"and {record['files']} were recorded",
                "Ask for the partition again.",
            )
        return [replace(split, index=index) for index, split in enumerate(splits)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        return self.reader.read(split)

    def name_of(self, split: Split) -> str:
        return self.reader.name_of(split)


def _value(split: Split, column: str) -> Json:
    body: Any = split.body
    return body["partition"].get(column)  # type: ignore[no-any-return]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _digest(files: list[AddedFile], kept: Any) -> str:
    """Of the files, in any order, with their deletion vectors."""
    content = sorted([file.path, file.bytes, str(kept.get(file.path))] for file in files)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _recorded(metadata: Json) -> dict[str, Any]:
    if isinstance(metadata, dict) and metadata.keys() == {"partition", "span", "files", "digest"}:
        return metadata
    raise not_metadata_of("a DeltaSpout of a partition", metadata)
