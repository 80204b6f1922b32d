"""Which worker runs which topology. Pure: all who read the same records get the same answer.

After qtopology's load balancer: a topology goes to the least loaded worker, and to one of its affinity before others.
Unlike there, nothing moves to even out loads: a move costs a start, and the place matters to nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_trident.storm.workers.deployment import DeploymentCommand, Roster


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHints:
    """What a topology's author says about its workers; whoever deploys it may override it."""

    workers: tuple[str, ...] = ()
    weight: int = 1
    affinity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeable:
    """A topology that needs a worker.

    `able`: the workers that can run it now; `affinity`: those that it prefers; `placed`: where it is now, "" nowhere;
    `weight`: above 0, in the same unit for all.
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
    """Topology -> worker, for each topology that some worker can run.

    A topology stays where it is if it can. The others go to the worker with the least load, the heaviest first; names
    break ties.
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
