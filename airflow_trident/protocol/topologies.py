"""What a topology must not change silently: its spouts and its states, as frozen records.

The plan as boxes and arrows, for people who have the ledger but not the topology's code. No decision reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_trident.protocol.spout_kinds import SpoutKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoutDefinition:
    """`text`: what the spout is, for people; `kind`: what a replay of it gives; `adapts`: the class of a user's object
    that it only adapts, "" if there is none."""

    text: str
    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    adapts: str = ""

    def __str__(self) -> str:
        return f"{self.text}{f' of {self.adapts}' if self.adapts else ''} {self.kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDefinition:
    """`text`: place, fields and merge; `place`: the place alone; `notes`: what it does not promise, such as exactly
    once; `inputs`: the stream fields that its functions read, of a window with their types; `transforms`: query texts
    and function versions that make its rows."""

    text: str
    place: str = ""
    notes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()

    def __str__(self) -> str:
        of = f" of ({'; '.join(self.inputs)})" if self.inputs else ""
        return "; ".join([f"{self.text}{of}", *self.transforms, *self.notes])

    def beside(self, other: StateDefinition | None) -> StateDefinition:
        """The definition for comparing with `other`. Which stream a note names is no change:
        the change is listed at that stream."""
        if other is None:
            return self
        same_notes = {_kind_in(note) for note in self.notes} == {_kind_in(note) for note in other.notes}
        return replace(self, notes=()) if same_notes else self


def _kind_in(note: str) -> str:
    """The kind of the state, of a note of :class:`~airflow_trident.plan.checks.Shortfall`."""
    return note.rpartition(", the state ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The parts of a topology that its ledger and states depend on: changing them needs a person's consent.

    `spouts`: by stream name; `states`: by state name; `partitions`: to which partitions it is bound, "" to none.
    `begin` and `complete_after_s` of these partitions may change: readers without the topology's code need them. User
    functions are not part of it: a fixed function makes no new topology.
    """

    spouts: dict[str, SpoutDefinition]
    states: dict[str, StateDefinition]
    partitions: str = ""
    begin: str = ""
    complete_after_s: int = 0

    @property
    def opaque(self) -> frozenset[str]:
        """The names of the streams whose spouts are opaque."""
        return frozenset(name for name, spout in self.spouts.items() if spout.kind is SpoutKind.OPAQUE)

    def differences(self, other: Definition) -> list[str]:
        """What changed from `self` to `other`, one line each; empty if nothing did."""
        if self == other:
            return []
        bound = [{"partitions": definition.partitions or "none"} for definition in (self, other)]
        return [
            *_changed("the topology's", *bound),
            *_changed("stream", self.spouts, other.spouts),
            *_changed("state", _beside(self.states, other.states), _beside(other.states, self.states)),
        ]

    def same_state(self, other: Definition, name: str) -> bool:
        """Is the state in both, and unchanged?"""
        old, new = self.states.get(name), other.states.get(name)
        return old is not None and new is not None and old.beside(new) == new.beside(old)


def _beside(some: Mapping[str, StateDefinition], others: Mapping[str, StateDefinition]) -> dict[str, StateDefinition]:
    return {name: definition.beside(others.get(name)) for name, definition in some.items()}


def _changed(noun: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    changed = (name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
    return [f"{noun} {name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}" for name in changed]


class BoxKind(StrEnum):
    SPOUT = "spout"
    OPERATION = "operation"
    GROUPING = "grouping"
    """Tuples change their partition here."""
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBox:
    """`what`: what it is or does; `inputs`: the names of the boxes whose tuples it takes."""

    name: str
    kind: BoxKind
    what: str = ""
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPicture:
    """`<incarnation>/plan`. `boxes`: each after its inputs; `left_out`: number of last boxes that are not kept;
    `digest`: the plan's."""

    digest: str
    boxes: tuple[PlanBox, ...]
    left_out: int = 0
