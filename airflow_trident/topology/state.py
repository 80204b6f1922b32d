"""The handle on a state that a verb gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import PlanError
from airflow_trident.plan.commit.nodes import NewValuesNode
from airflow_trident.plan.commit.windows import WindowUpdater
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.types import require_distinct

if TYPE_CHECKING:
    from airflow_trident.topology.base import StreamBase
    from airflow_trident.topology.stream import Stream
    from airflow_trident.topology.topology import Topology


class TridentState:
    """A handle on a state of the topology (Trident: TridentState)."""

    def __init__(self, stream: StreamBase, sink: PersistNode) -> None:
        self._stream = stream
        self._sink = sink

    @property
    def spec(self) -> StateSpec:
        return self._sink.state

    @property
    def topology(self) -> Topology:
        return self._stream.topology

    @property
    def name(self) -> str:
        return self._sink.name

    def __repr__(self) -> str:
        return f"TridentState({self.name}: {self.spec.describe()})"

    def new_values_stream(self) -> Stream:
        """What each batch changes in the state: key and value fields of its keys, after the batch (Trident:
        newValuesStream). A key that the batch removed is not in it.

        Everything downstream runs in the commit phase, and states that it ends in are updated exactly once as well.

        :raises PlanError: the state is that of a stateful function, which has no output.
        """
        spec = self.spec
        if spec.stateful is not None:
            raise PlanError(
                f"state {self.name!r} belongs to a stateful function and gives no new values",
                "Only persistent_aggregate() and partition_persist() do.",
            )
        fired = spec.updater.fired if isinstance(spec.updater, WindowUpdater) else None
        schema = fired if fired is not None else (*spec.keys, *spec.values)
        require_distinct(field.name for field in schema)
        name = self.topology.next_name("new_values")
        return self._stream._on(NewValuesNode(name=name, schema=schema, inputs=(self._sink,)), "")
