"""The handle on a state that a verb gives back."""

from __future__ import annotations

from airflow_trident.plan.states import StateSpec


class TridentState:
    """A handle on a state of the topology (Trident: TridentState)."""

    def __init__(self, spec: StateSpec) -> None:
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name
