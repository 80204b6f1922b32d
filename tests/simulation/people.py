"""The end of a history: nothing goes wrong any more, and people bring everything to its end. They use what they know:
the lists of `airflow trident ledger list`, the tasks that are red in Airflow, and the commands that they typed."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from tempfile import gettempdir

from airflow_trident.errors import (
    CorruptError,
    GoneOverError,
    LedgerBehindStateError,
    LostTransactionsError,
    TransitionError,
)
from airflow_trident.ledger.answers import NothingNew
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.records import Claim, Command, LedgerView, Status, TxRecord
from airflow_trident.protocol.txids import Ranges
from airflow_trident.runtime.backfill import Selection
from airflow_trident.runtime.mending.rebuild import Rebuild
from airflow_trident.runtime.repair import repair, take_back
from tests.fixtures import single
from tests.simulation.day_jobs import all_asked
from tests.simulation.jobs import replay
from tests.simulation.levels import FED, contents
from tests.simulation.pieces import SimEngine, batch_of
from tests.simulation.world import Process, World

END_ROUNDS = 40
WORKERS = 3
PATIENT_ROUNDS = 5
"""For this number of runs a person waits whether Airflow's tasks go on, or reads errors before a repair."""


def end(world: World, given_up: bool) -> None:
    """When nothing goes wrong any more, everything is committed. Zombies that wake up then change nothing (P9).

    :param given_up: a person gives up all runs, and no more data come: only new runs commit what is left.
    """
    try:
        _others_end(world)
        if given_up:
            from tests.simulation import shell_jobs

            shell_jobs.give_up_runs(world)
        _settle(world)
        _zombies_end(world)
        _settle(world)
        if world.judge.restored:  # nothing was refused: then nothing is missing
            ledger = world.ledger()
            world.judge.repaired(world.tree, ledger.export()["claims"], ())
            _require_all(world, ledger)
    except LedgerBehindStateError as error:
        if not world.judge.restored:
            world.judge.broken("P11", f"nobody restored the ledger: {error}")
        world.note(f"refused: {error.message}")
        _nothing_is_called_committed_that_is_not(world)
        _zombies_end(world)
        if _repair(world):
            _settle(world)


def _others_end(world: World) -> None:
    while world.scheduler.others_at_work():
        world.scheduler.step()


def _zombies_end(world: World) -> None:
    for number in range(WORKERS):
        world.scheduler.freeze(f"worker-{number}", frozen=False)
    while world.tree.held:
        world.tree.deliver(0)
    _others_end(world)


def _repair(world: World) -> bool:
    """A person reads the refusal, pauses everything and seeds the ledger from the states. False: without a back-up of
    one of them nothing helps, because several transactions came to one state alone (a group, or a late one and the
    highest), and the ledger does not know their batches."""
    ledger, lost = world.ledger(), Ranges()
    try:
        seed = repair(ledger, world.topology, gettempdir(), take_over="the ledger was deleted")
        lost = seed.lost
        world.note(f"repaired: {seed}")
    except TransitionError as error:
        world.note(f"nothing to repair any more: {error.message}")  # zombies have done the same once more
    except CorruptError as error:
        markers = [store.marker for store in world.judge.stores.values()]
        highest = max(one.high for one in markers if one is not None)
        below = [{txid for txid in range(1, highest) if one is not None and one.has(txid)} for one in markers]
        if all(one == below[0] for one in below):
            raise
        world.note(f"not repaired: {error.message}")
        return False
    world.judge.repaired(world.tree, ledger.export()["claims"], lost)
    world.total += 2  # the next transactions must find the states whole
    return True


def calm_down(world: World) -> None:
    """Wait until the others have done enough, end all faults, and let some of them sleep until the end is over."""
    for _ in range(world.random.choice((40, 100, 250))):
        world.scheduler.step(safe=True)
    world.calm = True
    given_up = world.kind.ready and world.random.random() < 0.5
    world.scheduler.faults.none()
    for number in range(WORKERS):
        if not given_up and world.random.random() < 0.4:
            world.scheduler.freeze(f"worker-{number}", frozen=True)
    end(world, given_up)


def _open_ones(world: World, ledger: ZNodeLedger) -> list[int]:
    return [tx.txid for tx in ledger.transactions() if not tx.status.is_final and not _lost(world, tx)]


def _settle(world: World) -> None:
    world.outsleep_sessions()
    world.expire_sessions()
    ledger = world.ledger()
    ledger.register(world.topology.definition())
    ledger.set_command(Command.RUN)
    if world.judge.damaged:
        _rebuild(world, ledger)
    for number in range(PATIENT_ROUNDS if world.judge.restored else END_ROUNDS):
        if world.kind.tasks:
            from tests.simulation import shell_jobs

            shell_jobs.tidy_up(world)
        _commands(world, ledger, patient=number < PATIENT_ROUNDS)
        # Where batches are decided anew, what was nothing new may be new when those before it are committed.
        final = not world.topology.opaque or not _open_ones(world, ledger)
        nothing_new = _one_more(world, ledger, number)
        if final and nothing_new and not _open_ones(world, ledger):
            break
    else:
        open_ones = _open_ones(world, ledger)
        if open_ones and world.judge.restored:
            raise LedgerBehindStateError("the commands end with errors that name it", "Repair the ledger.")
        if open_ones or not world.judge.restored:
            world.judge.broken("P9", f"after {END_ROUNDS} rounds {open_ones} are not committed")
    if world.judge.restored:
        _nothing_is_called_committed_that_is_not(world)
        return
    _require_all(world, ledger)


