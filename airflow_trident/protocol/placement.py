"""Which worker runs which topology. Pure: everybody who reads the same records comes to the same answer.

After qtopology's load balancer: the topology goes where load and weight are least, and where it has an affinity it goes
before anywhere else. Different from it, nothing moves to even out loads: moving costs a start, and where a topology is
matters to nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_trident.protocol.deployment import DeploymentCommand, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHints:
    """What a topology's author says of its workers; whoever deploys it may say otherwise."""

    workers: tuple[str, ...] = ()
    weight: int = 1
    affinity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeable:
    """A topology that is to run somewhere.

    `able`: the workers that can run it now; `affinity`: those that it belongs to, if they can; `placed`: where it is,
    "" nowhere; `weight`: above 0, in the same measure for all.
    """

    topology: str
    able: frozenset[str]
    affinity: frozenset[str] = frozenset()
    placed: str = ""
    weight: int = 1

    @property
    def choice(self) -> frozenset[str]:
        """The workers that it may be placed on."""
        return self.able & self.affinity or self.able

    @property
    def stays(self) -> bool:
        return self.placed in self.choice


def placement(topologies: Iterable[Placeable]) -> dict[str, str]:
    """Topology -> worker, for each that any worker can run.

    One that can stay where it is stays. The others go, the heaviest first, to the worker with the least load; ties are
    decided by names.
    """
    every = sorted(topologies, key=lambda one: (-one.weight, one.topology))
    found = {one.topology: one.placed for one in every if one.stays}
    loads = Counter[str]()
    for one in every:
        if one.stays:
            loads[one.placed] += one.weight
    for one in every:
        if not one.stays and one.choice:
            worker = min(one.choice, key=lambda name: (loads[name], name))
            found[one.topology] = worker
            loads[worker] += one.weight
    return found


def placed(rosters: Iterable[Roster]) -> dict[str, str]:
    """:func:`placement` of all deployments that are to run."""
    running = [one for one in rosters if one.deployment.command is DeploymentCommand.RUN]
    return placement(
        Placeable(
            topology=one.deployment.topology,
            able=frozenset(one.able),
            affinity=frozenset(one.deployment.affinity),
            placed=one.deployment.placed,
            weight=one.deployment.weight,
        )
        for one in running
    )
