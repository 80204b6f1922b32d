"""Functions with their own state, after Storm's IStatefulBolt and BaseStatefulBolt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from airflow_trident.operations.api import Operation
from airflow_trident.types import Schema

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
