"""Spouts over partitions given in the program (Storm: MemoryTransactionalSpout, OpaqueMemoryTransactionalSpout): for
tests, examples and notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.partitioned_spout import PartitionedSpout
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.io.arrow import fitting, rows_to_table
from airflow_trident.operations.calls.infer import type_of_annotation
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.metadata import NumberRange, read_back
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared, split_spec

if TYPE_CHECKING:
    import pyarrow as pa


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
        begin = _range(last)[1]
        end = min(begin + self._take, len(self._rows[partition]))
        return {"from": begin, "to": end} if end > begin else None

    def read_part(self, partition: str, part: Json) -> Iterator[pa.RecordBatch]:
        begin, end = _range(part)
        rows = self._rows.get(partition, ())
        if end > len(rows):
            raise SourceChangedError(
                f"partition {partition} of {self.describe()} has {len(rows)} tuples and the transaction recorded "
                f"those up to {end}",
                "Give it the tuples that it had.",
            )
        what = f"tuples of partition {partition} of {self.describe()} do not fit its fields"
        with fitting(what, self.schema, "Mend the tuples or the types."):
            table = rows_to_table(self.schema, list(rows[begin:end]))
        yield from table.to_batches()

    def lag(self, last: Mapping[str, Json]) -> Lag:
        return {"rows": sum(len(rows) - _range(last.get(name))[1] for name, rows in self._rows.items())}

    def describe(self) -> str:
        return f"{type(self).__name__}({len(self._rows)} partitions by {self._take})"


class OpaqueMemoryTransactionalSpout(MemoryTransactionalSpout):
    """Its partitions can be disabled (`set_disabled`): a batch that is emitted again then has only the others."""

    kind = SpoutKind.OPAQUE

    def __init__(self, partitions: Mapping[int, Sequence[Sequence[Any]]], fields: FieldSpec, take_amount: int) -> None:
        super().__init__(partitions, fields, take_amount)
        self._disabled: set[str] = set()

    def set_disabled(self, partition: int, disabled: bool) -> None:
        """Make a partition unreachable, or reachable again, in this process."""
        (self._disabled.add if disabled else self._disabled.discard)(str(partition))

    def partitions(self) -> Collection[str]:
        return self._rows.keys() - self._disabled


def _range(metadata: Json) -> tuple[int, int]:
    if metadata is None:
        return 0, 0
    found = read_back(NumberRange, metadata, "a MemoryTransactionalSpout")
    return found.begin, found.end
