"""What a topology must not change silently: its spouts and its states, as frozen records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest

from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.types import split_spec


def _in_new_names(text: str) -> str:
    """Version 0.1 recorded some classes under other names."""
    return re.sub(r"\bJdbc(State|Spout)\b", r"Sql\1", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoutDefinition:
    """`text`: what the spout is, for people; `kind`: what a replay of it gives."""

    text: str
    kind: SpoutKind = SpoutKind.TRANSACTIONAL

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _in_new_names(self.text))

    def __str__(self) -> str:
        return f"{self.text} {self.kind}"


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
        a window's."""
        if other is None or self.inputs is None:
            return self
        if other.inputs is None:
            return replace(self, inputs=None)
        recorded = zip_longest(self.inputs, other.inputs)
        return replace(self, inputs=tuple(_recorded_as(mine, others) for mine, others in recorded if mine is not None))


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
        return [
            *_changed("stream", self.spouts, other.spouts),
            *_changed("state", _beside(self.states, other.states), _beside(other.states, self.states)),
        ]

    def same_state(self, other: Definition, name: str) -> bool:
        """Is the state in both, and unchanged?"""
        old, new = self.states.get(name), other.states.get(name)
        return old is not None and new is not None and old.beside(new) == new.beside(old)


def _beside(states: Mapping[str, StateDefinition], others: Mapping[str, StateDefinition]) -> dict[str, StateDefinition]:
    return {name: state.beside(others.get(name)) for name, state in states.items()}


def _changed(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    changed = (name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name))
    return [f"{what} {name}: {old.get(name, 'absent')} -> {new.get(name, 'absent')}" for name in changed]
