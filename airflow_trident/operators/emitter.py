"""The emitter task: the processing phase of one transaction, under a new attempt each time it runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowTaskTimeout

from airflow_trident import settings
from airflow_trident.links.spark import SparkUiLink
from airflow_trident.links.transaction import TransactionLink
from airflow_trident.operators.base import (
    airflow_outcome,
    coordinator_above,
    human_bytes,
    is_last_try,
    parse_txid,
)
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.phases import OnFailure, ProcessOutcome, ProcessResult, note_failure, process
from airflow_trident.tasks.liveness import EMIT

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.base import Ledger
    from airflow_trident.protocol.records import TxRecord
    from airflow_trident.topology.topology import Topology


class TridentEmitterOperator(EngineOperator):
    """Reads the batch of a transaction, runs the topology's processing phase over it and stages the result.

    Each run is a new attempt, recorded before anything is read. `retries` of the task are the attempts; when they are
    used up, or where trying again is vain, the transaction is FAILED, or SKIPPED with ``on_failure="skip"``.

    :param topology: the Topology.
    :param txid: the coordinator's output (templated).
    :param on_failure: ``block``: later transactions wait until this one is replayed; ``skip``: they pass.
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
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.txid = txid
        self.on_failure = OnFailure(on_failure)

    def execute(self, context: Context) -> int:
        with airflow_outcome():
            txid = self.current_txid = parse_txid(self.txid)
            began = time.monotonic()
            with self.ledger_of_run(context) as ledger:
                self.enlist(ledger, context, txid)
                result = self._process(context, ledger, txid)
            self.log.info("%s", self._story(result, time.monotonic() - began))
        return txid

    def _process(self, context: Context, ledger: Ledger, txid: int) -> ProcessResult:
        attempts = self.attempts(context, last_try=is_last_try(context))

        def progress(line: str) -> None:
            self.log.info("%s", line)

        seen = ledger.view(txid)
        if self._is_left_behind(context, seen.tx):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.ALREADY_PROCESSED)
        try:
            with self.open_engine(context) as engine, self.watching_ui(context):
                staging_root = settings.staging_root(self.staging_dir)
                return process(ledger, self.topology, txid, engine, staging_root, attempts, progress, seen=seen)
        except AirflowTaskTimeout as error:
            # Not an Exception in Airflow 3, so nobody below has written it down.
            record = ledger.view(txid).tx
            if record is not None and record.owner == attempts.owner:
                failure = TimeoutError(f"execution_timeout of the task: {error}")
                note_failure(ledger, txid, record.attempt, failure, attempts)
            raise
        finally:
            self._running = None

    def _is_left_behind(self, context: Context, record: TxRecord | None) -> bool:
        """Is it another run's, processed, and given to this one to be committed? Its batch is good as it is staged."""
        ti = context["ti"]
        if record is None or record.status is not Status.PROCESSED or coordinator_above(self) is None:
            return False
        return (record.claim.dag_id, record.claim.run_id) != (ti.dag_id, ti.run_id)

    def _story(self, result: ProcessResult, took_s: float) -> str:
        what = f"transaction {result.txid} of topology {self.topology_name}"
        if result.outcome is not ProcessOutcome.PROCESSED or result.staged is None:
            return f"{what}: {result.outcome}, nothing to process"
        staged = result.staged
        rows = ", ".join(f"{count:,} for state {name}" for name, count in staged.rows.items())
        read = f"{staged.rows_read:,} rows read" if staged.rows_read >= 0 else "rows read"
        return (
            f"{what}, attempt {result.attempt}: {read}, staged {rows} ({human_bytes(staged.bytes)}) in {took_s:.1f} s"
        )
