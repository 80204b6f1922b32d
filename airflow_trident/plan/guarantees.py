"""Which spouts and states together are exactly once: the matrix in Storm's documentation, which Storm itself never
checks. Pure.

A state applies each txid once. That is exactly once if the txid always has the same batch (transactional spout), or if
the state can take back what another attempt's batch did (opaque state).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateKind, StateSpec
from airflow_trident.errors import PlanError
from airflow_trident.protocol.spout_kinds import SpoutKind

EXACTLY_ONCE = frozenset(
    {
        (SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
        (SpoutKind.TRANSACTIONAL, StateKind.OPAQUE),
        (SpoutKind.OPAQUE, StateKind.OPAQUE),
    }
)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A stream and a state that together are not exactly once, and their kinds."""

    stream: str
    spout: str
    spout_kind: SpoutKind
    state: str
    store: str
    state_kind: StateKind

    def __str__(self) -> str:
        return f"state {self.state} with stream {self.stream}: {self.why}"

    @property
    def why(self) -> str:
        """The reason with the names of both, for people."""
        return f"{self.spout} is {self.spout_kind}, {self.store} is {self.state_kind}, so {_what(self.spout_kind)}"

    @property
    def note(self) -> str:
        """For the topology's definition: stays the same as long as the kinds do."""
        return f"not exactly once: stream {self.stream} is {self.spout_kind}, the state {self.state_kind}"


def shortfalls(spouts: Mapping[str, Spout], states: Mapping[str, StateSpec]) -> tuple[Shortfall, ...]:
    """Every pair outside of the matrix. Each state is paired with all streams of its topology: a repeated attempt
    repeats all streams."""
    kinds = {name: spec.factory.capabilities.kind for name, spec in states.items()}
    of_kind = {
        spout: [name for name, state in kinds.items() if (spout, state) not in EXACTLY_ONCE] for spout in SpoutKind
    }
    return tuple(
        Shortfall(stream, spout.describe(), spout.kind, name, states[name].factory.describe(), kinds[name])
        for stream, spout in spouts.items()
        for name in of_kind[spout.kind]
    )


def require_exactly_once(topology: str, spouts: Mapping[str, Spout], states: Mapping[str, StateSpec]) -> None:
    """:raises PlanError: a pair is outside of the matrix; the error names both, and the cure."""
    for one in shortfalls(spouts, states):
        raise PlanError(
            f"stream {one.stream!r} and state {one.state!r} of topology {topology!r} are not exactly once together: "
            f"{one.why}",
            f"{_cure(one.spout_kind)} Or say that it need not be: Topology({topology!r}, exactly_once=False).",
        )


def _what(kind: SpoutKind) -> str:
    return {
        SpoutKind.TRANSACTIONAL: "a repeated commit may count the batch twice",
        SpoutKind.OPAQUE: "the batch of a repeated attempt may be counted beside that of the first",
        SpoutKind.NON_TRANSACTIONAL: "a repeated attempt may lose rows or count them twice",
    }[kind]


def _cure(spout: SpoutKind) -> str:
    if spout is SpoutKind.NON_TRANSACTIONAL:
        return "Put a SpooledSpout before the source."
    if spout is SpoutKind.OPAQUE:
        return "Use an opaque state, such as SqliteState, or a transactional spout."
    return "Use a transactional or an opaque state, such as SqliteState."
