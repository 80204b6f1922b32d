"""Backfill: replay FAILED and SKIPPED transactions, each exactly once, lowest first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from airflow_trident.engine.base import Engine, quiet
from airflow_trident.errors import TransitionError, TridentError
from airflow_trident.ledger.base import DEFAULT_RETENTION, Ledger
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked
from airflow_trident.protocol.records import LedgerView
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, Progress, process
from airflow_trident.topology.topology import Topology


class BackfillOutcome(StrEnum):
    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"
    PROCESSED = "processed, waits for a lower transaction"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfilled:
    """What became of one transaction; `also_committed`: others that its commit sweep took along."""

    txid: int
    outcome: BackfillOutcome
    detail: str = ""
    also_committed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which transactions: one range (both ends included; an end of None is open), or all that are FAILED."""

    first: int | None = None
    last: int | None = None
    failed: bool = False

    def txids(self, view: LedgerView) -> list[int]:
        """:raises TransitionError: the range names transactions that were never begun."""
        if self.failed:
            return sorted(view.exceptions.failed)
        first = 1 if self.first is None else self.first
        last = view.next_txid - 1 if self.last is None else self.last
        if first < 1 or last >= view.next_txid or first > last:
            raise TransitionError(
                f"topology {view.topology.name!r} has transactions 1 to {view.next_txid - 1}, not {first} to {last}",
                f"See `airflow trident ledger list {view.topology.name}`.",
            )
        return list(range(first, last + 1))


@dataclass(frozen=True, kw_only=True)
class Backfill:
    """Replays transactions in this process, with the protocol of every other task: whoever else is at work, each state
    has each transaction once in the end."""

    ledger: Ledger
    topology: Topology
    engine: Callable[[], Engine]
    staging_root: str
    owner: str
    retention: int = DEFAULT_RETENTION
    attempt_timeout_s: float | None = None
    progress: Progress = quiet

    def run(self, selection: Selection) -> list[Backfilled]:
        """Replay the selected transactions that are not committed; a failure of one does not stop the others.

        :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
        """
        self.ledger.register(self.topology.definition())
        txids = selection.txids(self.ledger.view(0))
        if not txids:
            self.progress(f"topology {self.topology.name}: nothing to replay")
        results: list[Backfilled] = []
        with self.engine() as engine:
            for txid in txids:
                result = self._one(txid, engine)
                also = f", and with it {list(result.also_committed)}" if result.also_committed else ""
                detail = f": {result.detail}" if result.detail else ""
                self.progress(f"transaction {txid}: {result.outcome}{also}{detail}")
                results.append(result)
        return results

    def _one(self, txid: int, engine: Engine) -> Backfilled:
        attempts = Attempts(owner=self.owner, last_try=True, timeout_s=self.attempt_timeout_s)
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging_root,
            attempts=attempts,
            engine=lambda: engine,
            retention=self.retention,
            progress=self.progress,
        )
        try:
            if self._needs_processing(txid):
                done = process(self.ledger, self.topology, txid, engine, self.staging_root, attempts, self.progress)
                if done.outcome is ProcessOutcome.ALREADY_COMMITTED:
                    return Backfilled(txid=txid, outcome=BackfillOutcome.ALREADY_COMMITTED)
            result = committer.commit(txid, take_over=True)
        except TridentError as error:
            return Backfilled(txid=txid, outcome=BackfillOutcome.FAILED, detail=str(error))
        others = tuple(one for one in result.committed if one != txid)
        if isinstance(result.own, AlreadyCommitted):
            mine = txid in result.committed
            outcome = BackfillOutcome.COMMITTED if mine else BackfillOutcome.ALREADY_COMMITTED
            return Backfilled(txid=txid, outcome=outcome, also_committed=others)
        why = f"transaction {result.own.by} is FAILED" if isinstance(result.own, Blocked) else result.own.why
        return Backfilled(txid=txid, outcome=BackfillOutcome.PROCESSED, detail=why, also_committed=others)

    def _needs_processing(self, txid: int) -> bool:
        tx = self.ledger.view(txid).tx
        return tx is not None and tx.status not in (Status.COMMITTING, Status.COMMITTED)
