"""Rows of a partitioned table: a file has one value of each partition column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.io.grouped import grouped

if TYPE_CHECKING:
    import pyarrow as pa

_ONE = "one row"
"""A column. No field of a user can have this name."""
PartitionValues = tuple[Any, ...]
"""One value per partition column, as a Python value; None for null."""


def split_by(table: pa.Table, names: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """The rows of each partition; the whole table if there are no partitions. No rows give nothing."""
    import pyarrow as pa

    if not table.num_rows:
        return
    if not names:
        yield (), table
        return
    if table.select(names).group_by(list(names)).aggregate([]).num_rows > 1:
        table = table.sort_by([(name, "ascending") for name in names])
    one = table.append_column(_ONE, pa.repeat(1, table.num_rows))
    first = 0
    for *values, rows in zip(*(column.to_pylist() for column in grouped(one, names, [(_ONE, "sum")])), strict=True):
        yield tuple(values), table.slice(first, rows)
        first += rows


def values_in(footer: Any, names: Sequence[str]) -> PartitionValues | None:
    """The common value of all rows of a Parquet file in each of these columns, if its footer shows that there is one.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    found = [_only(footer, name) for name in names]
    return None if any(one is None for one in found) else tuple(one[0] for one in found if one is not None)


def _only(footer: Any, name: str) -> tuple[Any] | None:
    places = [place for place in range(footer.num_columns) if footer.schema.column(place).path == name]
    values: set[Any] = set()
    for number in range(footer.num_row_groups if places else 0):
        part = footer.row_group(number).column(places[0]).statistics
        if part is None or not part.has_null_count:
            return None
        if part.null_count == footer.row_group(number).num_rows:
            values.add(None)
        elif part.null_count or not part.has_min_max or part.min != part.max:
            return None
        else:
            values.add(part.min)
    return (values.pop(),) if len(values) == 1 else None
