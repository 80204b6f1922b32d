"""The query task: runs a query of a topology and returns the answer.

The upkeep task: folds or publishes a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_trident.contracts.state import Upkeep
from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.base import airflow_outcome, require_durable, require_topology
from airflow_trident.runtime.upkeep import keep_up, require_upkeep
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context


class TridentQueryOperator(BaseOperator):
    """Runs a query stream of a topology over committed data, and returns its tuples as a list of objects (XCom).

    It needs no ledger. A text from a template is converted to the type of its argument.

    :param topology: the Topology; not templated.
    :param query: name of the query, as in ``new_drpc_stream(name, ...)``.
    :param query_args: a value for each argument of the query (templated).
    """

    template_fields: Sequence[str] = ("query_args",)
    shallow_copy_attrs: Sequence[str] = ("topology",)
    ui_color = "#dbf0e3"

    def __init__(self, *, topology: Topology, query: str, query_args: Sequence[Any] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(topology, Topology):
            raise ConfigurationError(f"{topology!r} is not a topology", "Give the Topology object.")
        topology.queries.compile(query)
        require_durable(topology)
        self.topology = topology
        self.query = query
        self.query_args = query_args

    def execute(self, context: Context) -> list[dict[str, Json]]:
        from airflow_trident.runtime.query import query_texts

        with airflow_outcome():
            answer = query_texts(self.topology, self.query, list(self.query_args))
        self.log.info("%s tuples", len(answer.rows))
        return answer.as_json()


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
