"""One history: processes of an imagined Airflow that run the production code against each other, then a clean end.

python -m tests.simulation 4711        runs one seed and prints what happened
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from airflow_trident.errors import (
    CorruptError,
    FencedError,
    LedgerBehindStateError,
    RetryableError,
    TransitionError,
    TridentError,
    UnknownTopologyError,
    UserCodeError,
)
from airflow_trident.ledger.base import Begun, NothingNew
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.protocol.records import Claim, Command
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime import commit, phases
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.crash import CrashPoint
from airflow_trident.runtime.phases import Attempts, OnFailure
from airflow_trident.types import Json
from tests.simulation.judge import Broken
from tests.simulation.pieces import (
    batch_of,
)
from tests.simulation.scheduler import Killed
from tests.simulation.world import MAX_STEPS, World, world_of

RUNS = 4
END_ROUNDS = 40


@dataclass(frozen=True)
class Verdict:
    """What became of a history. `broken` is empty if every promise held."""

    seed: int
    broken: str
    steps: int
    transactions: int
    trace: tuple[str, ...]


# ---- what processes do ---------------------------------------------------------------------------------------------


def coordinate(world: World, ledger: ZNodeLedger) -> None:
    several = 1 + (world.restores or world.topology.opaque)
    key = f"run-{world.random.randrange(RUNS * several)}"
    result = phases.coordinate(ledger, world.topology, Claim(key=key), max_pending=world.judge.max_pending)
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
    )
    result = committer.commit(txid, take_over=take_over)
    world.note(f"commit {txid}: {result.committed}, {result.own}")


def backfill(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is not None:
        _backfill(world, ledger, Selection(first=txid, last=txid))


def _backfill(world: World, ledger: ZNodeLedger, selection: Selection) -> None:
    work = Backfill(
        ledger=ledger,
        topology=world.topology,
        engine=world.engine,
        staging_root="",
        owner="person",
        retention=world.retention,
    )
    for done in work.run(selection):
        world.note(f"backfill {done.txid}: {done.outcome} {done.detail}")


def skip(world: World, ledger: ZNodeLedger) -> None:
    txid = _some_txid(world)
    if txid is not None:
        world.note(f"skip {txid}: {ledger.skip(txid, 'a person said so').status}")


def fail(world: World, ledger: ZNodeLedger) -> None:
    """A failure callback that comes at any time, from any attempt."""
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
    """Somebody empties the staging folder."""
    world.note("the staging folder is emptied")
    world.staging.manifests.clear()
    world.staging.files.clear()


def deliver(world: World, ledger: ZNodeLedger) -> None:
    """A write that was under way for long arrives."""
    if world.tree.held:
        world.note("a late write arrives")
        world.tree.deliver(world.random.randrange(len(world.tree.held)))


Job = Callable[[World, ZNodeLedger], None]
JOBS: dict[Job, float] = {
    coordinate: 5,
    emit: 7,
    commit_one: 7,
    backfill: 1.5,
    skip: 0.7,
    fail: 0.5,
    command: 0.5,
    lose_staged: 0.2,
    deliver: 1,
}
WORKERS = 3
JOBS_PER_WORKER = (10, 40)


def work(world: World) -> None:
    """A slot of the scheduler: one process after another."""
    for _ in range(world.random.randint(*JOBS_PER_WORKER)):
        world.scheduler.step(safe=True)
        if world.calm:
            return
        job = world.random.choices(list(JOBS), [weight * _often(world, job) for job, weight in JOBS.items()])[0]
        world.at_work += job in (emit, commit_one, backfill)
        try:
            job(world, world.ledger())
        except Killed:
            world.note(f"{job.__name__}: killed")
        except TridentError as error:
            _expected(world, job, error)
        finally:
            world.at_work -= job in (emit, commit_one, backfill)
        _accident(world)


def _often(world: World, job: Job) -> float:
    """In rough histories people skip and replay a lot; coordinators are who lives through a restore."""
    if job is coordinate and world.restores:
        return 3.0
    if world.topology.opaque and job in (lose_staged, fail):
        return 5.0  # a batch that a state holds already has to be chosen anew
    return world.rough if job in (skip, fail, backfill) else 1.0


def _expected(world: World, job: Job, error: TridentError) -> None:
    """:raises Broken: no interleaving may lead to this error."""
    world.note(f"{job.__name__}: {type(error).__name__} {error.message}")
    fine: tuple[type[TridentError], ...] = (RetryableError, FencedError, UserCodeError)
    if job is command:
        fine += (UnknownTopologyError,)
    if world.judge.restored:
        fine += (CorruptError, TransitionError)  # attempts and txids are given out a second time
    if not isinstance(error, fine) and not (isinstance(error, TransitionError) and job is not commit_one):
        world.judge.broken("P11", f"{job.__name__} ended with {type(error).__name__}: {error}")


def _accident(world: World) -> None:
    """The ledger is copied, and put back later: only coordinators live through that."""
    if not world.restores or world.at_work:
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
    """Coordinators that had looked at the states before the restore."""
    coordinator = world.topology.spouts["records"].coordinator()

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        found = coordinator.initialize_transaction(txid, position.get("records"))
        return None if found is None else {"records": found}

    for number in range(world.random.randint(0, 2)):
        key = f"looked-before-{number}"
        try:
            result = world.ledger().begin(
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


# ---- the end -------------------------------------------------------------------------------------------------------


def end(world: World) -> None:
    """When nothing goes wrong any more, everything gets committed; zombies that wake up then change nothing (P9)."""
    try:
        while world.scheduler.others_at_work():
            world.scheduler.step()
        _settle(world)
        for number in range(WORKERS):
            world.scheduler.freeze(f"worker-{number}", frozen=False)
        while world.tree.held:
            world.tree.deliver(0)
        while world.scheduler.others_at_work():
            world.scheduler.step()
        _settle(world)
    except LedgerBehindStateError as error:
        if not world.judge.restored:
            world.judge.broken("P11", f"nobody restored the ledger: {error}")
        world.note(f"refused: {error.message}")
        _nothing_is_called_committed_that_is_not(world)


def calm_down(world: World) -> None:
    """Wait until the others have done enough, end all faults, and let some of them sleep until the end is over."""
    for _ in range(world.random.choice((40, 100, 250))):
        world.scheduler.step(safe=True)
    world.calm = True
    world.scheduler.faults.none()
    for number in range(WORKERS):
        if world.random.random() < 0.4:
            world.scheduler.freeze(f"worker-{number}", frozen=True)
    end(world)


def _settle(world: World) -> None:
    ledger = world.ledger()
    ledger.register(world.topology.definition())
    ledger.set_command(Command.RUN)
    for number in range(END_ROUNDS):
        view = ledger.view(0)
        if view.next_txid > 1:
            _backfill(world, ledger, Selection())
        claim = Claim(key=f"end-{world.scheduler.steps}-{number}")
        result = phases.coordinate(ledger, world.topology, claim, max_pending=world.judge.max_pending)
        view = ledger.view(0)
        open_ones = [tx.txid for tx in ledger.transactions() if tx.status is not Status.COMMITTED]
        if isinstance(result, NothingNew) and not open_ones:
            break
    else:
        if not world.judge.restored:
            world.judge.broken("P9", f"after {END_ROUNDS} rounds {open_ones} are not committed, and {result}")
    if world.judge.restored:
        _nothing_is_called_committed_that_is_not(world)
        return
    if view.pointer.committed != view.next_txid - 1:
        world.judge.broken("P9", f"the pointer is {view.pointer.committed} and the next txid is {view.next_txid}")
    for name in ("first", "second"):
        records = world.judge.stores[name].records
        if +records != Counter(range(world.total)):
            world.judge.broken("P9", f"state {name} has {dict(records)} of {world.total} records")
    claims = ledger.export()["claims"]
    if claims != world.judge.claims:
        world.judge.broken("P1", f"the ledger has the claims {claims} instead of {world.judge.claims}")


def _nothing_is_called_committed_that_is_not(world: World) -> None:
    """After a restore: no record is skipped in silence (P8), none is there twice (P7, checked at each step)."""
    for tx in world.ledger().transactions():
        if tx.status is not Status.COMMITTED:
            continue
        for name, store in world.judge.stores.items():
            if any(store.records[record] != 1 for record in batch_of(tx.metadata)):
                world.judge.broken("P8", f"{tx.txid} is COMMITTED, and state {name} has {dict(store.records)}")


@contextmanager
def instead_of_the_world(world: World) -> Iterator[None]:
    """Production code, but for the disk: crash points and the staging folder are simulated."""

    def point(where: CrashPoint, txid: int) -> None:
        world.note(f"crash point {where} of {txid}")
        world.scheduler.step()

    with (
        mock.patch.object(phases, "crash_point", point),
        mock.patch.object(commit, "crash_point", point),
        mock.patch.object(phases, "StagingArea", world.area),
        mock.patch.object(commit, "StagingArea", world.area),
    ):
        yield


def play(seed: int, *, restores: bool = False, opaque: bool = False) -> Verdict:
    """Play the history of a seed: always the same one."""
    world = world_of(seed, restores=restores, opaque=opaque)
    broken = ""
    with instead_of_the_world(world):
        bodies: dict[str, Callable[[], None]] = {"end": lambda: calm_down(world)}
        bodies.update({f"worker-{number}": lambda: work(world) for number in range(WORKERS)})
        try:
            world.scheduler.play(bodies)
        except Broken as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, no interleaving may lead to it
            broken = f"P11: {type(error).__name__}: {error}"
    if world.scheduler.out_of_steps and not broken:
        broken = f"P9: no end after {MAX_STEPS} steps"
    return Verdict(seed, broken, world.scheduler.steps, world.judge.next_txid - 1, tuple(world.trace))
