"""A state provider that can be watched: SQLite, with a call before every request to its states.

It is used by its dotted path, like a user's provider: ``tests.programs.watched:WatchedProvider``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from airflow_trident.contracts.state import Capabilities
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.base import KeyValueState, StateProvider
from airflow_trident.states.keyvalue.sqlite import SqliteStateProvider

WATCHED = "tests.programs.watched:WatchedProvider"
Watcher = Callable[[str, str], None]
"""``(what, namespace)``: "commit", "$checkpoint", ..."""

watchers: list[Watcher] = []


@dataclass(frozen=True)
class WatchedProvider(StateProvider):
    path: str

    capabilities = Capabilities(durable=True, atomic=True)

    def new_state(self, namespace: str) -> KeyValueState[Any, Any]:
        return WatchedState(SqliteStateProvider(self.path).new_state(namespace))

    def describe(self) -> str:
        return f"watched {self.path}"


class WatchedState(KeyValueState[Any, Any]):
    def __init__(self, inner: KeyValueState[Any, Any]) -> None:
        self.inner = inner
        self.namespace = inner.namespace

    def _tell(self, what: str) -> None:
        for watcher in tuple(watchers):  # a watcher may remove itself
            watcher(what, self.namespace.rpartition("-")[2])

    def get(self, key: Any, default: Any = None) -> Any:
        self._tell("get")
        return self.inner.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self.inner.put(key, value)

    def delete(self, key: Any) -> Any:
        self._tell("delete")
        return self.inner.delete(key)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        self._tell("iterator")
        return self.inner.iterator()

    def committed_items(self) -> Iterator[tuple[Any, Any]]:
        self._tell("committed_items")
        return self.inner.committed_items()

    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        self._tell("prepare")
        return self.inner.prepare_commit(txid, fence=fence)

    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        self._tell("write" if txid is None else "commit")
        return self.inner.commit(txid, fence=fence)

    def rollback(self, *, fence: int) -> None:
        self._tell("rollback")
        self.inner.rollback(fence=fence)

    def discard(self) -> None:
        self.inner.discard()

    def marks(self) -> Marks:
        self._tell("marks")
        return self.inner.marks()

    def close(self) -> None:
        self.inner.close()
