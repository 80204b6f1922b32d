"""The emitter task: the processing phase of one transaction, under a new attempt each time it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.local_paths import require_local_unless_template
from airflow_trident.links.spark import SparkUiLink
from airflow_trident.links.transaction import TransactionLink
from airflow_trident.operators.base import (
    TridentOperator,
    airflow_outcome,
    coordinator_above,
    human_bytes,
    is_last_try,
    owner,
    parse_txid,
)
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.phases import Attempts, OnFailure, ProcessOutcome, ProcessResult, note_failure, process
from airflow_trident.tasks.engines import EngineKind, make_engine
from airflow_trident.tasks.liveness import EMIT

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_trident.engine.base import Engine
    from airflow_trident.ledger.base import Ledger
    from airflow_trident.protocol.records import TxRecord
    from airflow_trident.topology.topology import Topology

CANCEL_LIMIT_S = 3.0
"""Airflow kills a task 5 s after it asked it to end; what cannot be cancelled before that is left to the fence."""

UI_EVERY_S = 0.5


class EngineOperator(TridentOperator):
    """A task that may run a plan.

    :param spark_conn_id: connection of type ``spark`` (submitted) or ``spark_connect`` (a running server); None: a
        session in the task's own process (templated).
    :param engine: ``spark``, or ``local`` for plain Python without Java: small batches and tests.
    :param spark_conf: settings of the session, on top of the connection's (templated).
    :param staging_dir: folder of staged batches, the same for every task; None: ``[trident] staging_dir`` (templated).
    :param attempt_timeout: how long one attempt may take (seconds, or a timedelta); then its job is cancelled and the
        attempt is failed. None: no limit.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id", "spark_conn_id", "spark_conf", "staging_dir")
    one_batch = True
    """Does a run of the task process a single batch?"""
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - as Airflow's operators declare it

    def __init__(
        self,
        *,
        topology: Topology,
        spark_conn_id: str | None = None,
        engine: EngineKind | str = EngineKind.SPARK,
        spark_conf: Mapping[str, str] | None = None,
        staging_dir: str | None = None,
        attempt_timeout: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.attempt_timeout = attempt_timeout
        self.attempt_timeout_s = _seconds(attempt_timeout)
        try:
            self.engine = EngineKind(engine)
        except ValueError:
            raise ConfigurationError(f"engine = {engine!r} is unknown", "Use 'spark' or 'local'.") from None
        if self.engine is EngineKind.LOCAL and spark_conn_id is not None:
            raise ConfigurationError("the local engine has no Spark connection", "Leave out spark_conn_id or engine.")
        self.spark_conn_id = spark_conn_id
        self.spark_conf = dict(spark_conf or {})
        require_local_unless_template(f"staging_dir of {self.task_id}", staging_dir)
        self.staging_dir = staging_dir
        self.spark_ui_url = ""
        self._running: Engine | None = None

    def open_engine(self, context: Context) -> Engine:
        """The engine, opening nothing yet; `on_kill` cancels what it runs."""
        self._running = make_engine(
            self.engine,
            conn_id=self.spark_conn_id,
            conf=self.spark_conf,
            app_name=f"trident {self.topology_name}",
            topology=self.topology,
            one_shot=self.one_batch,
        )
        return self._running

    def note_ui(self, context: Context) -> None:
        """Push the Spark UI's address while the job runs: afterwards nobody needs it."""
        url = self._running.ui_url if self._running is not None else ""
        if url and url != self.spark_ui_url:
            self.spark_ui_url = url
            context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=url)

    @contextmanager
    def watching_ui(self, context: Context) -> Iterator[None]:
        """Push the Spark UI's address as soon as there is one, while this thread waits for the job."""
        ended = threading.Event()

        def watch() -> None:
            with suppress(Exception):  # a link is worth no failed task
                while not self.spark_ui_url and not ended.wait(UI_EVERY_S):
                    self.note_ui(context)

        watcher = threading.Thread(target=watch, name="trident-ui", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join(CANCEL_LIMIT_S)

    def on_kill(self) -> None:
        """Cancel the running job, for a limited time: an economy, never needed for correctness."""
        engine = self._running
        if engine is None:
            return
        canceller = threading.Thread(target=engine.cancel, name="trident-cancel", daemon=True)
        canceller.start()
        canceller.join(CANCEL_LIMIT_S)
        said = "is cancelled" if not canceller.is_alive() else f"was not cancelled within {CANCEL_LIMIT_S:g} s"
        self.log.warning("the task is killed; the job of topology %s %s", self.topology_name, said)


def _seconds(limit: timedelta | float | None) -> float | None:
    """:raises ConfigurationError: it is not above 0."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    if seconds is not None and seconds <= 0:
        raise ConfigurationError(f"attempt_timeout = {limit!r}", "Give more than 0 seconds, or None for no limit.")
    return seconds


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
        attempts = Attempts(
            owner=owner(context),
            last_try=is_last_try(context),
            on_failure=self.on_failure,
            timeout_s=self.attempt_timeout_s,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
        )

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
