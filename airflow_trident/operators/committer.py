"""The committer task: the commit phase. If it succeeds, its transaction is committed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.errors import TransitionError
from airflow_trident.operators.arguments import parse_txids
from airflow_trident.operators.base import (
    airflow_outcome,
    deferrable_default,
    human_bytes,
    is_last_try,
    listed,
    note_assets,
    owner,
)
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.decide import AlreadyCommitted, Blocked, Wait
from airflow_trident.protocol.statuses import OnFailure, Status
from airflow_trident.runtime.drains.limits import on_failure_of
from airflow_trident.runtime.waiting import blocked, wait_while_undecided
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.airflow_versions import checked_deferrable
from airflow_trident.tasks.asking_airflow import ask, ask_airflow, review_blocked
from airflow_trident.tasks.liveness import COMMIT, began_by, left_to_committer
from airflow_trident.tasks.waits import Rank, Until

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.base import Engine
    from airflow_trident.ledger.base import Ledger
    from airflow_trident.protocol.records import LedgerView, TxRecord
    from airflow_trident.runtime.commit import Committer
    from airflow_trident.topology.topology import Topology


class TridentCommitterOperator(EngineOperator):
    """Commits, in order, every transaction whose turn has come, until its own is committed.

    If the commit sweep of another task has already committed its transaction, the task succeeds. If a lower transaction
    is FAILED, the task fails at once and says what to do. If a lower one is still under way, the task waits: first in
    the worker, then without a worker slot.

    :param topology: the Topology.
    :param txid: the transaction that must be committed when the task succeeds, or several (templated). Of several,
        SKIPPED ones are left out, unless all are SKIPPED.
    :param retention: committed transactions to keep; None: ``[trident] retention``.
    :param deferrable: wait in the triggerer after `turn_wait_s` in the worker; None: ``[trident] deferrable``.
    :param turn_wait_s: how long to wait in the worker; None: ``[trident] turn_wait_s``.
    :param on_failure: as for the emitter; also what happens to transactions whose tasks were killed.
    """

    template_fields: Sequence[str] = ("txid", *EngineOperator.template_fields)
    ui_color = "#f5e3c8"
    phase = COMMIT
    brings_events = True

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any,
        retention: int | None = None,
        deferrable: bool | None = None,
        turn_wait_s: float | None = None,
        on_failure: OnFailure | str = OnFailure.BLOCK,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.txid = txid
        self.retention = settings.parse_limit("retention", retention)
        self.deferrable = checked_deferrable(deferrable)
        self.turn_wait_s = turn_wait_s
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.rank_as(Rank.COMMIT)

    def execute(self, context: Context) -> int | list[int]:
        with airflow_outcome():
            self.current_txids = txids = parse_txids(self.txid)
            began = time.monotonic()
            alone = len(txids) == 1 and not isinstance(self.txid, list)
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context, txids[0])
                asset_events.begin(self.topology, ledger)
                if alone:
                    committed = self._commit(context, ledger, txids[0])
                    self.log.info("%s", self._story(ledger, txids[0], committed, time.monotonic() - began))
                    if self.outlets:
                        self._tell_assets(context, ledger, txids[0])
                else:
                    txids = self._commit_all(context, ledger, txids)
                    what = f"{len(txids)} transactions of topology {self.topology_name}, {txids[0]} to {txids[-1]},"
                    self.log.info("%s are committed after %.1f s", what, time.monotonic() - began)
                    note_assets(self, context, {"topology": self.topology_name, "txids": listed(txids)})
                asset_events.bring(self, self.topology, ledger, context, owner(context))
        return txids[0] if alone else txids

    def _commit_all(self, context: Context, ledger: Ledger, txids: Sequence[int]) -> list[int]:
        """The committed txids: all that are not SKIPPED. :raises BlockedError: one cannot be committed now."""
        from airflow_trident.runtime.drains.process_many import known_records

        while left := [one for one in known_records(ledger, txids) if not one.status.lets_others_pass]:
            self._commit(context, ledger, left[0].txid, others=True)
        passed = {one.txid: one.status for one in known_records(ledger, txids) if one.status is not Status.COMMITTED}
        if len(passed) == len(txids):
            raise blocked(self.topology_name, Blocked(txids[0], skipped=True))
        for txid, status in passed.items():
            self.log.warning("transaction %d of topology %s is %s: left out", txid, self.topology_name, status)
        return [txid for txid in txids if txid not in passed]

    def _tell_assets(self, context: Context, ledger: Ledger, txid: int) -> None:
        """Tell the assets of the outlets what was committed, for the DAGs that they schedule."""
        record = ledger.view(txid, remembered=True).tx
        staged = record.staged if record is not None else None
        extra: dict[str, Any] = {"topology": self.topology_name, "txid": txid}
        if record is not None and staged is not None:
            extra |= {"attempt": record.attempt, "rows_read": staged.rows_read, "rows": dict(staged.rows)}
        note_assets(self, context, extra)

    def _commit(self, context: Context, ledger: Ledger, txid: int, *, others: bool = False) -> tuple[int, ...]:
        """Wait and commit until `txid` is committed. Returns the txids that this task committed.

        :param others: of the task may follow: it is no error if somebody skips this one meanwhile.
        :raises BlockedError: `txid` cannot be committed now.
        """
        mine, left = began_by(owner(context)), set[tuple[int, int]]()
        committer = self._committer(context, ledger, lambda tx: mine(tx) or (tx.txid, tx.attempt) in left)
        asker = self.asker(context)
        ask_about = ask_airflow(ledger, skip=self.on_failure is OnFailure.SKIP, asker=asker)
        review = review_blocked(ledger, asker)
        committed: list[int] = []
        take_over = False

        def sweep() -> tuple[AlreadyCommitted | Wait | Blocked, LedgerView]:
            nonlocal take_over
            result = committer.commit(txid, take_over=take_over)
            committed.extend(result.committed)
            take_over = False
            return review(result.own), result.view

        def look(culprit: TxRecord) -> None:
            nonlocal take_over
            if culprit.txid != txid or not self._take_up(context, ledger, culprit):
                take_over = ask_about(culprit) is not None
                if take_over:  # with its attempt: another one is somebody's who is at work
                    left.add((culprit.txid, culprit.attempt))

        own = wait_while_undecided(
            ledger,
            txid,
            sweep,
            wait_s=self.seconds_in_worker(context, self.turn_wait_s),
            look_every_s=settings.number(settings.POLL_S, least=0.1),
            look=look,
            say=lambda story: self.log.info("%s", story),
        )
        if isinstance(own, Blocked) and not (own.skipped and others):
            raise blocked(self.topology_name, own)
        if isinstance(own, Wait):
            self._stand_back(context, txid)
        return tuple(committed)

    def _take_up(self, context: Context, ledger: Ledger, record: TxRecord) -> bool:
        """Process the task's own transaction if its emitter has left it unprocessed. Returns whether it has."""
        from airflow_trident.runtime.phases import process

        txid, answers = record.txid, ask(record)
        left = answers is not None and left_to_committer(record, answers)
        if left:
            self.log.info("transaction %d is not processed and its emitter is done: processing it here", txid)
            attempts = self.attempts(context, last_try=is_last_try(context))
            try:
                with self.open_engine(context) as engine:
                    process(ledger, self.topology, txid, engine, settings.staging_root(self.staging_dir), attempts)
            except TransitionError:
                now = ledger.view(txid).tx
                if now is None or now.status is Status.PROCESSING:
                    raise
                self.log.info("transaction %d is %s meanwhile", txid, now.status)  # the next sweep says what follows
        return left

    def _stand_back(self, context: Context, txid: int) -> None:
        self.log.info("transaction %d goes on waiting without a worker slot", txid)
        self.give_back_slot(
            context,
            txid,
            Until.READY,
            deferrable=deferrable_default(self.deferrable),
            skip_gone=self.on_failure is OnFailure.SKIP,
        )

    def _committer(self, context: Context, ledger: Ledger, takes_up: Callable[[TxRecord], bool]) -> Committer:
        from airflow_trident.runtime.commit import Committer

        def engine() -> Engine:
            return self.open_engine(context)

        return Committer(
            ledger=ledger,
            topology=self.topology,
            staging_root=settings.staging_root(self.staging_dir),
            attempts=self.attempts(context, last_try=is_last_try(context)),
            engine=engine,
            retention=settings.retention(self.retention),
            progress=lambda line: self.log.info("%s", line),
            takes_up=takes_up,
        )

    def _story(self, ledger: Ledger, txid: int, committed: tuple[int, ...], took_s: float) -> str:
        what = f"transaction {txid} of topology {self.topology_name}"
        others = [str(one) for one in committed if one != txid]
        also = f"; its sweep also committed {', '.join(others)}" if others else ""
        if txid not in committed:
            return f"{what} is committed already, by another task{also}"
        record = ledger.view(txid, remembered=True).tx
        if record is None or record.staged is None:
            return f"{what} is committed{also}"
        rows = ", ".join(f"{count:,} rows in state {name}" for name, count in record.staged.rows.items())
        size = human_bytes(record.staged.bytes)
        return f"{what}, attempt {record.attempt}, is committed: {rows} ({size}) in {took_s:.1f} s{also}"
