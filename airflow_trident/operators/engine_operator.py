"""What tasks that may run a plan share: the engine, the time limit, and how a killed task cancels its job."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.paths import AnyPath
from airflow_trident.links import SparkUiLink
from airflow_trident.names import EngineKind
from airflow_trident.operators.base import TridentOperator, owner, require_known_conn_id
from airflow_trident.protocol.records import OnFailure
from airflow_trident.tasks.waits import Rank

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.engine.engine import Engine
    from airflow_trident.runtime.phases import Attempts
    from airflow_trident.topology.topology import Topology

CANCEL_LIMIT_S = 3.0
"""Airflow kills a task 5 s after asking it to end. If a job is not cancelled before that, the fence still holds."""

UI_EVERY_S = 0.5


class EngineOperator(TridentOperator):
    """A task that may run a plan.

    :param spark_conn_id: connection of type ``spark`` (submitted) or ``spark_connect`` (a running server); None: a
        session in the task's own process (templated).
    :param engine: ``spark``, or ``local`` for plain Python without Java: small batches and tests.
    :param spark_conf: settings of the session; they override those of the connection (templated).
    :param staging_dir: folder of staged batches, or ``s3://[connection@]bucket/prefix``,
        ``abfs://[connection@]container/prefix`` or ``gs://[connection@]bucket/prefix``, as a text or as Airflow's
        ObjectStoragePath, the same for every task; None: ``[trident] staging_dir`` (templated).
    :param attempt_timeout: how long one attempt may take (seconds, or a timedelta); then its job is cancelled and the
        attempt fails. None: no limit.
    :param openlineage_inject_parent_job_info: tell Spark's OpenLineage listener that this task is its parent; None:
        ``[openlineage] spark_inject_parent_job_info``. As in SparkSubmitOperator.
    :param openlineage_inject_transport_info: tell that listener where to send its events; None:
        ``[openlineage] spark_inject_transport_info``.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id", "spark_conn_id", "spark_conf", "staging_dir")
    one_batch = True
    """Does one run of the task process only one batch?"""
    on_failure = OnFailure.BLOCK
    template_fields_renderers = {"spark_conf": "json"}  # noqa: RUF012 - as Airflow's operators declare it

    def __init__(
        self,
        *,
        topology: Topology,
        spark_conn_id: str | None = None,
        engine: EngineKind | str = EngineKind.SPARK,
        spark_conf: Mapping[str, str] | None = None,
        staging_dir: AnyPath | None = None,
        attempt_timeout: timedelta | float | None = None,
        openlineage_inject_parent_job_info: bool | None = None,
        openlineage_inject_transport_info: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        self.attempt_timeout = attempt_timeout
        self.attempt_timeout_s = settings.parse_seconds("attempt_timeout", attempt_timeout)
        try:
            self.engine = EngineKind(engine)
        except ValueError:
            raise ConfigurationError(f"engine = {engine!r} is unknown", "Use 'spark' or 'local'.") from None
        if self.engine is EngineKind.LOCAL and spark_conn_id is not None:
            raise ConfigurationError("the local engine has no Spark connection", "Leave out spark_conn_id or engine.")
        require_known_conn_id(self, spark_conn_id, "spark_conn_id")
        self.spark_conn_id = spark_conn_id
        if not isinstance(spark_conf, Mapping | None):
            raise ConfigurationError(f"spark_conf = {spark_conf!r}", 'Give a dict, like {"spark.cores.max": "2"}.')
        self.spark_conf = dict(spark_conf or {})
        self.openlineage_inject_parent_job_info = openlineage_inject_parent_job_info
        self.openlineage_inject_transport_info = openlineage_inject_transport_info
        self.staging_dir = _place(self.task_id, staging_dir)
        self.rank_as(Rank.WORK)
        self.spark_ui_url = ""
        self._running: Engine | None = None

    def open_engine(self, context: Context) -> Engine:
        """Make the engine, which opens nothing yet; `on_kill` cancels what it runs."""
        from airflow_trident.tasks.engines import make_engine

        self._running = make_engine(
            self.engine,
            conn_id=self.spark_conn_id,
            conf=self.conf_of_run(context),
            app_name=f"trident {self.topology_name}",
            topology=self.topology,
            one_shot=self.one_batch,
        )
        return self._running

    def conf_of_run(self, context: Context) -> dict[str, str]:
        """The settings of the session, with those that tell Spark's OpenLineage listener about this run of the task."""
        from airflow.providers.common.compat.sdk import conf

        def wanted(argument: bool | None, option: str) -> bool:
            return conf.getboolean("openlineage", option, fallback=False) if argument is None else argument

        parent = wanted(self.openlineage_inject_parent_job_info, "spark_inject_parent_job_info")
        transport = wanted(self.openlineage_inject_transport_info, "spark_inject_transport_info")
        if not (parent or transport):
            return self.spark_conf
        from airflow.providers.common.compat.openlineage.utils import spark

        spark_conf: dict[str, str] = dict(self.spark_conf)
        if parent:
            spark_conf = spark.inject_parent_job_information_into_spark_properties(spark_conf, context)
        if transport:
            spark_conf = spark.inject_transport_information_into_spark_properties(spark_conf, context)
        return spark_conf

    def attempts(self, context: Context, *, last_try: bool = False) -> Attempts:
        """How this task makes attempts, and what happens to a transaction whose last attempt fails."""
        from airflow_trident.runtime.phases import Attempts

        return Attempts(
            owner=owner(context),
            last_try=last_try,
            on_failure=self.on_failure,
            timeout_s=self.attempt_timeout_s,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
            max_merge_rows=settings.max_merge_rows(),
            max_partition_keys=settings.max_partition_keys(),
        )

    def note_ui(self, context: Context) -> None:
        """Push the address of the Spark UI while the job runs; afterwards nobody needs it."""
        url = self._running.ui_url if self._running is not None else ""
        if url and url != self.spark_ui_url:
            self.spark_ui_url = url
            context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=url)

    @contextmanager
    def watching_ui(self, context: Context) -> Iterator[None]:
        """Push the address of the Spark UI as soon as it exists, while this thread waits for the job."""
        ended = threading.Event()

        def watch() -> None:
            with suppress(Exception):  # a missing link must not fail the task
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
        """Cancel the running job, for a limited time. This saves work; correctness never needs it."""
        engine = self._running
        if engine is None:
            return
        canceller = threading.Thread(target=engine.cancel, name="trident-cancel", daemon=True)
        canceller.start()
        canceller.join(CANCEL_LIMIT_S)
        outcome = "is cancelled" if not canceller.is_alive() else f"was not cancelled within {CANCEL_LIMIT_S:g} s"
        self.log.warning("the task is killed; the job of topology %s %s", self.topology_name, outcome)


def _place(task_id: str, staging_dir: AnyPath | None) -> str | None:
    """:raises ConfigurationError: it is no place for staged batches."""
    if staging_dir is None:
        return None
    from airflow_trident.io.object_stores import require_place_unless_template

    return require_place_unless_template(f"staging_dir of {task_id}", staging_dir)