def _rebuild(world: World, ledger: ZNodeLedger) -> None:
    """A person reads the refusal and follows its cure; the states go on without what is lost."""
    world.judge.two = False

    def engine() -> SimEngine:
        return SimEngine(world.area(), lambda slot: None, 0.0)  # repeats an attempt, so it begins none

    work = Rebuild(ledger=ledger, topology=world.topology, engine=engine, staging_root=gettempdir())
    for name, txids in work.run(dry_run=True).lost.items():
        world.judge.lost.setdefault(name, set()).update(txids)
    try:
        done = work.run()
    except LostTransactionsError as error:
        world.note(f"lost: {error.message}")
        done = work.run(accept_loss="a person said so")
    world.note(f"rebuilt: {done}")
    world.total += 2  # the next transactions must find the states whole
    world.judge.damaged = False


def _one_more(world: World, ledger: ZNodeLedger, number: int) -> bool:
    """Run the next scheduled run. True: the source has nothing new."""
    if world.kind.tasks:
        from tests.simulation import shell_jobs

        return shell_jobs.scheduled(world)
    if world.kind.bound:
        return all_asked(world, ledger, number)
    claim = Claim(key=f"end-{world.scheduler.steps}-{number}")
    return isinstance(single.coordinate(ledger, world.topology, claim, max_pending=world.judge.max_pending), NothingNew)


def _commands(world: World, ledger: ZNodeLedger, *, patient: bool) -> None:
    """The commands of a person who sees the lists: first the same commands again, then those that the lists ask for."""
    again, world.commands = world.commands, []
    for selection in again:
        with suppress(TransitionError):  # the ledger was restored, or the topology removed
            replay(world, ledger, selection)
    listed = not world.kind.ready or ledger.view(0).exceptions.unfinished  # else nobody types what commits all the rest
    for txid in replay(world, ledger, Selection(failed=True)) if listed else ():
        replay(world, ledger, Selection(first=txid, last=txid))  # as the output says: nobody is at work any more
    _let_pass(world, ledger)
    view = ledger.view(0)
    pending = () if patient and world.kind.tasks else _stands_still(world, ledger, view)
    for txid in sorted({*view.exceptions.skipped, *pending}):
        replay(world, ledger, Selection(first=txid, last=txid))


def _let_pass(world: World, ledger: ZNodeLedger) -> None:
    """What `airflow trident doctor` says of a transaction that a state has gone over."""
    records = [tx for tx in ledger.transactions(ledger.view(0).pointer.committed + 1) if tx.touched]
    if not world.kind.restores or len(records) < 2 or not records[0].error.startswith(GoneOverError.__name__):
        return
    txid, by = records[0].txid, records[-1].txid
    world.note(f"{txid} lets {by} pass")
    take_back(ledger, world.topology, txid, owner="person", reason="gone over")
    ledger.skip(txid, "gone over")
    for one in (by, txid):
        replay(world, ledger, Selection(first=one, last=one))


def _stands_still(world: World, ledger: ZNodeLedger, view: LedgerView) -> list[int]:
    """The transactions that `airflow trident ledger list` calls pending, but processed ones only without an Airflow."""
    pending = ledger.transactions(view.pointer.committed + 1)
    if world.kind.ready:
        pending = [tx for tx in pending if not tx.invalidated]  # the next run emits it again: it must come
    return [tx.txid for tx in pending if tx.status is Status.PROCESSING or not world.kind.tasks]


def _lost(world: World, tx: TxRecord) -> bool:
    """Was it skipped and passed although a state depends on the order? Nothing brings it back; it stays on a list."""
    exceptions = world.judge.exceptions
    listed = tx.txid in (*exceptions.skipped, *exceptions.unfinished)
    return listed and world.kind.in_order and tx.txid <= world.judge.pointer.committed


def _require_all(world: World, ledger: ZNodeLedger) -> None:
    view = ledger.view(0)
    if view.pointer.committed != view.next_txid - 1:
        world.judge.broken("P9", f"the pointer is {view.pointer.committed} and the next txid is {view.next_txid}")
    lost = [record for tx in ledger.transactions() if _lost(world, tx) for record in batch_of(tx.metadata)]
    lost = [] if world.kind.bound else lost  # the day was asked for again
    if world.judge.levels:
        for name, wanted in contents(world.judge.done).items():
            held = world.judge.stores[name].records
            if +held != wanted:
                world.judge.broken("P9", f"state {name} has {dict(held)}, and should have {dict(wanted)}")
    for name in (one for one in world.topology.states if not (world.judge.levels and one in FED)):
        records = world.judge.stores[name].records
        without = {*lost, *(one for txid in world.judge.lost.get(name, ()) for one in world.judge.done[txid])}
        gone = world.judge.gone - (+records).keys()
        if +records != Counter(world.wanted - without - gone):
            world.judge.broken("P9", f"state {name} has {dict(records)} of {world.wanted}, without {without}")
    claims = ledger.export()["claims"]
    if claims != world.judge.claims:
        world.judge.broken("P1", f"the ledger has the claims {claims} instead of {world.judge.claims}")


def _nothing_is_called_committed_that_is_not(world: World) -> None:
    """After a restore no record is missing without notice (P8), and none is there twice (P7, checked at each step)."""
    with world.running(Process()):
        for tx in world.ledger().transactions():
            if tx.status is not Status.COMMITTED:
                continue
            for name, store in world.judge.stores.items():
                if any(store.records[record] != 1 for record in batch_of(tx.metadata)):
                    world.judge.broken("P8", f"{tx.txid} is COMMITTED, and state {name} has {dict(store.records)}")
