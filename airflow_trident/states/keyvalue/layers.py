"""Common part of all stores of key-value states: the pending layer, and the order in which layers are read.

A store only defines how prepared and committed text is kept; see :class:`LayeredState`. Texts are those of
:mod:`airflow_trident.states.keyvalue.codec`; None is a tombstone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from airflow_trident.protocol.checkpoint import (
    Marks,
    Step,
    admit_commit,
    admit_direct,
    admit_prepare,
    admit_rollback,
)
from airflow_trident.states.keyvalue.base import KeyValueState
from airflow_trident.states.keyvalue.codec import decode_key, decode_value, encode_key, encode_value

K = TypeVar("K")
V = TypeVar("V")

Writes: TypeAlias = "Mapping[str, str | None]"
Admit: TypeAlias = "Callable[[Marks], tuple[Marks, Step]]"


class Act(StrEnum):
    """How a step changes the data."""

    PREPARE = "prepare"
    """Adds writes to the prepared ones."""
    COMMIT = "commit"
    """Makes the prepared writes committed data."""
    DIRECT = "direct"
    """Makes writes committed data without preparing; the prepared layer is empty."""
    ROLLBACK = "rollback"
    """Drops the prepared writes."""


class LayeredState(KeyValueState[K, V]):
    """A KeyValueState over a store of texts. The store's steps decide by the functions of `protocol.checkpoint`."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._pending: dict[str, str | None] = {}

    # ---- the store ---------------------------------------------------------------------------------------------

    @abstractmethod
    def _find(self, key: str) -> str | None:
        """The key's text in the prepared layer, else in the committed one."""

    @abstractmethod
    def _scan(self, *, committed_only: bool) -> Iterator[tuple[str, str]]:
        """Keys with values, ascending, from both layers (the prepared one wins) or from the committed one alone."""

    @abstractmethod
    def _step(self, act: Act, admit: Admit, writes: Writes) -> Step:
        """One atomic step: read the marks, decide, change the data if the decision is DONE, and write the new marks."""

    # ---- reads and writes --------------------------------------------------------------------------------------

    def get(self, key: K, default: Any = None) -> Any:
        text = self._text(encode_key(key))
        return default if text is None else decode_value(text, self.namespace)

    def _text(self, key: str) -> str | None:
        return self._pending[key] if key in self._pending else self._find(key)

    def put(self, key: K, value: V) -> None:
        self._pending[encode_key(key)] = encode_value(value)

    def delete(self, key: K) -> V | None:
        name = encode_key(key)
        text = self._text(name)
        self._pending[name] = None
        return None if text is None else decode_value(text, self.namespace)

    def iterator(self) -> Iterator[tuple[K, V]]:
        pending = dict(self._pending)  # a copy: writes meanwhile must not give a key twice
        for key, value in pending.items():
            if value is not None:
                yield self._decoded(key, value)
        for key, value in self._scan(committed_only=False):
            if key not in pending:
                yield self._decoded(key, value)

    def committed_items(self) -> Iterator[tuple[K, V]]:
        for key, value in self._scan(committed_only=True):
            yield self._decoded(key, value)

    def _decoded(self, key: str, value: str) -> tuple[K, V]:
        return decode_key(key, self.namespace), decode_value(value, self.namespace)

    # ---- steps -------------------------------------------------------------------------------------------------

    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        step = self._step(Act.PREPARE, lambda marks: admit_prepare(marks, txid, fence, self.namespace), self._pending)
        self._pending = {}
        return step

    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        if txid is not None:
            return self._step(Act.COMMIT, lambda marks: admit_commit(marks, txid, fence, self.namespace), {})
        self._step(Act.DIRECT, lambda marks: (admit_direct(marks, fence, self.namespace), Step.DONE), self._pending)
        self._pending = {}
        return Step.DONE

    def rollback(self, *, fence: int) -> None:
        self._step(Act.ROLLBACK, lambda marks: (admit_rollback(marks, fence, self.namespace), Step.DONE), {})
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}
