"""A staged batch in pieces, for states that need not hold all of it in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
