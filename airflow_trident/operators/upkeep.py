"""The upkeep task: folds or publishes a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.base import airflow_outcome, require_topology
from airflow_trident.runtime.upkeep import keep_up, require_upkeep
from airflow_trident.topology.topology import Topology

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class TridentUpkeepOperator(BaseOperator):
    """Folds or publishes a state. Returns whether there was anything to do. It needs no ledger, changes no answer of
    the state, and may run beside the topology's other tasks.

    :param topology: the Topology; not templated.
    :param state: name of the state, which is a DeltaState.
    :param action: ``fold`` or ``publish``.
    :raises ConfigurationError: there is no such state, or the state has no such upkeep.
    """

    shallow_copy_attrs: Sequence[str] = ("topology",)
    ui_color = "#dbf0e3"

    def __init__(self, *, topology: Topology, state: str, action: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topology = require_topology(topology)
        if state not in topology.states:
            states = ", ".join(topology.states) or "none"
            raise ConfigurationError(f"topology {topology.name} has no state {state!r}", f"It has {states}.")
        if action not in set(Upkeep):
            raise ConfigurationError(f"action={action!r} is no upkeep", f"Give one of {', '.join(Upkeep)}.")
        require_upkeep(topology.states[state], Upkeep(action))
        self.state = state
        self.action = action

    def execute(self, context: Context) -> bool:
        with airflow_outcome():
            return keep_up(self.topology.states[self.state], Upkeep(self.action), self.log.info)
