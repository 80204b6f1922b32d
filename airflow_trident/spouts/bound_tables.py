"""TableSpout in a topology that is bound to partitions: the files of one partition of the table, in one version.

A batch is a span of that version which is narrowed to the partition's files, so the spout that would follow the table
reads it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_trident.contracts.bound_spout import KeyedCoordinator, KeyedFollower
from airflow_trident.contracts.spout import Emitter, PartitionChange, Spout, not_metadata_of
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.protocol.partitions import Partition, Partitions
from airflow_trident.spouts.table_log import AddedFile, Span, TableLog, require_columns
from airflow_trident.types import Json, Schema


def bound_table(spout: Spout, column: str, partitions: Partitions, open_log: Callable[[], TableLog]) -> BoundTable:
    """
    :param column: of the table's partitions, with the values of the partition column.
    :raises PlanError: nothing says which files are those of a partition.
    """
    if not column:
        raise PlanError(
            f"{spout.describe()} in a bound topology: nothing says which files are those of a {partitions.step}",
            "Name the partition column of the table, as in column='day'.",
        )
    return BoundTable(spout, column, open_log)


@dataclass(frozen=True)
class BoundTable(KeyedFollower):
    """`follower`: the spout that would follow the table; it reads the files."""

    column: str
    open_log: Callable[[], TableLog]

    def coordinator(self) -> BoundTableCoordinator:
        return BoundTableCoordinator(self.open_log, self.column, self.schema)

    def emitter(self) -> Emitter:
        return self.follower.emitter()

    def describe(self) -> str:
        return f"{self.follower.describe()[:-1]}, column {self.column})"


@dataclass(frozen=True)
class BoundTableCoordinator(KeyedCoordinator):
    """Metadata: those of a :class:`Span` of the whole version, narrowed to the partition, with `files`, their number,
    and `digest`, of the files."""

    open_log: Callable[[], TableLog]
    column: str
    row_schema: Schema

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """
        :raises ConfigurationError: the table lacks a column, or is not partitioned by `column`.
        """
        log = self.open_log()
        require_columns(log, self.row_schema)
        version = log.snapshot_at()
        if log.has_ids and log.head_id is None:
            return None  # nothing was ever written
        value = str(partition.value)
        try:
            files = [
                file
                for file in log.whole(version, log.head_id).added
                if log.partition_value(file, self.column) == value
            ]
        except LookupError:
            raise ConfigurationError(
                f"{log.what} is not partitioned by {self.column!r}", "Name a column of its partitions."
            ) from None
        if not files:
            return None
        span = Span(
            table_id=log.table_id,
            begin=(version, 0),
            end=(version + 1, 0),
            snapshot=version,
            ids=(None, log.head_id) if log.has_ids else None,
            bytes=sum(file.bytes for file in files),
            mark=log.mark_of(version),
            within=(self.column, value),
        )
        record = span.to_json()
        assert isinstance(record, dict)
        return {**record, "files": len(files), "digest": _digest(files, log.kept_rows(span))}

    def compared(self, before: Json, now: Json) -> PartitionChange:
        former, present = _recorded(before), _recorded(now)
        if former["digest"] == present["digest"]:
            return PartitionChange()
        return PartitionChange(other=(f"{former['files']} files then, {present['files']} now",))

    def size_bytes(self, metadata: Json) -> int | None:
        return _recorded(metadata).get("bytes")


def _digest(files: list[AddedFile], kept: Any) -> str:
    """Of the files, in any order, with their deletion vectors."""
    content = sorted([file.path, file.bytes, str(kept.get(file.path))] for file in files)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _recorded(metadata: Json) -> dict[str, Any]:
    if isinstance(metadata, dict) and {"column", "files", "digest"} <= metadata.keys():
        return metadata
    raise not_metadata_of("a TableSpout of a partition", metadata)
