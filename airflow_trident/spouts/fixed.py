"""A spout of rows given in the program, like Trident's FixedBatchSpout: for tests, examples and notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.io.arrow import fitting, rows_to_table
from airflow_trident.operations.calls.infer import type_of_annotation
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.spouts.metadata import NumberRange, read_back
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared, split_spec

if TYPE_CHECKING:
    import pyarrow as pa


class FixedBatchSpout(Spout):
    """Emits `rows` in batches of `max_batch_size`, once.

    :param fields: ``"sentence string, n long"``; a type that is not written comes from the first row that has a value
        in that column.
    :param rows: tuples or lists of values; with only one field, bare values or tuples of one.
    :param splits: into how many splits a batch is cut.
    :raises ConfigurationError: a row does not have one value for each field, or a number is below 1.
    """

    schema: Schema = ()

    def __init__(self, fields: FieldSpec, rows: Sequence[Any], max_batch_size: int = 1000, *, splits: int = 2) -> None:
        if max_batch_size < 1 or splits < 1:
            raise ConfigurationError(
                f"FixedBatchSpout with max_batch_size={max_batch_size}, splits={splits}", "Both must be at least 1."
            )
        width = len(split_spec(fields))
        self._rows = tuple(_row(row, index, width) for index, row in enumerate(rows))
        self.schema = parse_declared(fields, [_type_of_column(self._rows, place) for place in range(width)])
        self._max_batch_size = max_batch_size
        self._splits = splits

    def coordinator(self) -> FixedCoordinator:
        return FixedCoordinator(len(self._rows), self._max_batch_size)

    def emitter(self) -> FixedEmitter:
        return FixedEmitter(self.schema, self._rows, self._splits)

    def describe(self) -> str:
        return f"FixedBatchSpout({len(self._rows)} rows by {self._max_batch_size})"


@dataclass(frozen=True)
class FixedCoordinator(Coordinator):
    """Metadata: ``{"from": first row, "to": row after the last}``."""

    total_rows: int
    max_batch_size: int

    def is_ready(self, previous: Json) -> bool:
        return _range(previous)[1] < self.total_rows

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        begin = _range(previous)[1]
        if begin >= self.total_rows:
            return None
        return {"from": begin, "to": min(begin + self.max_batch_size, self.total_rows)}

    def lag(self, position: Json) -> Lag:
        return {"rows": max(0, self.total_rows - _range(position)[1])}


@dataclass(frozen=True)
class FixedEmitter(Emitter):
    """Contains the rows."""

    row_schema: Schema
    rows: tuple[tuple[Any, ...], ...]
    parts: int

    def splits(self, metadata: Json) -> list[Split]:
        begin, end = _range(metadata)
        size = max(1, -(-(end - begin) // self.parts))
        starts = range(begin, end, size)
        return [Split(index, {"from": at, "to": min(at + size, end)}) for index, at in enumerate(starts)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        begin, end = _range(split.body)
        if end > len(self.rows):
            raise SourceChangedError(
                f"FixedBatchSpout has {len(self.rows)} rows and the transaction recorded rows {begin} to {end - 1}",
                "Give it the rows that it had.",
            )
        what = f"rows {begin} to {end - 1} of FixedBatchSpout do not fit its fields"
        with fitting(what, self.row_schema, "Mend the rows or the types."):
            table = rows_to_table(self.row_schema, list(self.rows[begin:end]))
        yield from table.to_batches()


def _range(metadata: Json) -> tuple[int, int]:
    if metadata is None:
        return 0, 0
    found = read_back(NumberRange, metadata, "a FixedBatchSpout")
    return found.begin, found.end


def _row(row: Any, index: int, width: int) -> tuple[Any, ...]:
    is_row = isinstance(row, tuple) or (isinstance(row, list) and width != 1)
    values = tuple(row) if is_row else (row,)
    if len(values) != width:
        raise ConfigurationError(
            f"row {index} of FixedBatchSpout has {len(values)} values and there are {width} fields: {row!r}",
            "Give every row one value per field.",
        )
    return values


def _type_of_column(rows: tuple[tuple[Any, ...], ...], place: int) -> str | None:
    for row in rows:
        if row[place] is not None:
            return type_of_annotation(type(row[place]))
    return None
