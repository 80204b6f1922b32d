"""A state in the memory of this process: for tests and notebooks; it defines the meaning of all other states."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StateFactory, StateSpec, Verdict
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import require_plain_keys
from airflow_trident.states.core.groups import Group, answers, applied_by
from airflow_trident.states.core.marker import AdmittingState, admit, admit_group
from airflow_trident.states.core.merge import Changes, Key, Value, canonical_key, merge, merge_before

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a step changes. Doing it again changes nothing."""

    marker: Marker
    changes: Changes
    before: Changes


@dataclass
class _Kept:
    marker: Marker | None = None
    data: dict[Key, Value] = field(default_factory=dict)
    before: Changes = field(default_factory=dict)
    """The keys of the highest txid, with their values before it; kept if a spout is opaque."""
    step: _Step | None = None
    """The step that is decided and not done. Ctrl-C or a time-out can come between any two changes: whoever comes next
    does the step again, from its beginning."""


@dataclass
class _Store:
    lock: threading.Lock = field(default_factory=threading.Lock)
    states: dict[tuple[str, str], _Kept] = field(default_factory=dict)


_STORES: dict[str, _Store] = {}
_REGISTRY = threading.Lock()


@dataclass(frozen=True)
class MemoryState(StateFactory):
    """A named store in this process, shared by all topologies that use the name. Gone when the process ends."""

    name: str = "default"

    capabilities = Capabilities(durable=False, atomic=True, opaque=True, groups=True, partitions=True)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)

    def make_state(self, spec: StateSpec) -> OpenMemoryState:
        self.validate(spec)
        with _REGISTRY:
            store = _STORES.setdefault(self.name, _Store())
        return OpenMemoryState(store, spec)

    def describe(self) -> str:
        return f"MemoryState({self.name})"

    def forget(self, topology: str = "") -> None:
        """Drops everything under this name.

        :param topology: drops the states of this topology only.
        """
        with _REGISTRY:
            store = _STORES.get(self.name, _Store()) if topology else _STORES.pop(self.name, _Store())
        with store.lock:
            store.states = {key: kept for key, kept in store.states.items() if topology and key[0] != topology}


class OpenMemoryState(AdmittingState):
    """See :class:`MemoryState`."""

    def __init__(self, store: _Store, spec: StateSpec) -> None:
        self._store = store
        self._spec = spec
        with store.lock:
            self._kept = store.states.setdefault((spec.topology, spec.name), _Kept())

    def marker(self) -> Marker | None:
        step = self._kept.step
        return self._kept.marker if step is None else step.marker

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        kept, spec = self._kept, self._spec
        with self._store.lock:
            self._finish()
            marker, verdict = admit(kept.marker, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is Verdict.SKIP:
                kept.marker = marker
                return Applied.ALREADY
            taken_back = kept.before if verdict is Verdict.REPLACE else self._replaced([ticket])
            changes = merge(spec, batch, lambda keys: self._lookup(keys, taken_back), ticket)
            if ticket.txid < marker.high:
                before = kept.before | merge_before(spec, batch, copy.deepcopy(kept.before), ticket)
            if ticket.txid == marker.high:
                before = {key: taken_back.get(key, kept.data.get(key)) for key in changes} if spec.opaque else {}
            # Everything that can raise comes before the step.
            self._do(_Step(marker=marker, changes={**taken_back, **changes}, before=before))
        return Applied.APPLIED

    def _apply_group(self, group: Group) -> tuple[Applied, ...]:
        kept, spec = self._kept, self._spec
        with self._store.lock:
            self._finish()
            marker, verdicts = admit_group(kept.marker, group.tickets, state=spec.name, commutes=spec.commutes)
            if Verdict.APPLY in verdicts:
                replaced = self._replaced(applied_by(group.tickets, verdicts))
                changes = group.changes(verdicts, lambda keys: self._lookup(keys, replaced))
                self._do(_Step(marker=marker, changes={**replaced, **changes}, before={}))
            else:
                kept.marker = marker
        return answers(verdicts)

    def _replaced(self, tickets: Sequence[CommitTicket]) -> Changes:
        """The keys of the partitions that the batches replace (T13), without values."""
        partitions = self._spec.partition
        if partitions is None:
            return {}
        values = {value for ticket in tickets for value in self._spec.replaced_by(ticket)}
        place = self._spec.key_names.index(partitions.column)
        return {key: None for key in self._kept.data if key[place] in values}

    def _do(self, step: _Step) -> None:
        self._kept.step = step  # from here on it is decided
        self._finish()

    def _finish(self) -> None:
        """Do the step that is decided."""
        kept = self._kept
        if kept.step is None:
            return
        for key, value in kept.step.changes.items():
            if value is None:
                kept.data.pop(key, None)
            else:
                kept.data[key] = value
        kept.before, kept.marker = kept.step.before, kept.step.marker
        kept.step = None

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        with self._store.lock:
            self._finish()
            return self._lookup([canonical_key(key) for key in keys])

    def _lookup(self, keys: Sequence[Key], taken_back: Changes | None = None) -> list[Value | None]:
        """Copies: a reducer may change the list that it gets, and raise behind it.

        :param taken_back: the values of keys whose last change does not count.
        """
        data, before = self._kept.data, taken_back or {}
        return copy.deepcopy([before[key] if key in before else data.get(key) for key in keys])

    def items(self) -> Iterator[tuple[Key, Value]]:
        with self._store.lock:
            self._finish()
            return iter(copy.deepcopy(list(self._kept.data.items())))
