"""Functions with a state of their own, after Storm's IStatefulBolt and BaseStatefulBolt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, overload

from airflow_trident.operations.api import Operation

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class KeyValues(Protocol[K, V]):
    """What a function sees of its state (Storm: KeyValueState). Keys and values are whatever JSON can hold.

    Reads see the function's own writes. The framework prepares, commits and rolls back; a function cannot.
    """

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, `default` if it has none."""

    def put(self, key: K, value: V) -> None: ...

    def delete(self, key: K) -> V | None:
        """Remove a key; the value that it had."""

    def iterator(self) -> Iterator[tuple[K, V]]:
        """Every key once, in no order that may be relied upon."""


class StatefulFunction(Operation, ABC, Generic[K, V]):
    """A function that keeps a key-value state; `stream.stateful()` runs it in the commit phase, exactly once per batch.

    For each transaction and each partition a fresh copy of the object is made, and called in this order: `prepare`,
    after a crash `pre_rollback` or `pre_commit` for what was left, `init_state` with the state as of the transaction
    before, `execute` for every tuple, `pre_prepare`, `pre_commit`, `cleanup`. Keep what must last in the state, not in
    attributes. What a failed attempt put into the state is gone.

    A hook runs just before the step it is named after, at least once: what it does elsewhere must bear repetition.
    `pre_prepare` may still write to the state; from then on it can only be read.
    """

    @abstractmethod
    def init_state(self, state: KeyValues[K, V]) -> None:
        """Called before the first tuple; keep `state` for `execute`."""

    @abstractmethod
    def execute(self, *values: Any) -> Any:
        """Take one tuple. With outputs it yields them, as `Function.execute` does; without it returns nothing."""

    def pre_prepare(self, txid: int) -> None:
        """The state's writes of `txid` are about to be prepared."""

    def pre_commit(self, txid: int) -> None:
        """What was prepared for `txid` is about to be committed."""

    def pre_rollback(self) -> None:
        """What was prepared is about to be dropped."""


@dataclass(frozen=True, kw_only=True)
class Stateful:
    """A function as a topology uses it. Tuples go to one of `partitions` by their key fields; each partition has its
    own state. The number of partitions is part of the definition: it decides which state holds a key."""

    function: StatefulFunction[Any, Any]
    partitions: int = 1

    def describe(self) -> str:
        return f"{self.name} in {self.partitions} partition{'s' * (self.partitions != 1)}"

    @property
    def name(self) -> str:
        """Of the user's class."""
        return str(getattr(self.function, "__qualname__", type(self.function).__qualname__))
