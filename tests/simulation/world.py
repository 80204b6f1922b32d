"""The setting of a history: a simulated Airflow with its topology, ledger, stores and staging folders."""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_trident import Count, ReducerAggregator, Topology
from airflow_trident.contracts.state import Applied
from airflow_trident.errors import TridentError
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Delete
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.drains import limits
from airflow_trident.types import Json
from tests.simulation import levels
from tests.simulation.clock import SimTime
from tests.simulation.days import DAYS, KEYS, DaySpout, Source
from tests.simulation.judge import Sweep
from tests.simulation.judge_of_days import JudgeOfDays
from tests.simulation.judge_of_tasks import JudgeOfTasks
from tests.simulation.kinds import Kind
from tests.simulation.pieces import SimArea, SimBatch, SimEngine, SimSpout, SimTree, SimZNodes, Staging
from tests.simulation.scheduler import Faults, Scheduler
from tests.simulation.stores import Rows, SimStates, Store

MAX_STEPS = 20_000
MOST_TOGETHER = 4
"""Transactions of a group."""
CHUNK_BYTES = (0, 300, 10_000)
"""Nothing goes into the ledger; files do, but not with their manifest; all batches of a history do."""


class Log(ReducerAggregator[str]):
    """Its result depends on the order of batches."""

    def init(self) -> str:
        return ""

    def reduce(self, current: str, record: int) -> str:
        return f"{current},{record}"


@dataclass(slots=True, eq=False)
class Process:
    """The present process: its place and its role.

    `number`: its process id. `task`: of the simulated Airflow, None for a command. `later`: of a later version of the
    package. `clients`: its sessions. `attempts`: txid -> how many attempts it began. `sweep`: its present sweep, if
    that takes nothing over.
    """

    place: int = 0
    number: int = 1
    task: Any = None
    later: bool = False
    clients: list[Any] = field(default_factory=list)
    attempts: Counter[int] = field(default_factory=Counter)
    sweep: Sweep | None = None


_AT_WORK: ContextVar[Process | None] = ContextVar("_AT_WORK", default=None)
"""Each player has a context of its own."""


@dataclass
class World:
    """Everything in a history. All random choices come from `scheduler.random`.

    :param stores: the stores on each disk: the first disk is shared, the second belongs to a worker with its own disk.
    :param apart: workers have staging folders of their own.
    :param commands: commands at which people were killed: they type them again.
    :param orphans: ephemeral nodes of killed processes.
    :param alive: processes that run or sleep.
    :param dead: tasks whose process is gone although Airflow does not know it yet.
    :param loses_staged: staged files were lost, or are not where others look for them.
    :param clears: does the person at the end clear red tasks?
    :param triggered: runs are made by the events of a batch trigger; `trigger`: its generator of events, if it runs.
    :param may_refuse: errors that are right in this kind of history.
    :param played: the world of the history that this process plays now.
    """

    played: ClassVar[World]

    kind: Kind
    scheduler: Scheduler
    clock: SimTime
    judge: JudgeOfTasks
    tree: SimTree
    stores: tuple[dict[str, Store], dict[str, Store]]
    topology: Topology
    retention: int
    poison: float
    rough: float
    total: int
    apart: bool = False
    lags: bool = False
    calm: bool = False
    copy: tuple[object, ...] | None = None
    at_work: int = 0
    airflow: Any = None
    stagings: dict[int, Staging] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)
    commands: list[Selection] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    alive: list[Process] = field(default_factory=list)
    dead: list[tuple[Any, object]] = field(default_factory=list)
    copies: dict[str, Store] = field(default_factory=dict)
    removals: int = 0
    clears: bool = True
    triggered: bool = False
    trigger: Any = None
    loses_staged: bool = False
    may_refuse: tuple[type[TridentError], ...] = ()
    _followers: list[Any] = field(default_factory=list)
    _number: int = 100

    @property
    def random(self) -> random.Random:
        return self.scheduler.random

    def applied(self, name: str, store: Store, ticket: CommitTicket, batch: Rows, applied: Applied) -> None:
        self.note(f"state {name}: {ticket.txid} attempt {ticket.attempt} fence {ticket.fence} {applied}")
        self.judge.state_step(name, store, ticket, batch, applied)

    def note(self, line: str) -> None:
        self.trace.append(f"{self.scheduler.steps:5d} {line}")

    # ---- processes -----------------------------------------------------------------------------------------------

    @property
    def process(self) -> Process:
        return _AT_WORK.get() or Process()

    @contextmanager
    def running(self, process: Process) -> Iterator[None]:
        """The player is this process. Its sessions end with it; those of a killed process end some time later."""
        _AT_WORK.set(process)
        self._number += 1
        process.number = self._number
        self.alive.append(process)
        try:
            yield
        except Exception:
            self._end_sessions(process)
            raise
        except BaseException:
            self.orphans += [path for one in process.clients for path in one._ephemeral]
            raise
        else:
            self._end_sessions(process)
        finally:
            self.alive.remove(process)
            _AT_WORK.set(None)

    def _end_sessions(self, process: Process) -> None:
        for client in process.clients:
            client.close()

    def outsleep_sessions(self) -> None:
        """Processes that sleep now sleep for longer than a session lives."""
        self.orphans += [path for process in self.alive for one in process.clients for path in one._ephemeral]

    def expire_sessions(self) -> None:
        """ZooKeeper notices that the processes of some sessions are gone."""
        gone, self.orphans = self.orphans, []
        for path in gone:
            if self.tree.get(path) is not None:
                self.tree.apply([Delete(path)])

    # ---- what processes use --------------------------------------------------------------------------------------

    def area(self, _root: str = "") -> SimArea:
        place = self.process.place if self.apart and not self.calm else 0
        staging = self.stagings.setdefault(place, Staging())
        staging.away = self.kind.elsewhere and not self.calm and self.rough > 1
        return SimArea(staging, self.scheduler, levels.LevelBatch if self.kind.levels else SimBatch)

    def engine(self) -> SimEngine:
        poison = 0.0 if self.calm else self.poison
        return SimEngine(self.area(), self.judge.attempt_begins, poison, reads=self._read)

    def _read(self, metadata: dict[str, Json]) -> None:
        if self.kind.bound:
            self.source.require(metadata, self.scheduler.step)

    @property
    def wanted(self) -> set[int]:
        """The records that each state must have in the end."""
        return set(self.source.records()) if self.kind.bound else set(range(self.total))

    @property
    def source(self) -> Source:
        assert isinstance(self.judge, JudgeOfDays)
        return self.judge.source

    def ledger(self, incarnation: str = "") -> ZNodeLedger:
        never = 10.0 * MAX_STEPS
        deadline_s = never if self.calm else self.random.choice((never, never, -1.0))
        znodes = SimZNodes(self.tree, self.scheduler, later=self.process.later)
        self.process.clients.append(znodes)
        client: Any = znodes
        if self.lags:
            from tests.simulation.follower import Follower, FollowerZNodes

            while len(self._followers) < 2:
                self._followers.append(Follower(self.tree))
            client = FollowerZNodes(self.random.choice(self._followers), znodes)
        ledger = ZNodeLedger(
            client, "simulated", incarnation=incarnation, step_deadline_s=deadline_s, clock_ms=self.clock.time_ms
        )
        if self.kind.chunks:
            ledger.chunk_bytes = self.random.choice(CHUNK_BYTES)
        return ledger

    def stores_here(self) -> dict[str, Store]:
        return self.stores[self.judge.two and self.process.place == 1]


