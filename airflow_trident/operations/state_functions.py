"""Queries of states, after Trident's QueryFunction, and the built-in ones: MapGet, SnapshotGet, TupleCollectionGet.

Functions with their own state, after Storm's IStatefulBolt and BaseStatefulBolt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from airflow_trident.errors import FieldError
from airflow_trident.operations.interfaces import Operation
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
        return [nothing if values is None else values for values in state.multi_get(list(args))]

    def require_fit(self, keys: Schema, inputs: Schema) -> None:
        is_overridden = type(self).batch_retrieve is not MapGet.batch_retrieve
        if not is_overridden and [_kind(field) for field in inputs] != [_kind(field) for field in keys]:
            raise FieldError(
                f"{type(self).__name__} got ({ddl(inputs)}), and the state's key is ({ddl(keys)})",
                "Name a field of the same type for each field of the key.",
            )


class SnapshotGet(_ValueGet):
    """The one row of a state without keys, the same for every tuple of the partition; null if there is none."""

    def batch_retrieve(self, state: ReadableState, args: Sequence[Row]) -> Sequence[Row]:
        snapshot = state.get()
        return [(None,) * len(state.values) if snapshot is None else snapshot] * len(args)

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


K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class KeyValues(Protocol[K, V]):
    """A function's view of its state (Storm: KeyValueState). Keys and values are whatever JSON can hold.

    Reads see the function's own writes. Only the framework prepares, commits and rolls back.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, `default` if it has none."""

    def put(self, key: K, value: V) -> None: ...

    def delete(self, key: K) -> V | None:
        """Remove a key and return its value."""

    def iterator(self) -> Iterator[tuple[K, V]]:
        """Every key once, in no defined order."""


class StatefulFunction(Operation, ABC, Generic[K, V]):
    """A function that keeps a key-value state; `stream.stateful()` runs it in the commit phase, exactly once per batch.

    Each transaction calls a fresh copy of the object in each partition, in this order: `prepare`; after a crash
    `pre_rollback` or `pre_commit` for what was left; `init_state` with the state of the transaction before; `execute`
    for every tuple; `pre_prepare`; `pre_commit`; `cleanup`. Keep lasting data in the state, not in attributes. Writes
    of a failed attempt are dropped.

    A hook runs just before the step it is named after, at least once, so its effects elsewhere must be repeatable.
    `pre_prepare` may still write to the state; later hooks can only read it.
    """

    @abstractmethod
    def init_state(self, state: KeyValues[K, V]) -> None:
        """Called before the first tuple; keep `state` for `execute`."""

    @abstractmethod
    def execute(self, *values: Any) -> Any:
        """Process one tuple. With outputs it yields them, as `Function.execute` does; without it returns nothing."""

    def pre_prepare(self, txid: int) -> None:
        """The state's writes of `txid` are about to be prepared."""

    def pre_commit(self, txid: int) -> None:
        """What was prepared for `txid` is about to be committed."""

    def pre_rollback(self) -> None:
        """What was prepared is about to be dropped."""


class MakesStateful(ABC):
    """An object in the place of a stateful function, which makes the function for its place in a topology."""

    @abstractmethod
    def stateful_of(
        self, *, topology: str, name: str, source: str, fields: tuple[str, ...]
    ) -> tuple[StatefulFunction[Any, Any], Schema]:
        """The function, and the fields that it emits.

        :param name: of the state.
        :param source: the node whose tuples it gets.
        :param fields: their names.
        """


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """A function as a topology uses it. The key fields of a tuple choose one of `partitions`; each partition has its
    own state. The number of partitions is part of the definition: it decides which state holds a key."""

    function: StatefulFunction[Any, Any]
    partitions: int = 1

    def describe(self) -> str:
        return f"{self.name} in {self.partitions} partition{'s' * (self.partitions != 1)}"

    @property
    def name(self) -> str:
        """Name of the user's class."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))
