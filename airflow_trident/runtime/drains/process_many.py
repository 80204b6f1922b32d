"""The processing phase of many transactions by one caller: a backfill, or the emitter of a run that has several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from airflow_trident.engine.engine import Engine
from airflow_trident.errors import Outcome, TridentError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.decide import Unknown
from airflow_trident.protocol.records import TxRecord
from airflow_trident.runtime.drains.drain_passes import Passes
from airflow_trident.runtime.drains.limits import DrainLimits, GroupSize
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.phases import Attempts, Progress, process, unknown_transaction
from airflow_trident.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Transactions that were processed together, by txid. `failures`: their errors; `skipped`: errors of those that are
    SKIPPED now. The others are PROCESSED, or another process has them."""

    txids: tuple[int, ...]
    rows_read: int = 0
    failures: Mapping[int, Exception] = field(default_factory=dict)
    skipped: Mapping[int, Exception] = field(default_factory=dict)


def process_many(
    ledger: Ledger,
    topology: Topology,
    txids: Sequence[int],
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress,
    *,
    group: int | str,
    is_free: Callable[[TxRecord], bool],
) -> Iterator[Ended]:
    """New attempts of the free transactions, as many at a time as go together. Yields the result of each lot when it
    has ended.

    Transactions at or below the commit pointer are processed alone, because they commit alone. If the one attempt of a
    transaction by itself fails, it counts as failed here; the caller may try again.

    :param txids: rising, at least one.
    :param group: see :class:`~airflow_trident.runtime.drains.limits.DrainLimits`.
    :param is_free: is there something to do for it, and does nobody else work on it? Asked again when its turn comes.
    :raises TransitionError: one was never begun.
    """
    free = [record.txid for record in known_records(ledger, txids) if is_free(record)]
    committed = ledger.view(0, remembered=True).pointer.committed
    for late in (txid for txid in free if txid <= committed):
        yield _by_itself(ledger, topology, late, engine, staging_root, attempts, progress)
    remaining = [txid for txid in free if txid > committed]
    size = GroupSize(DrainLimits(group=group), together=engine.coalesces(topology.compile()).passes)
    with (
        OpenCoordinators(topology, ledger) as coordinators,
        Passes(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=staging_root,
            attempts=attempts,
            size=size,
            coordinators=coordinators,
            tries=1,
            workers=1,
            progress=progress,
        ) as passes,
    ):
        while remaining:
            lot, remaining = remaining[: size.now], remaining[size.now :]
            some = [record for record in known_records(ledger, lot) if is_free(record)]
            read = passes.rows_read
            passes.again(some)
            while passes.running:
                passes.take_results()
            ended = tuple(record.txid for record in some)
            yield Ended(
                txids=ended,
                rows_read=passes.rows_read - read,
                failures={txid: passes.failures[txid] for txid in ended if txid in passes.failures},
                skipped={txid: passes.skipped[txid] for txid in ended if txid in passes.skipped},
            )


def _by_itself(
    ledger: Ledger,
    topology: Topology,
    txid: int,
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress,
) -> Ended:
    try:
        done = process(ledger, topology, txid, engine, staging_root, attempts, progress)
    except TridentError as error:
        now = ledger.view(txid).tx
        if now is not None and now.status.lets_others_pass and now.error:
            return Ended(txids=(txid,), skipped={txid: error})
        return Ended(txids=(txid,), failures={txid: error})
    return Ended(txids=(txid,), rows_read=max(done.staged.rows_read, 0) if done.staged is not None else 0)


def known_records(ledger: Ledger, txids: Sequence[int]) -> list[TxRecord]:
    """The records of these transactions, without pruned ones, which were COMMITTED or CLOSED.

    :param txids: rising, at least one.
    :raises TransitionError: one was never begun.
    """
    next_txid = ledger.view(0).next_txid
    if txids[-1] >= next_txid:
        raise unknown_transaction(ledger.topology_name, Unknown(txids[-1], next_txid))
    wanted = set(txids)
    return [record for record in ledger.transactions(txids[0], txids[-1]) if record.txid in wanted]


def first_to_raise(failures: Mapping[int, Exception]) -> Exception | None:
    """The error to raise for all of them: the first one after which another try may help, else the first one."""
    for error in failures.values():
        if not isinstance(error, TridentError) or error.outcome is Outcome.RETRY:
            return error
    return next(iter(failures.values()), None)
