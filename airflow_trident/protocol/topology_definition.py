"""What a topology must not change silently: its spouts and its states, as frozen records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TypeVar

from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import split_spec


def _in_new_names(text: str) -> str:
    """Version 0.1 recorded some classes under other names."""
    return re.sub(r"\bJdbc(State|Spout)\b", r"Sql\1", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoutDefinition:
    """`text`: what the spout is, for people; `kind`: what a replay of it gives; `adapts`: the class of a user's object
    that it only adapts, "" if there is none or it was not recorded."""

    text: str
    kind: SpoutKind = SpoutKind.TRANSACTIONAL
    adapts: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _in_new_names(self.text))

    def __str__(self) -> str:
        return f"{self.text}{f' of {self.adapts}' if self.adapts else ''} {self.kind}"

    def beside(self, other: SpoutDefinition | None) -> SpoutDefinition:
        """The definition for comparing with `other`: what `other` did not record is no change."""
        return self if other is None or other.adapts else replace(self, adapts="")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDefinition:
    """`text`: place, fields and merge; `notes`: what it does not promise, such as exactly once; `inputs`: the stream
    fields that its functions read, None if not recorded, and of a window with their types; `transforms`: query texts
    and function versions that make its rows."""

    text: str
    notes: tuple[str, ...] = ()
    inputs: tuple[str, ...] | None = None
    transforms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _in_new_names(self.text))

    def __str__(self) -> str:
        of = f" of ({'; '.join(self.inputs)})" if self.inputs else ""
        return "; ".join([f"{self.text}{of}", *self.transforms, *self.notes])

    def beside(self, other: StateDefinition | None) -> StateDefinition:
        """The definition for comparing with `other`: what `other` did not record is no change: inputs, or the types of
        a window's. Nor is which stream a note names, the first that falls short: what changed is said of that stream.
        """
        if other is None:
            return self
        same_notes = {_kind_in(note) for note in self.notes} == {_kind_in(note) for note in other.notes}
        found = replace(self, notes=()) if same_notes else self
        if self.inputs is None:
            return found
        if other.inputs is None:
            return replace(found, inputs=None)
        recorded = zip_longest(self.inputs, other.inputs)
        return replace(found, inputs=tuple(_recorded_as(mine, others) for mine, others in recorded if mine is not None))


def _kind_in(note: str) -> str:
    """The kind of the state, of a note of :class:`~airflow_trident.plan.guarantees.Shortfall`."""
    return note.rpartition(", the state ")[2]


def _recorded_as(fields: str, others: str | None) -> str:
    """Without types, if the others have none: earlier versions recorded the names of a window's fields only."""
    return _names_in(fields) if others is not None and others == _names_in(others) else fields


def _names_in(fields: str) -> str:
    return ", ".join(part.partition(" ")[0] for part in split_spec(fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """The parts of a topology that its ledger and states depend on: changing them needs a person's consent.

    `spouts`: by stream name; `states`: by state name. User functions are not part of it: a fixed function makes no new
    topology.
    """

    spouts: dict[str, SpoutDefinition]
    states: dict[str, StateDefinition]

    @property
    def opaque(self) -> frozenset[str]:
        """The names of the streams whose spouts are opaque."""
        return frozenset(name for name, spout in self.spouts.items() if spout.kind is SpoutKind.OPAQUE)

    def differences(self, other: Definition) -> list[str]:
        """What changed from `self` to `other`, one line each; empty if nothing did."""
        if self == other:
            return []
        return [
            *_changed("stream", _beside(self.spouts, other.spouts), _beside(other.spouts, self.spouts)),
            *_changed("state", _beside(self.states, other.states), _beside(other.states, self.states)),
        ]

    def same_state(self, other: Definition, name: str) -> bool:
        """Is the state in both, and unchanged?"""
        old, new = self.states.get(name), other.states.get(name)
        return old is not None and new is not None and old.beside(new) == new.beside(old)


D = TypeVar("D", SpoutDefinition, StateDefinition)


def _beside(some: Mapping[str, D], others: Mapping[str, D]) -> dict[str, D]:
    return {name: one.beside(others.get(name)) for name, one in some.items()}


def _changed(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    changed = (name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
    return [f"{what} {name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}" for name in changed]
