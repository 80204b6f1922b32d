"""How far the checkpoints of a topology's stateful functions are, for people. Only reads.

The commit sweep drives the checkpoints (`states.keyvalue.checkpoints`): the next committer recovers first. So nobody
has to repair anything by hand after a crash; this module only says what the next committer will do.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import state_code
from airflow_trident.protocol.checkpoint import Action, CheckpointRecord, Marks, Mode, decide
from airflow_trident.states.keyvalue.stateful import OpenStateful
from airflow_trident.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One stateful node. `partitions`: namespace -> its marks. They are read one by one, so during a commit they may
    show different moments."""

    state: str
    record: CheckpointRecord
    marker: Marker | None
    partitions: dict[str, Marks]

    @property
    def recovery(self) -> Action:
        """What the next committer does first; INITSTATE if nothing was left unfinished."""
        step = decide(self.record, Mode.RECOVERING)
        assert step is not None  # every case has an action
        return step.action


def checkpoints(topology: Topology) -> list[CheckpointView]:
    """Every stateful node, in the order of the DAG file.

    :raises StoreUnavailableError: a store does not answer.
    """
    views: list[CheckpointView] = []
    for name, spec in topology.states.items():
        if spec.stateful is None:
            continue
        with state_code(name), spec.factory.make_state(spec) as state:
            if isinstance(state, OpenStateful):
                saved = state.saved()
                views.append(
                    CheckpointView(state=name, record=saved.record, marker=saved.marker, partitions=state.marks())
                )
    return views
