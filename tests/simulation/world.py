"""The setting of a history: an imagined Airflow with its topology, ledger, stores and staging folder."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from airflow_trident import Count, Topology
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.plan.states import Applied
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.protocol.spouts import SpoutKind
from tests.simulation.judge import Judge
from tests.simulation.pieces import (
    Rows,
    SimArea,
    SimEngine,
    SimSpout,
    SimStates,
    SimTree,
    SimZNodes,
    Staging,
    Store,
)
from tests.simulation.scheduler import Faults, Scheduler

MAX_STEPS = 20_000


@dataclass
class World:
    """Everything that a history has. All of its choices come from `scheduler.random`."""

    scheduler: Scheduler
    judge: Judge
    tree: SimTree
    staging: Staging
    topology: Topology
    retention: int
    poison: float
    rough: float
    total: int
    restores: bool
    calm: bool = False
    copy: tuple[object, ...] | None = None
    at_work: int = 0
    given: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    @property
    def random(self) -> random.Random:
        return self.scheduler.random

    def note(self, line: str) -> None:
        self.trace.append(f"{self.scheduler.steps:5d} {line}")

    def area(self, _root: str = "") -> SimArea:
        return SimArea(self.staging, self.scheduler)

    def engine(self) -> SimEngine:
        return SimEngine(self.area(), self.judge.attempt_begins, 0.0 if self.calm else self.poison)

    def ledger(self) -> ZNodeLedger:
        deadline_s = 120.0 if self.calm else self.random.choice((120.0, 120.0, -1.0))
        return ZNodeLedger(SimZNodes(self.tree, self.scheduler), "simulated", step_deadline_s=deadline_s)


def world_of(seed: int, *, restores: bool, opaque: bool) -> World:
    """A history's setting: how much goes wrong in it is left to chance, too."""
    faults = Faults()
    scheduler = Scheduler(seed, faults, max_steps=MAX_STEPS)
    chance = scheduler.random
    faults.killed = chance.choice((0.0, 0.01, 0.03))
    faults.paused = chance.choice((0.0, 0.02, 0.06))
    faults.lost_before, faults.lost_after = chance.choice(((0.0, 0.0), (0.03, 0.03), (0.1, 0.1)))
    faults.late = chance.choice((0.0, 0.05))
    faults.unavailable = chance.choice((0.0, 0.02))
    stores: dict[str, Store] = {}
    retention = chance.choice((1, 2, 50))
    max_pending = chance.choice((1, 2, 10) if opaque else (1, 2, 3, 5))
    judge = Judge(stores, max_pending=max_pending, retention=retention, opaque=opaque)
    tree = SimTree(judge.ledger_step)
    total = chance.randint(3, 9)

    def watch(name: str, store: Store, ticket: CommitTicket, batch: Rows, applied: Applied) -> None:
        world.note(f"state {name}: {ticket.txid} attempt {ticket.attempt} fence {ticket.fence} {applied}")
        judge.state_step(name, store, ticket, batch, applied)

    topology = Topology("simulated")
    kind = SpoutKind.OPAQUE if opaque else SpoutKind.TRANSACTIONAL
    stream = topology.new_stream("records", SimSpout(total, scheduler, kind))
    states = SimStates(stores, scheduler, watch)
    for name in ("first", "second"):
        stream.group_by("record").persistent_aggregate(states, Count(), "n", name=name)
    world = World(
        scheduler=scheduler,
        judge=judge,
        tree=tree,
        staging=Staging(),
        topology=topology,
        retention=retention,
        poison=chance.choice((0.0, 0.1, 0.3)),
        rough=4.0 if restores else chance.choice((0.3, 1.0, 4.0)),
        total=total,
        restores=restores,
    )
    return world
