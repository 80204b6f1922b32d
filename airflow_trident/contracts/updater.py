"""How a user's code changes a map of keys and values while a batch is applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

from airflow_trident.operations.interfaces import Operation


class MapState(Protocol):
    """How an updater sees a state while a batch is applied (Trident: MapState). Keys are tuples of key fields."""

    def multi_get(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """The stored value fields of each key; None if there are none."""
        ...

    def multi_put(self, keys: Sequence[tuple[Any, ...]], values: Sequence[tuple[Any, ...]]) -> None: ...

    def multi_remove(self, keys: Sequence[tuple[Any, ...]]) -> None: ...


class StateUpdater(Operation, ABC):
    """How a batch changes a state, for `partition_persist` (Trident: StateUpdater). A plain function is enough if it
    needs neither the transaction nor anything that must be opened.

    `prepare` is called before each batch, `cleanup` after it. The context has the transaction's txid and attempt, for
    updaters that keep these elsewhere. All may be called again for the same transaction, because a commit may be
    repeated.
    """

    @abstractmethod
    def update_state(self, state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
        """Takes all tuples of a batch; all puts take effect with the transaction, or none."""


class DescribedUpdater(ABC):
    """An updater of this package whose doings are part of the topology's definition. A user's updater is not: what it
    calls `describe` may be anything."""

    @abstractmethod
    def __call__(self, state: MapState, tuples: Iterable[tuple[Any, ...]], /) -> None:
        """As :meth:`StateUpdater.update_state`."""

    @abstractmethod
    def describe(self) -> str:
        """The same text as long as stored values may be updated so."""


Updater: TypeAlias = "StateUpdater | Callable[[MapState, Iterable[tuple[Any, ...]]], None]"
"""What `partition_persist` takes."""