def world_of(seed: int, kind: Kind) -> World:
    """A history's setting. The number of faults in it is random, too."""
    faults = Faults()
    scheduler = Scheduler(seed, faults, max_steps=MAX_STEPS)
    chance = scheduler.random
    faults.killed = chance.choice((0.0, 0.01, 0.03))
    faults.paused = chance.choice((0.0, 0.02, 0.06))
    faults.lost_before, faults.lost_after = chance.choice(((0.0, 0.0), (0.03, 0.03), (0.1, 0.1)))
    faults.late = chance.choice((0.0, 0.05))
    faults.unavailable = chance.choice((0.0, 0.02))
    faults.unopened = chance.choice((0.0, 0.0, 0.1, 0.3))
    stores: tuple[dict[str, Store], dict[str, Store]] = ({}, {})
    retention = chance.choice((1, 2, 50))
    max_pending = chance.choice((1, 2, 10) if kind.opaque else (1, 2, 3, 5))
    judge_type = JudgeOfDays if kind.bound else JudgeOfTasks
    judge = judge_type(stores[0], max_pending=max_pending, retention=retention, opaque=kind.opaque)
    tree = SimTree(judge.ledger_step)
    total = chance.randint(3, 9)
    world = World(
        kind=kind,
        scheduler=scheduler,
        clock=SimTime(scheduler),
        judge=judge,
        tree=tree,
        stores=stores,
        topology=topology_of(kind.opaque, kind.ordered, kind.levels, kind.bound),
        retention=retention,
        poison=chance.choice((0.0, 0.1, 0.3)),
        rough=4.0 if kind.restores else chance.choice((0.3, 1.0, 4.0)),
        total=total,
        apart=kind.tasks and chance.random() < 0.2,
        lags=kind.tasks and chance.random() < 0.5,
    )
    world.loses_staged = world.apart or kind.elsewhere
    if isinstance(judge, JudgeOfDays):
        judge.source.days = KEYS[: chance.randint(1, len(KEYS))]
    _tell_judge(world)
    return world


def _tell_judge(world: World) -> None:
    kind, judge = world.kind, world.judge
    if kind.levels:
        judge.levels = True
        judge.ordered.update(levels.FED)
    elif kind.ordered:
        judge.ordered.add("second")
    judge.group = limits.FIRST if kind.tasks else MOST_TOGETHER if kind.groups or kind.bound else 1
    judge.process = lambda: world.process
    judge.now_ms = None if kind.tasks else world.clock.time_ms


@functools.cache
def topology_of(opaque: bool, ordered: bool, in_levels: bool, bound: bool) -> Topology:
    """Built and compiled once in a process: its spout and its states are those of whatever history is played."""
    topology = Topology("simulated", partitions=DAYS if bound else None)
    spout = SimSpout(_played, SpoutKind.OPAQUE if opaque else SpoutKind.TRANSACTIONAL)
    stream = topology.new_stream("records", DaySpout(_played) if bound else spout)
    if in_levels:
        levels.build(stream, levels.LevelStates(_played))
        return topology
    states, records = SimStates(_played), stream.group_by("day, record" if bound else "record")
    records.persistent_aggregate(states, Count(), "n", name="first")
    if ordered:
        records.persistent_aggregate(states, "record", Log(), "log string", name="second")
    else:
        records.persistent_aggregate(states, Count(), "n", name="second")
    return topology


def _played() -> World:
    return World.played
