"""Key-value states in the memory of this process: for tests and notebooks (Storm: InMemoryKeyValueState)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.contracts.state import Capabilities
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue.base import Act, Admit, LayeredState, StateProvider, Writes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What a step changes. Doing it again changes nothing."""

    act: Act
    marks: Marks
    writes: Writes


@dataclass
class _Kept:
    """One namespace. `change`: decided and not done. Ctrl-C or a time-out can come between any two changes: whoever
    comes next does it again, from its beginning."""

    marks: Marks = field(default_factory=Marks)
    prepared: dict[str, str | None] = field(default_factory=dict)
    committed: dict[str, str] = field(default_factory=dict)
    change: _Change | None = None


@dataclass
class _Store:
    lock: threading.Lock = field(default_factory=threading.Lock)
    namespaces: dict[str, _Kept] = field(default_factory=dict)


_STORES: dict[str, _Store] = {}
_REGISTRY = threading.Lock()


@dataclass(frozen=True)
class MemoryStateProvider(StateProvider):
    """A named store in this process, shared by all users of the name. Gone when the process ends."""

    name: str = "default"

    capabilities = Capabilities(durable=False, atomic=True)

    def new_state(self, namespace: str) -> MemoryKeyValueState:
        with _REGISTRY:
            store = _STORES.setdefault(self.name, _Store())
        return MemoryKeyValueState(namespace, store)

    def describe(self) -> str:
        return f"memory {self.name}"

    def forget(self) -> None:
        """Drop everything under this name."""
        with _REGISTRY:
            _STORES.pop(self.name, None)


class MemoryKeyValueState(LayeredState[Any, Any]):
    """See :class:`MemoryStateProvider`."""

    def __init__(self, namespace: str, store: _Store) -> None:
        super().__init__(namespace)
        self._lock = store.lock
        with self._lock:
            self._kept = store.namespaces.setdefault(namespace, _Kept())

    def marks(self) -> Marks:
        change = self._kept.change
        return self._kept.marks if change is None else change.marks

    def _find(self, key: str) -> str | None:
        with self._lock:
            self._finish()
            if key in self._kept.prepared:
                return self._kept.prepared[key]
            return self._kept.committed.get(key)

    def _scan(self, *, committed_only: bool) -> Iterator[tuple[str, str]]:
        with self._lock:
            self._finish()
            merged: dict[str, str | None] = dict(self._kept.committed)
            if not committed_only:
                merged.update(self._kept.prepared)
        for key in sorted(merged):
            value = merged[key]
            if value is not None:
                yield key, value

    # ---- steps -------------------------------------------------------------------------------------------------

    def _step(self, act: Act, admit: Admit, writes: Writes) -> Step:
        with self._lock:
            self._finish()
            marks, step = admit(self._kept.marks)
            if step is Step.DONE:
                written = self._kept.prepared if act is Act.COMMIT else dict(writes)  # the caller may write on
                self._kept.change = _Change(act=act, marks=marks, writes=written)  # from here on it is decided
                self._finish()
            else:
                self._kept.marks = marks
        return step

    def _finish(self) -> None:
        """Make the change that is decided."""
        kept, change = self._kept, self._kept.change
        if change is None:
            return
        if change.act is Act.PREPARE:
            kept.prepared.update(change.writes)
        else:
            self._write(change.writes)
            kept.prepared = {}
        kept.marks = change.marks
        kept.change = None

    def _write(self, writes: Writes) -> None:
        for key, value in writes.items():
            if value is None:
                self._kept.committed.pop(key, None)
            else:
                self._kept.committed[key] = value
