"""The jobs of processes: the verbs of the protocol, the commands of people, and accidents."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import nullcontext
from itertools import accumulate

from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    FencedError,
    HeldError,
    LateBatchError,
    RetryableError,
    TransitionError,
    TridentError,
    UnknownTopologyError,
    UserCodeError,
)
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.records import Claim, Command, OnFailure, Status
from airflow_trident.runtime import phases
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import MOST_TOGETHER, Committer
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.runtime.phases import Attempts
from airflow_trident.runtime.repair import take_back
from airflow_trident.types import Json
from tests.fixtures import single
from tests.simulation.day_jobs import DAY_JOBS, EXPECTED, ask, ask_together, close, source_changes
from tests.simulation.group_jobs import GROUP_JOBS, coordinate_group
from tests.simulation.kinds import Kind
from tests.simulation.scheduler import Killed
from tests.simulation.world import Process, World

RUNS = 4
KEPT_TRIES = 3

Job = Callable[[World, ZNodeLedger], None]
Errors = tuple[type[TridentError], ...]


def coordinate(world: World, ledger: ZNodeLedger) -> None:
    several = 1 + (world.kind.restores or world.topology.opaque)
    key = f"run-{world.random.randrange(RUNS * several)}"
    result = single.coordinate(ledger, world.topology, Claim(key=key), max_pending=world.judge.max_pending)
    world.note(f"{key}: {type(result).__name__} {getattr(result, 'txid', '')}")
    if isinstance(result, Begun):
        world.judge.claimed(key, result.txid)
        world.given[key] = result.txid


def _some_txid(world: World) -> int | None:
    return world.random.choice(sorted(world.given.values())) if world.given else None


def _attempts(world: World) -> Attempts:
    chance = world.random
    on_failure = chance.choice((OnFailure.BLOCK, OnFailure.SKIP))
    return Attempts(owner="simulated", last_try=chance.random() < 0.3, on_failure=on_failure)


def emit(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is not None:
        result = phases.process(ledger, world.topology, txid, world.engine(), "", _attempts(world))
        world.note(f"emit {txid}: {result.outcome} {result.attempt}")


def commit_one(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is None:
        return
    take_over = world.random.random() < 0.5
    committer = Committer(
        ledger=ledger,
        topology=world.topology,
        staging_root="",
        attempts=_attempts(world),
        engine=world.engine,
        retention=world.retention,
        most_together=world.random.choice((1, 2, MOST_TOGETHER)),
    )
    keeps = world.random.random() < 0.3
    with OpenStates(world.topology) if keeps else nullcontext() as states:
        for left in reversed(range(KEPT_TRIES if keeps else 1)):
            try:
                result = committer.commit(txid, take_over=take_over, states=states)
                world.note(f"commit {txid}: {result.committed}, {result.own}")
                return
            except RetryableError as error:
                world.note(f"commit {txid}: {error.message}; {left} tries left")
                if not left:
                    raise


def backfill(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is not None:
        replay(world, ledger, Selection(first=txid, last=txid))


def replay(world: World, ledger: ZNodeLedger, selection: Selection) -> list[int]:
    """The command. A person who is killed at it types it again later. Returns what was left to others still at work."""
    left = []
    work = Backfill(
        ledger=ledger,
        topology=world.topology,
        engine=world.engine,
        staging_root="",
        owner="person",
        retention=world.retention,
    )
    try:
        for done in work.run(selection):
            world.note(f"backfill {done.txid}: {done.outcome} {done.detail}")
            expected_text(world, done.detail)
            left += [done.txid] if done.outcome is BackfillOutcome.AT_WORK else []
    except Killed:
        world.commands.append(selection)
        raise
    return left


def skip(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is not None:
        world.note(f"skip {txid}: {ledger.skip(txid, 'a person said so').status}")


def taken_back(world: World, ledger: ZNodeLedger) -> None:
    give_back(world, ledger)


def give_back(world: World, ledger: ZNodeLedger) -> None:
    """A person takes back a commit that seems never to succeed."""
    begun = [tx.txid for tx in ledger.transactions() if tx.touched and tx.status is not Status.COMMITTED]
    if not begun:
        return
    txid = world.random.choice(begun)

    def progress(_line: str) -> None:
        if world.kind.taken_back and not world.calm and world.random.random() < 0.5:
            world.scheduler.doze(world.random.choice((20, 60)))

    try:
        record = take_back(ledger, world.topology, txid, owner="person", reason="a person said so", progress=progress)
    except HeldError as error:
        world.note(f"take back {txid}: {error.message}")
    else:
        world.note(f"take back {txid}: {record.status}")


def fail(world: World, ledger: ZNodeLedger) -> None:
    """A failure callback, which may come at any time from any attempt."""
    txid = _some_txid(world)
    if txid is None:
        return
    tx = ledger.view(txid).tx
    if tx is not None and tx.attempt >= 0:
        attempt = world.random.choice((tx.attempt, max(0, tx.attempt - 1)))
        record = ledger.fail(txid, attempt, "callback")
        world.note(f"fail {txid} attempt {attempt}: {record.status}")
        if record.attempt != attempt:
            world.judge.broken("P4", f"attempt {attempt} of {txid} made attempt {record.attempt} FAILED")


def command(world: World, ledger: ZNodeLedger) -> None:
    ledger.set_command(world.random.choice((Command.RUN, Command.RUN, Command.PAUSE)))


def lose_staged(world: World, ledger: ZNodeLedger) -> None:
    """Somebody empties the staging folders."""
    world.note("the staging folders are emptied")
    world.loses_staged = True
    for staging in world.stagings.values():
        staging.manifests.clear()
        staging.files.clear()


def deliver(world: World, ledger: ZNodeLedger) -> None:
    """A write that was delayed for long arrives; sessions of dead processes end."""
    world.expire_sessions()
    if world.tree.held:
        world.note("a late write arrives")
        world.tree.deliver(world.random.randrange(len(world.tree.held)))


JOBS: dict[Job, float] = {
    coordinate: 5,
    emit: 7,
    commit_one: 7,
    backfill: 1.5,
    skip: 0.7,
    fail: 0.5,
    taken_back: 0.5,
    command: 0.5,
    lose_staged: 0.2,
    deliver: 1,
}
AT_WORK = (coordinate, emit, commit_one, backfill, taken_back, *GROUP_JOBS)
"""Processes in these jobs must be gone when the ledger is restored. A step that they decided before could fit the
restored ledger by accident, because its version numbers are used again."""
RIGHT: dict[Job, Errors] = {
    command: (UnknownTopologyError,),
    taken_back: (UnknownTopologyError,),
    close: (UnknownTopologyError,),
    **dict.fromkeys(GROUP_JOBS, (UnknownTopologyError, TransitionError)),
}
"""They look first, and may find later that there was no topology yet, or that another process was faster."""


def do_one(world: World, place: int) -> None:
    """Run one process of a worker."""
    jobs, chances = _chances(world.kind, world.rough)
    job = world.random.choices(jobs, cum_weights=chances)[0]
    world.at_work += job in AT_WORK
    try:
        with world.running(Process(place=place)):
            job(world, world.ledger())
    except Killed:
        world.note(f"{job.__name__}: killed")
    except TridentError as error:
        expected(world, job.__name__, error, also=RIGHT.get(job, ()))
    finally:
        world.at_work -= job in AT_WORK
    _accident(world)


@functools.cache
def _chances(kind: Kind, rough: float) -> tuple[list[Job], list[float]]:
    """The jobs of such a history, and their cumulative weights."""
    weights = {**JOBS, **GROUP_JOBS} if kind.groups else {**JOBS}
    if kind.bound:
        weights |= {**DAY_JOBS, ask_together: weights.get(coordinate_group, 0.0)}
        weights |= dict.fromkeys((coordinate, coordinate_group), 0.0)
    return list(weights), list(accumulate(weight * _often(kind, rough, job) for job, weight in weights.items()))


def _often(kind: Kind, rough: float, job: Job) -> float:
    """In rough histories people skip and replay a lot. Coordinators run more often in histories with a restore, because
    only they survive it."""
    if job is skip and kind.in_order and not kind.bound:
        return 0.2 * rough
    if job in (ask, source_changes):
        return max(1.0, rough)
    if job is coordinate and kind.restores:
        return 3.0
    if job is taken_back and kind.taken_back:
        return 12.0
    if kind.opaque and job in (lose_staged, fail):
        return 5.0  # a batch that a state holds already has to be chosen anew
    return rough if job in (skip, fail, backfill, taken_back) else 1.0


def expected(world: World, what: str, error: TridentError, also: Errors = ()) -> None:
    """:raises Broken: no interleaving may lead to this error."""
    world.note(f"{what}: {type(error).__name__} {error.message}")
    fine: Errors = (RetryableError, FencedError, UserCodeError, *also)
    if world.kind.bound:
        fine += EXPECTED
    if world.judge.restored:
        fine += (CorruptError, TransitionError)  # attempts and txids are used a second time
    if isinstance(error, ConfigurationError) and "was emitted again" in error.message and world.loses_staged:
        return
    if world.kind.bound and isinstance(error, TransitionError) and "closed for good" in error.message:
        return
    if isinstance(error, LateBatchError):
        if not world.judge.skips:
            world.judge.broken("P6", f"{what}: nothing was ever skipped, and yet: {error}")
        return
    if not isinstance(error, fine) and not (isinstance(error, TransitionError) and not what.startswith("commit")):
        world.judge.broken("P11", f"{what} ended with {type(error).__name__}: {error}")


def expected_text(world: World, detail: str) -> None:
    """:func:`expected` for an error that is only reported as text."""
    if "depends on the order" in detail and not world.judge.skips:
        world.judge.broken("P6", f"nothing was ever skipped, and yet: {detail}")


def _accident(world: World) -> None:
    """The ledger is copied, and restored later, while nobody is at work except coordinators that have read the states
    before."""
    if not world.kind.restores or world.at_work:
        return
    if world.copy is None and world.judge.next_txid > 1 and world.random.random() < 0.3:
        world.note("the ledger is copied")
        world.copy = world.tree.copy()
    elif world.copy is not None and not world.judge.restored and world.random.random() < 0.1:
        world.note("the ledger is restored")
        world.tree.held.clear()
        world.tree.restore(world.copy)
        world.judge.restored = world.judge.silent = True
        _begin_without_a_look(world)


def _begin_without_a_look(world: World) -> None:
    """Coordinators that read the states before the restore begin transactions."""
    coordinator = world.topology.spouts["records"].coordinator()

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        found = coordinator.initialize_transaction(txid, position.get("records"))
        return None if found is None else {"records": found}

    for number in range(world.random.randint(0, 2)):
        key = f"looked-before-{number}"
        try:
            result = single.begin(
                world.ledger(),
                Claim(key=key),
                metadata_of,
                max_pending=world.judge.max_pending,
            )
        except (Killed, TridentError) as error:
            world.note(f"{key}: {error!r}")
            continue
        world.note(f"{key}: {type(result).__name__} {getattr(result, 'txid', '')}")
        if isinstance(result, Begun):
            world.given[key] = result.txid
