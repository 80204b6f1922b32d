"""Staged batches in pieces, or as files, for states that need not hold all of a batch in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedBatch:
    """A staged batch that is read while it is applied, so it may be larger than the memory.

    `schema`: its fields, `StateSpec.staged`. `pieces`: each call gives all its rows as record batches, from the first
    one again; it raises StagingError if they cannot be read.
    """

    schema: Schema
    num_rows: int
    pieces: Callable[[], Iterator[pa.RecordBatch]]

    @classmethod
    def of(cls, schema: Schema, table: pa.Table) -> StagedBatch:
        """A batch that is in memory already."""
        return cls(schema=schema, num_rows=table.num_rows, pieces=lambda: iter(table.to_batches()))

    def table(self) -> pa.Table:
        """All rows."""
        import pyarrow as pa

        return pa.Table.from_batches(self.pieces(), arrow_schema(self.schema))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFiles:
    """A staged batch that nobody has read: Parquet files with the fields `StateSpec.staged`, as absolute paths. A
    moment ago they existed with the staged sizes. `replaces`: for copy-on-write, what the processing phase found in the
    table; None: it did not look."""

    paths: tuple[str, ...]
    num_rows: int
    replaces: ReplacedFiles | None = None
