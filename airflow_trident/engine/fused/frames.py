"""A batch of rows on its way through a fused pass: columns, each an Arrow array until Python needs its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.io.arrow import arrow_type, columns_of, python_values
from airflow_trident.types import Schema

if TYPE_CHECKING:
    import pyarrow as pa

Column: TypeAlias = "pa.Array | list[Any]"
Guard: TypeAlias = Callable[[Iterator[Any]], Iterator[Any]]

BATCH_ROWS = 65_536
"""The most rows of an output batch: batches cross to the JVM one by one."""


class Frame:
    """Named columns of equal length. A column that no function reads stays in Arrow from end to end.

    `guard`: wraps the iteration over tuples, if set.
    """

    __slots__ = ("_columns", "guard", "rows")

    def __init__(self, rows: int, columns: dict[str, Column]) -> None:
        self.rows = rows
        self.guard: Guard | None = None
        self._columns = columns

    @classmethod
    def of_batch(cls, batch: pa.RecordBatch, keep: frozenset[str]) -> Frame:
        columns: dict[str, Column] = {
            name: batch.column(place) for place, name in enumerate(batch.schema.names) if name in keep
        }
        return cls(batch.num_rows, columns)

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Any, ...]], names: Sequence[str]) -> Frame:
        return cls(len(rows), dict(zip(names, columns_of(rows, len(names)), strict=True)))

    def values(self, name: str) -> list[Any]:
        """The column as Python values; converted once."""
        column = self._columns[name]
        if not isinstance(column, list):
            column = self._columns[name] = python_values(column)
        return column

    def tuples(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The rows of some columns; without names, as many empty tuples as rows."""
        rows = zip(*(self.values(name) for name in names), strict=True) if names else repeat((), self.rows)
        return rows if self.guard is None else self.guard(rows)

    def row(self, names: Sequence[str], index: int) -> tuple[Any, ...]:
        return tuple(self.values(name)[index] for name in names)

    def arrow(self, name: str, type_text: str) -> pa.Array:
        """The column as Arrow of the given type.

        :raises pyarrow.ArrowInvalid, pyarrow.ArrowTypeError: a value does not fit.
        """
        import pyarrow as pa

        column, wanted = self._columns[name], arrow_type(type_text)
        if isinstance(column, list):
            return pa.array(column, type=wanted)
        return column if column.type == wanted else column.cast(wanted)

    def take(self, indices: Any, keep: frozenset[str]) -> Frame:
        """The rows at a numpy array of indices, with the columns in `keep`."""
        import pyarrow as pa

        places = None
        columns: dict[str, Column] = {}
        for name, column in self._columns.items():
            if name not in keep:
                continue
            if isinstance(column, list):
                places = indices.tolist() if places is None else places
                columns[name] = [column[place] for place in places]
            else:
                columns[name] = column.take(pa.array(indices))
        return Frame(len(indices), columns)

    def only(self, keep: frozenset[str]) -> Frame:
        return Frame(self.rows, {name: column for name, column in self._columns.items() if name in keep})

    def with_columns(self, columns: dict[str, Column]) -> Frame:
        return Frame(self.rows, {**self._columns, **columns})

    def batches(self, schema: Schema) -> Iterator[pa.RecordBatch]:
        """Record batches of the schema with at most BATCH_ROWS rows each; none if the frame has no rows."""
        import pyarrow as pa

        if not self.rows:
            return
        arrays = [self.arrow(field.name, field.type) for field in schema]
        whole = pa.RecordBatch.from_arrays(arrays, names=[field.name for field in schema])
        for start in range(0, self.rows, BATCH_ROWS):
            yield whole.slice(start, BATCH_ROWS)
