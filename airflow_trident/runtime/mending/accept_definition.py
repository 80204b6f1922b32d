"""``airflow trident ledger accept``: the ledger takes a topology's new definition, because a person says so."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_trident.ledger.base import Ledger
from airflow_trident.runtime.state_agreement import empty_states
from airflow_trident.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class AcceptedDefinition:
    """`differences`: one line each. `begins`: state -> its first transaction, for states that are new or were empty."""

    differences: tuple[str, ...] = ()
    begins: dict[str, int] = field(default_factory=dict)

    def lines(self, topology: str) -> list[str]:
        """For people."""
        if not self.differences:
            return [f"topology {topology}: the definition is the one in the ledger; nothing to accept"]
        begins = [
            f"  state {name} begins with transaction {first}; what was committed before is not in it"
            for name, first in self.begins.items()
        ]
        return [f"topology {topology}: accepted", *(f"  {line}" for line in self.differences), *begins]


def accept_definition(ledger: Ledger, topology: Topology) -> AcceptedDefinition:
    """Records the topology's definition in place of the ledger's.

    :raises UnknownTopologyError: it has no ledger.
    """
    before = ledger.topology()
    differences = before.definition.differences(topology.definition())
    if not differences:
        return AcceptedDefinition()
    empty = empty_states(topology, before.definition)
    after = ledger.register(topology.definition(), accept_change=True, empty=empty)
    begins = {name: first for name, first in after.since.items() if before.since.get(name) != first}
    return AcceptedDefinition(tuple(differences), begins)
