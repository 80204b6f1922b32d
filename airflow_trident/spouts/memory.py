"""A spout of rows given in the program, like Trident's FixedBatchSpout: for tests, examples and notebooks.

Spouts over partitions given in the program (Storm: MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout): for
tests, examples and notebooks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.partitioned_spout import PartitionedSpout
from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.io.arrow import fitting, rows_to_table
from airflow_trident.names import require_counts
from airflow_trident.operations.user_functions import type_of_annotation
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
        require_counts("FixedBatchSpout", max_batch_size=max_batch_size, splits=splits)
        _require_list(rows)
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
        return _numbers(previous, "a FixedBatchSpout")[1] < self.total_rows

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        begin = _numbers(previous, "a FixedBatchSpout")[1]
        if begin >= self.total_rows:
            return None
        return {"from": begin, "to": min(begin + self.max_batch_size, self.total_rows)}

    def lag(self, position: Json) -> Lag:
        return {"rows": max(0, self.total_rows - _numbers(position, "a FixedBatchSpout")[1])}


@dataclass(frozen=True)
class FixedEmitter(Emitter):
    """Contains the rows."""

    row_schema: Schema
    rows: tuple[tuple[Any, ...], ...]
    parts: int

    def splits(self, metadata: Json) -> list[Split]:
        begin, end = _numbers(metadata, "a FixedBatchSpout")
        size = max(1, -(-(end - begin) // self.parts))
        starts = range(begin, end, size)
        return [Split(index, {"from": at, "to": min(at + size, end)}) for index, at in enumerate(starts)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        begin, end = _numbers(split.body, "a FixedBatchSpout")
        if end > len(self.rows):
            raise SourceChangedError(
                f"FixedBatchSpout has {len(self.rows)} rows and the transaction recorded rows {begin} to {end - 1}",
                "Give it the rows that it had.",
            )
        problem = f"rows {begin} to {end - 1} of FixedBatchSpout do not fit its fields"
        with fitting(problem, self.row_schema, "Mend the rows or the types."):
            table = rows_to_table(self.row_schema, list(self.rows[begin:end]))
        yield from table.to_batches()


def _numbers(metadata: Json, spout: str) -> tuple[int, int]:
    """From where to where; nothing before the first transaction. `spout`: the kind that wrote it."""
    if metadata is None:
        return 0, 0
    numbers = read_back(NumberRange, metadata, spout)
    return numbers.begin, numbers.end


def _require_list(rows: Any) -> None:
    """:raises ConfigurationError: they are no list, which a text or a mapping would be taken for."""
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise ConfigurationError(f"FixedBatchSpout with rows={rows!r:.80}", "Give a list of rows.")


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


class MemoryTransactionalSpout(PartitionedSpout):
    """Takes up to `take_amount` tuples of every partition into each batch.

    ``MemoryTransactionalSpout({0: [("cat",), ("dog",)], 1: [("cow",)]}, "word string", 1)``

    :param partitions: number of the partition -> its tuples.
    :param fields: of the tuples; a type that is not written comes from the first tuple.
    :raises ConfigurationError: a tuple does not have one value for each field, or `take_amount` is below 1.
    """

    schema: Schema = ()

    def __init__(self, partitions: Mapping[int, Sequence[Sequence[Any]]], fields: FieldSpec, take_amount: int) -> None:
        width = len(split_spec(fields))
        self._rows = {str(number): tuple(map(tuple, rows)) for number, rows in partitions.items()}
        for number, rows in self._rows.items():
            for row in rows:
                if len(row) != width:
                    raise ConfigurationError(
                        f"{type(self).__name__}: partition {number} has {row!r} where there are {width} fields",
                        "Give every tuple one value per field.",
                    )
        if take_amount < 1:
            raise ConfigurationError(f"{type(self).__name__} takes {take_amount} tuples", "Take at least 1.")
        first = next((row for rows in self._rows.values() for row in rows), ())
        self.schema = parse_declared(fields, [type_of_annotation(type(value)) for value in first])
        self._take = take_amount

    def partitions(self) -> Collection[str]:
        return self._rows.keys()

    def next_part(self, partition: str, last: Json) -> Json:
        begin = _numbers(last, "a MemoryTransactionalSpout")[1]
        end = min(begin + self._take, len(self._rows[partition]))
        return {"from": begin, "to": end} if end > begin else None

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        begin, end = _numbers(part, "a MemoryTransactionalSpout")
        rows = self._rows.get(partition, ())
        if end > len(rows):
            raise SourceChangedError(
                f"partition {partition} of {self.describe()} has {len(rows)} tuples and the transaction recorded "
                f"those up to {end}",
                "Give it the tuples that it had.",
            )
        problem = f"tuples of partition {partition} of {self.describe()} do not fit its fields"
        with fitting(problem, self.schema, "Mend the tuples or the types."):
            table = rows_to_table(self.schema, list(rows[begin:end]))
        yield from table.to_batches()

    def lag(self, last: Mapping[str, Json]) -> Lag:
        return {
            "rows": sum(
                len(rows) - _numbers(last.get(name), "a MemoryTransactionalSpout")[1]
                for name, rows in self._rows.items()
            )
        }

    def describe(self) -> str:
        return f"{type(self).__name__}({len(self._rows)} partitions by {self._take})"


class OpaqueMemoryTransactionalSpout(MemoryTransactionalSpout):
    """Its partitions can be disabled (`set_disabled`): a batch that is emitted again then has only the others."""

    opaque = True

    def __init__(self, partitions: Mapping[int, Sequence[Sequence[Any]]], fields: FieldSpec, take_amount: int) -> None:
        super().__init__(partitions, fields, take_amount)
        self._disabled: set[str] = set()

    def set_disabled(self, partition: int, disabled: bool) -> None:
        """Make a partition unreachable, or reachable again, in this process."""
        (self._disabled.add if disabled else self._disabled.discard)(str(partition))

    def partitions(self) -> Collection[str]:
        return self._rows.keys() - self._disabled
