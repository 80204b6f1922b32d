"""Backfill: replays FAILED and SKIPPED transactions, each exactly once, lowest first.

A backfill may be killed at any point. The ledger lists each transaction that it began to replay until this is
processed, or committed if it is late; the same backfill takes it up again (P12).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_trident.engine.engine import Engine, quiet
from airflow_trident.errors import TransitionError, TridentError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.workers import is_alive
from airflow_trident.names import DEFAULT_MAX_MERGE_ROWS, DEFAULT_MAX_PARTITION_KEYS, DEFAULT_RETENTION
from airflow_trident.protocol.decide import AlreadyCommitted, Wait
from airflow_trident.protocol.records import LedgerView, Owner, Status, TxRecord
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.limits import AUTO, parse_group, require_groups
from airflow_trident.runtime.drains.process_many import process_many
from airflow_trident.runtime.outcomes import register
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, Progress, process
from airflow_trident.runtime.workers import at_work
from airflow_trident.topology.topology import Topology


class BackfillOutcome(StrEnum):
    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    CLOSED = "closed for good"
    PROCESSED = "processed, waits for a lower transaction"
    AT_WORK = "left alone: somebody else is at it"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What became of one transaction; `also_committed`: other transactions that its commit sweep committed."""

    txid: int
    outcome: BackfillOutcome
    detail: str = ""
    also_committed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which transactions: one range (both ends included; an end of None is open).

    `failed`: all that would stay as they are without a person: those that are FAILED, those whose replay began and has
    not ended, processed ones that wait for nobody, and those that :attr:`Backfill.orphans` names.
    """

    first: int | None = None
    last: int | None = None
    failed: bool = False

    def txids(self, view: LedgerView) -> list[int]:
        """:raises TransitionError: the range names transactions that were never begun."""
        if self.failed:
            return list(view.exceptions.unfinished)
        first = 1 if self.first is None else self.first
        last = view.next_txid - 1 if self.last is None else self.last
        if first < 1 or last >= view.next_txid or first > last:
            request = f"{first}" if first == last else f"{first} to {last}"
            raise TransitionError(
                f"topology {view.topology.name!r} has transactions 1 to {view.next_txid - 1}, not {request}",
                f"See `airflow trident ledger list {view.topology.name}`.",
            )
        return list(range(first, last + 1))


def _none(_records: Sequence[TxRecord]) -> Collection[int]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """Replays transactions in this process, with the protocol of every other task: whoever else is at work, in the end
    each state has each transaction once.

    :param owner: who replays; a task also owns what an earlier try of it left.
    :param orphans: of these transactions, which are PROCESSING, the txids of those that no task will continue. The
        ledger does not know that of tasks; Airflow does.
    :param group: how many are processed together, if possible: see
        :class:`~airflow_trident.runtime.drains.limits.DrainLimits`. Transactions at or below the commit pointer are
        processed alone.
    :raises ConfigurationError: `group` is a number, but the topology or one of its states takes transactions one by
        one.
    """

    ledger: Ledger
    topology: Topology
    engine: Callable[[], Engine]
    staging_root: str
    owner: Owner | str
    retention: int = DEFAULT_RETENTION
    attempt_timeout_s: float | None = None
    rows_in_errors: bool = True
    max_merge_rows: int = DEFAULT_MAX_MERGE_ROWS
    max_partition_keys: int = DEFAULT_MAX_PARTITION_KEYS
    progress: Progress = quiet
    group: int | str = AUTO
    orphans: Callable[[Sequence[TxRecord]], Collection[int]] = _none

    def __post_init__(self) -> None:
        require_groups(self.topology.compile(), parse_group(self.group))

    def run(self, selection: Selection) -> list[Backfilled]:
        """Replays the selected transactions that are not committed; a failure of one does not stop the others.

        :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
        """
        register(self.ledger, self.topology)
        with at_work(self.ledger, self.owner) as me:
            return replace(self, owner=me)._run(selection)

    def _run(self, selection: Selection) -> list[Backfilled]:
        view = self.ledger.view(0)
        txids, passed = selection.txids(view), view.pointer.committed
        if selection.failed:
            txids = sorted({*txids, *self._orphaned(view)})
        results: list[Backfilled] = []
        with self.engine() as engine:
            if not selection.failed and len(txids) > 1:
                txids = self._unfinished_of(txids, passed, results)
            many = [txid for txid in txids if txid > passed]
            if len(many) > 1:
                txids = [txid for txid in txids if txid <= passed]
            results += (self._told(self._one(txid, engine, leaves=selection.failed)) for txid in txids)
            if len(many) > 1:
                results += self._several(many, engine, leaves=selection.failed)
            if selection.failed:
                results += map(self._told, self._left_over(engine, {finished.txid for finished in results}))
        if not results:
            self.progress(f"topology {self.topology.name}: nothing to replay, and nothing waits to be committed")
        return results

    def _orphaned(self, view: LedgerView) -> Collection[int]:
        first = view.pointer.committed + 1
        pending = self.ledger.transactions(first) if first < view.next_txid else ()
        processing = [tx for tx in pending if tx.status is Status.PROCESSING]
        return self.orphans(processing) if processing else ()

    def _unfinished_of(self, txids: Sequence[int], passed: int, results: list[Backfilled]) -> list[int]:
        """Those of a range of which something may be left to do; what became of the others is added to the results, at
        the price of one look."""
        records = {tx.txid: tx for tx in self.ledger.transactions(txids[0], min(txids[-1], passed))}
        unfinished: list[int] = []
        for txid in txids:
            tx = records.get(txid)
            if txid > passed or (tx is not None and not tx.status.is_final):
                unfinished.append(txid)
                continue
            closed = tx is not None and tx.status is Status.CLOSED
            outcome = BackfillOutcome.CLOSED if closed else BackfillOutcome.ALREADY_COMMITTED
            results.append(self._told(Backfilled(txid=txid, outcome=outcome)))
        return unfinished

    def _told(self, backfilled: Backfilled) -> Backfilled:
        also = f", and with it {list(backfilled.also_committed)}" if backfilled.also_committed else ""
        detail = f": {backfilled.detail}" if backfilled.detail else ""
        self.progress(f"transaction {backfilled.txid}: {backfilled.outcome}{also}{detail}")
        return backfilled

    def _attempts(self) -> Attempts:
        return Attempts(
            owner=self.owner,
            last_try=True,
            timeout_s=self.attempt_timeout_s,
            replays=True,
            rows_in_errors=self.rows_in_errors,
            max_merge_rows=self.max_merge_rows,
            max_partition_keys=self.max_partition_keys,
        )

    def _committer(self, engine: Engine) -> Committer:
        return Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging_root,
            attempts=self._attempts(),
            engine=lambda: engine,
            retention=self.retention,
            progress=self.progress,
        )

    def _one(self, txid: int, engine: Engine, *, leaves: bool) -> Backfilled:
        """:param leaves: leave the transaction to others who work on it, because nobody named it."""
        attempts = self._attempts()
        try:
            other = self._somebody_at(txid) if leaves else None
            if other is not None:
                return Backfilled(txid=txid, outcome=BackfillOutcome.AT_WORK, detail=other)
            tx = self.ledger.view(txid).tx
            if tx is not None and is_unprocessed(tx):
                done = process(self.ledger, self.topology, txid, engine, self.staging_root, attempts, self.progress)
                if done.outcome is ProcessOutcome.ALREADY_COMMITTED:
                    return Backfilled(txid=txid, outcome=BackfillOutcome.ALREADY_COMMITTED)
        except TridentError as error:
            return Backfilled(txid=txid, outcome=BackfillOutcome.FAILED, detail=str(error))
        return self._committed(txid, engine)

    def _committed(self, txid: int, engine: Engine) -> Backfilled:
        """The commit phase of a processed transaction."""
        try:
            sweep = self._committer(engine).commit(txid, take_over=True)
        except TridentError as error:
            return Backfilled(txid=txid, outcome=BackfillOutcome.FAILED, detail=str(error))
        others = tuple(other for other in sweep.committed if other != txid)
        if isinstance(sweep.own, AlreadyCommitted):
            is_committed = txid in sweep.committed
            outcome = BackfillOutcome.COMMITTED if is_committed else BackfillOutcome.ALREADY_COMMITTED
            return Backfilled(txid=txid, outcome=outcome, also_committed=others)
        verdict = sweep.own
        why = (
            verdict.why
            if isinstance(verdict, Wait)
            else f"transaction {verdict.by} is {'SKIPPED' if verdict.skipped else 'FAILED'}"
        )
        return Backfilled(txid=txid, outcome=BackfillOutcome.PROCESSED, detail=why, also_committed=others)

    def _several(self, txids: Sequence[int], engine: Engine, *, leaves: bool) -> Iterator[Backfilled]:
        """Processes and commits together what can go together; afterwards the others, which were not free, one by
        one."""
        remaining = list(txids)
        for ended in process_many(
            self.ledger,
            self.topology,
            txids,
            engine,
            self.staging_root,
            self._attempts(),
            self.progress,
            group=self.group,
            is_free=lambda tx: is_unprocessed(tx) and not (leaves and self._somebody_at(tx.txid)),
        ):
            remaining = [txid for txid in remaining if txid not in ended.txids]
            committed: set[int] = set()
            for txid in ended.txids:
                if txid in ended.failures:
                    backfilled = Backfilled(txid=txid, outcome=BackfillOutcome.FAILED, detail=str(ended.failures[txid]))
                elif txid in committed:
                    backfilled = Backfilled(txid=txid, outcome=BackfillOutcome.COMMITTED)
                else:
                    backfilled = self._committed(txid, engine)
                    committed.update(backfilled.also_committed)
                    others = tuple(other for other in backfilled.also_committed if other not in ended.txids)
                    backfilled = replace(backfilled, also_committed=others)
                yield self._told(backfilled)
        for txid in remaining:
            yield self._told(self._one(txid, engine, leaves=leaves))

    def _left_over(self, engine: Engine, tried: Collection[int]) -> list[Backfilled]:
        """Commits the next transaction if it is processed or lost its batch, and all that follow: its run may have
        ended long ago."""
        view = self.ledger.view(0)
        first = view.pointer.committed + 1
        if not view.pending or first in tried:
            return []
        try:
            if self._somebody_at(first) is not None:
                return []
            committed = self._committer(engine).commit(first, take_over=True).committed
        except TridentError as error:
            return [Backfilled(txid=first, outcome=BackfillOutcome.FAILED, detail=str(error))]
        return [Backfilled(txid=txid, outcome=BackfillOutcome.COMMITTED) for txid in committed]

    def _somebody_at(self, txid: int) -> str | None:
        """Who else works on the transaction now: its owner, if that is listed as a live worker."""
        tx = self.ledger.view(txid).tx
        if tx is None or tx.status not in (Status.PROCESSING, Status.COMMITTING):
            return None
        me = Owner.of(self.owner)
        if tx.owner == me or tx.owner.is_same_task(me):
            return None
        if not tx.owner.worker and (tx.owner.host, tx.owner.pid) == (me.host, me.pid):
            return None  # this process left it when it could not be listed
        if not is_alive(self.ledger.workers(), tx.owner):
            return None
        return (
            f"{tx.owner} (to take it over all the same: `airflow trident backfill {self.topology.name} --txid {txid}`)"
        )


def is_unprocessed(tx: TxRecord) -> bool:
    """Is there something to process? Also if it is staged: a caller that names it wants it to run again."""
    return not tx.status.is_final and tx.status is not Status.COMMITTING
