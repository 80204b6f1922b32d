"""Queries of states, after Trident's QueryFunction, and the built-in ones: MapGet, SnapshotGet, TupleCollectionGet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from airflow_trident.errors import FieldError
from airflow_trident.operations.api import Operation
from airflow_trident.types import WHOLE_TYPES, Field, Schema, ddl

Row = tuple[Any, ...]


class ReadableState(Protocol):
    """A query's view of a state: what is committed at the time of the read. Keys and values are tuples of fields."""

    keys: Schema
    values: Schema

    def multi_get(self, keys: Sequence[Row]) -> list[Row | None]:
        """The value of each key, None where there is none (Trident: ReadOnlyMapState)."""
        ...

    def get(self) -> Row | None:
        """The one row of a state without keys (Trident: ReadOnlySnapshottable)."""
        ...

    def get_tuples(self) -> Iterator[Row]:
        """Key and value fields of every key (Trident: ITupleCollection)."""
        ...


class QueryFunction(Operation, ABC):
    """Queries a state for the tuples of a partition (Trident: QueryFunction).

    First `prepare`, then `batch_retrieve` for all tuples (on Spark for some thousands at a time), then `execute` for
    each. Without tuples the last two are not called.
    """

    @abstractmethod
    def batch_retrieve(self, state: ReadableState, args: Sequence[Row]) -> Sequence[Any]:
        """One result for each of `args`, in their order. `args`: the values of the query's input fields."""

    @abstractmethod
    def execute(self, args: Row, result: Any) -> Iterable[Any]:
        """What to append to a tuple, none to many times: a bare value for one field, else a tuple of values."""

    def result_types(self, keys: Schema, values: Schema) -> tuple[str, ...]:
        """The output types, if they follow from the state's; else `output_types` or the declared fields say them."""
        return ()

    def require_fit(self, keys: Schema, inputs: Schema) -> None:
        """Called while the DAG is built.

        :raises FieldError: a state with these key fields cannot be queried by these input fields.
        """


class _ValueGet(QueryFunction):
    """Appends the value fields of one row."""

    def execute(self, args: Row, result: Row) -> Iterable[Row]:
        yield result

    def result_types(self, keys: Schema, values: Schema) -> tuple[str, ...]:
        return tuple(field.type for field in values)


class MapGet(_ValueGet):
    """The value fields of the key in the input fields; null if the state has no such key."""

    def batch_retrieve(self, state: ReadableState, args: Sequence[Row]) -> Sequence[Row]:
        nothing = (None,) * len(state.values)
        return [nothing if found is None else found for found in state.multi_get(list(args))]

    def require_fit(self, keys: Schema, inputs: Schema) -> None:
        own = type(self).batch_retrieve is not MapGet.batch_retrieve
        if not own and [_kind(field) for field in inputs] != [_kind(field) for field in keys]:
            raise FieldError(
                f"{type(self).__name__} got ({ddl(inputs)}), and the state's key is ({ddl(keys)})",
                "Name a field of the same type for each field of the key.",
            )


class SnapshotGet(_ValueGet):
    """The one row of a state without keys, the same for every tuple of the partition; null if there is none."""

    def batch_retrieve(self, state: ReadableState, args: Sequence[Row]) -> Sequence[Row]:
        found = state.get()
        return [(None,) * len(state.values) if found is None else found] * len(args)

    def require_fit(self, keys: Schema, inputs: Schema) -> None:
        if keys and type(self).batch_retrieve is SnapshotGet.batch_retrieve:
            raise FieldError(
                f"{type(self).__name__} asks for the one row of a state, and this one has the key ({ddl(keys)})",
                "Use MapGet() with the fields of a key, or TupleCollectionGet() for all rows.",
            )


class TupleCollectionGet(QueryFunction):
    """Key and value fields of every row of the state, for every tuple."""

    def batch_retrieve(self, state: ReadableState, args: Sequence[Row]) -> Sequence[list[Row]]:
        return [list(state.get_tuples())] * len(args)

    def execute(self, args: Row, result: list[Row]) -> Iterable[Row]:
        yield from result

    def result_types(self, keys: Schema, values: Schema) -> tuple[str, ...]:
        return tuple(field.type for field in (*keys, *values))


def _kind(field: Field) -> str:
    """All whole numbers are one kind: a key is found whatever their types are."""
    return "long" if field.type in WHOLE_TYPES else field.type
