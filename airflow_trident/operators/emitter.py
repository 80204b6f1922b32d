"""The emitter task: the processing phase of one transaction, with a new attempt each time it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_trident import settings
from airflow_trident.links.spark import SparkUiLink
from airflow_trident.links.transaction import TransactionLink
from airflow_trident.operators.arguments import parse_txids
from airflow_trident.operators.base import (
    airflow_outcome,
    coordinator_above,
    first_try,
    human_bytes,
    is_last_try,
    owner,
)
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.statuses import OnFailure, Status
from airflow_trident.runtime.drains.limits import on_failure_of, parse_group, require_groups
from airflow_trident.runtime.waiting import blocked
from airflow_trident.tasks.liveness import EMIT

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.base import Ledger
    from airflow_trident.protocol.records import TxRecord
    from airflow_trident.runtime.phases import Attempts, ProcessResult
    from airflow_trident.topology.topology import Topology


class TridentEmitterOperator(EngineOperator):
    """Reads the batch of a transaction, runs the topology's processing phase over it and stages the result.

    Each run is a new attempt, recorded before anything is read. The task's `retries` are the attempts. When they are
    used up, or when another try would be in vain, the transaction is FAILED, or SKIPPED with ``on_failure="skip"``.

    :param topology: the Topology.
    :param txid: the coordinator's output (templated).
    :param on_failure: ``block``: later transactions wait until this one is replayed; ``skip``: they pass.
    :param group: process all transactions from the coordinator in this task, at most this number in a pass; ``auto``:
        chosen by how much there is to read and how long it takes. None: there is one, or the task is mapped over them.
    :raises ConfigurationError: `group` is a number, but the topology or one of its states takes one at a time.
    """

    template_fields: Sequence[str] = ("txid", *EngineOperator.template_fields)
    operator_extra_links = (TransactionLink(), SparkUiLink())
    ui_color = "#d9ecd9"
    phase = EMIT

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any,
        on_failure: OnFailure | str = OnFailure.BLOCK,
        group: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.txid = txid
        self.on_failure = on_failure_of(topology.states, on_failure)
        self.group = None if group is None else parse_group(group)
        if self.group is not None:
            require_groups(topology.compile(), self.group)
            self.takes_several, self.one_batch = True, False

    def execute(self, context: Context) -> int | list[int]:
        if self.group is not None:
            return self._execute_all(context, self.group)
        with airflow_outcome():
            txid = settings.parse_txid(self.txid)
            self.current_txids = (txid,)
            began = time.monotonic()
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context, txid)
                result = self._process(context, ledger, txid)
            self.log.info("%s", self._story(result, time.monotonic() - began))
        return txid

    def _process(self, context: Context, ledger: Ledger, txid: int) -> ProcessResult:
        from airflow_trident.runtime.phases import ProcessOutcome, ProcessResult, process

        attempts = self.attempts(context, last_try=is_last_try(context))

        def progress(line: str) -> None:
            self.log.info("%s", line)

        seen = ledger.view(txid)
        if self._is_left_behind(context, seen.tx):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.ALREADY_PROCESSED)
        if self._stays_skipped(context, seen.tx):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.LEFT_SKIPPED)
        try:
            with self.open_engine(context) as engine, self.watching_ui(context):
                staging_root = settings.staging_root(self.staging_dir)
                return process(ledger, self.topology, txid, engine, staging_root, attempts, progress, seen=seen)
        except AirflowTaskTimeout as error:
            record = ledger.view(txid).tx
            _note_timeout(ledger, [record] if record is not None else [], error, attempts)
            raise
        finally:
            self._running = None

    # ---- all of a run ----------------------------------------------------------------------------------------------

    def _execute_all(self, context: Context, group: int | str) -> list[int]:
        with airflow_outcome():
            self.current_txids = txids = parse_txids(self.txid)
            began = time.monotonic()
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context)
                rows_read = self._process_all(context, ledger, txids, group)
            self.log.info(
                "transactions %d to %d of topology %s (%d in all): %s rows read in %.1f s",
                txids[0],
                txids[-1],
                self.topology_name,
                len(txids),
                f"{rows_read:,}",
                time.monotonic() - began,
            )
        return txids

    def _process_all(self, context: Context, ledger: Ledger, txids: Sequence[int], group: int | str) -> int:
        """:raises TridentError: of the first transaction that failed and blocks others. The others are processed."""
        from airflow_trident.runtime.drains.process_many import first_to_raise, known_records, process_many

        attempts = self.attempts(context, last_try=is_last_try(context))
        rows_read, failures, skipped = 0, dict[int, Exception](), dict[int, Exception]()
        try:
            with self.open_engine(context) as engine, self.watching_ui(context):
                staging_root = settings.staging_root(self.staging_dir)
                for ended in process_many(
                    ledger,
                    self.topology,
                    txids,
                    engine,
                    staging_root,
                    attempts,
                    lambda line: self.log.info("%s", line),
                    group=group,
                    is_free=lambda record: not self._is_done(context, record),
                ):
                    rows_read += ended.rows_read
                    failures.update(ended.failures)
                    skipped.update(ended.skipped)
        except AirflowTaskTimeout as error:
            _note_timeout(ledger, known_records(ledger, txids), error, attempts)
            raise
        finally:
            self._running = None
        for txid, why in skipped.items():
            self.log.warning("transaction %d is SKIPPED: %s", txid, why)
        after = known_records(ledger, txids)
        worst = first_to_raise(failures) or (first_to_raise(skipped) if len(skipped) == len(after) else None)
        if worst is not None:
            raise worst
        failed = next((one.txid for one in after if one.status is Status.FAILED), None)
        if failed is not None:  # it failed in an earlier try of this task
            raise blocked(self.topology_name, Blocked(failed))
        return rows_read

    def _is_done(self, context: Context, record: TxRecord) -> bool:
        """Is there nothing to process? True if its commit has begun, if it is here only to be committed, if it stays
        SKIPPED, or if an earlier try of this task, since a person last cleared the task, brought it to an end."""
        status = record.status
        if status in (Status.COMMITTING, Status.COMMITTED, Status.CLOSED) or self._is_left_behind(context, record):
            return True
        if self._stays_skipped(context, record):
            return True
        return self._began_since_clear(context, record) and status is not Status.PROCESSING

    def _began_since_clear(self, context: Context, record: TxRecord) -> bool:
        """Is its last attempt that of an earlier try of this task, since a person last cleared the task?"""
        me = owner(context)
        mine = record.owner.is_same_task(me) and record.owner.try_number < me.try_number
        return mine and record.owner.try_number >= first_try(context, self.retries or 0)

    def _is_left_behind(self, context: Context, record: TxRecord | None) -> bool:
        """Did another run process it, and is it here only to be committed? Its staged batch is good as it is."""
        ti = context["ti"]
        if record is None or record.status is not Status.PROCESSED or coordinator_above(self) is None:
            return False
        return (record.claim.dag_id, record.claim.run_id) != (ti.dag_id, ti.run_id)

    def _stays_skipped(self, context: Context, record: TxRecord | None) -> bool:
        """Was a transaction of this run SKIPPED, and has nobody cleared the task since? A retry that Airflow makes by
        itself does not undo what a person decided; in another run the task is there to replay it. A clear counts until
        the task has begun an attempt."""
        ti = context["ti"]
        if record is None or record.status is not Status.SKIPPED:
            return False
        cleared = first_try(context, self.retries or 0) > 1 or bool(context["dag_run"].clear_number)
        cleared = cleared and not self._began_since_clear(context, record)
        return not cleared and (record.claim.dag_id, record.claim.run_id) == (ti.dag_id, ti.run_id)

    def _story(self, result: ProcessResult, took_s: float) -> str:
        from airflow_trident.runtime.phases import ProcessOutcome

        what = f"transaction {result.txid} of topology {self.topology_name}"
        if result.outcome is not ProcessOutcome.PROCESSED or result.staged is None:
            return f"{what}: {result.outcome}, nothing to process"
        staged = result.staged
        rows = ", ".join(f"{count:,} for state {name}" for name, count in staged.rows.items())
        read = f"{staged.rows_read:,} rows read" if staged.rows_read >= 0 else "rows read"
        return (
            f"{what}, attempt {result.attempt}: {read}, staged {rows} ({human_bytes(staged.bytes)}) in {took_s:.1f} s"
        )


def _note_timeout(ledger: Ledger, records: Sequence[TxRecord], error: AirflowTaskTimeout, attempts: Attempts) -> None:
    """Record the timeout. AirflowTaskTimeout is no Exception in Airflow 3, so no code below has recorded it."""
    from airflow_trident.runtime.phases import note_failure

    failure = TimeoutError(f"execution_timeout of the task: {error}")
    for record in records:
        if record.owner == attempts.owner and record.status is Status.PROCESSING:
            note_failure(ledger, record.txid, record.attempt, failure, attempts)
