"""Chooses the engine of a task.

Airflow's connections for states and spouts. The task SDK asks secrets backends and masks secrets in logs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError, RetryableError, is_of_driver
from airflow_trident.io import connections
from airflow_trident.io.connections import SUBMIT_EXTRA, Connection, require_extra
from airflow_trident.names import EngineKind
from airflow_trident.topology.script import ScriptApplication, application_of

if TYPE_CHECKING:
    from airflow_trident.engine.engine import Engine
    from airflow_trident.topology.topology import Topology


def make_engine(
    kind: EngineKind,
    *,
    conn_id: str | None,
    conf: Mapping[str, str],
    app_name: str,
    topology: Topology | None = None,
    one_shot: bool = True,
) -> Engine:
    """The engine for a task. It starts nothing before it runs a plan.

    :param one_shot: it runs a single batch, so a local JVM is tuned to start fast. Long runs are faster without.
    :param conn_id: of type ``spark`` or ``spark_connect``; None: a session in this process.
    :param topology: its loads become settings of an application that is started here; `conf` takes precedence. A
        Connect server already runs and does not get them.
    :raises ConfigurationError: Spark cannot be reached by a connection of this type.
    """
    script = None if topology is None else application_of(topology)
    if script is not None:
        return script_engine(kind, conn_id=conn_id, conf=conf, app_name=app_name, application=script)
    if kind is EngineKind.LOCAL:
        from airflow_trident.engine.local import LocalEngine

        return LocalEngine()
    from airflow_trident.engine.spark.engine import SparkEngine

    started = conf if topology is None else {**topology.spark_conf(), **conf}
    if conn_id is None:
        from airflow_trident.engine.spark.sessions.local import LocalSessions

        # py4j logs every connection to the JVM, which nobody needs in a task's log.
        logging.getLogger("py4j").setLevel(logging.WARNING)
        return SparkEngine(LocalSessions(app_name=app_name, conf=started, one_shot=one_shot))
    connection = from_airflow(conn_id)
    if connection.conn_type == "spark_connect":
        hooks = require_extra("airflow.providers.apache.spark.hooks.spark_connect", SUBMIT_EXTRA)
        from airflow_trident.engine.spark.sessions.connect import ConnectSessions

        return SparkEngine(ConnectSessions(hooks.SparkConnectHook(conn_id).get_connection_url(), conf=conf))
    if connection.conn_type == "spark":
        from airflow_trident.engine.spark.submit import SubmitEngine
        from airflow_trident.tasks.spark_submit import HookSubmit

        submit = HookSubmit(conn_id, started, app_name)
        return SubmitEngine(submit, submit.cancel, submit.end)
    raise ConfigurationError(
        f"connection {conn_id!r} is of type {connection.conn_type!r}, by which Spark cannot be reached",
        "Name one of type spark (submitted) or spark_connect, or none for a session in the task's process.",
    )


SCRIPT_CONF = {
    # Other programs can then read its timestamps.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A driver restarted by YARN would write its outputs once more under the same attempt.
    "spark.yarn.maxAppAttempts": "1",
}
"""Defaults for the settings of a script."""


def script_engine(
    kind: EngineKind, *, conn_id: str | None, conf: Mapping[str, str], app_name: str, application: ScriptApplication
) -> Engine:
    """The engine that runs a script by spark-submit; see :func:`make_engine`.

    :raises ConfigurationError: there is no connection of type ``spark``.
    """
    from airflow_trident.engine.spark.script import ScriptEngine
    from airflow_trident.tasks.spark_submit import HookSubmit

    conn_id = require_submitted(kind, conn_id)
    conn_type = from_airflow(conn_id).conn_type
    if conn_type != "spark":
        raise ConfigurationError(
            f"a script is run by spark-submit, and connection {conn_id!r} is of type {conn_type!r}",
            "Name a connection of type spark.",
        )
    settings = {**SCRIPT_CONF, **dict(application.conf), **conf}
    return ScriptEngine(
        application.application,
        application.arguments,
        lambda job_conf, modules, on_driver_id: HookSubmit(
            conn_id, {**settings, **job_conf}, app_name, py_files=modules, on_driver_id=on_driver_id
        ),
        settings,
        HookSubmit(conn_id, settings, app_name).end,
    )


def require_submitted(kind: EngineKind, conn_id: str | None) -> str:
    """The connection for spark-submit to run a script.

    :raises ConfigurationError: none is named.
    """
    if conn_id is None or kind is not EngineKind.SPARK:
        raise ConfigurationError(
            "a script is run by spark-submit, and no Spark connection is named", "Name a connection of type spark."
        )
    return conn_id


_ASKING = threading.Lock()
"""A drain asks from several threads. ``dag.test()`` and ``airflow tasks test`` do not keep the answers apart, so an
answer could reach the wrong thread or none (InProcessSupervisorComms of the task SDK)."""

_DENIED = "PERMISSION_DENIED"
"""What Airflow says if no retry helps; since 3.3 it raises a PermissionError of its own."""


def install_resolver() -> None:
    """Let `connections.resolve` ask Airflow in this process. Opens no connection."""
    connections.install(from_airflow)


def from_airflow(conn_id: str) -> Connection:
    """
    :raises ConfigurationError: the connection cannot be read, or its extras are not a JSON object.
    :raises RetryableError: Airflow, or its secrets backend, does not give it now. Airflow calls a connection "not
        defined" also if it had no answer.
    """
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    try:
        with _ASKING:
            connection = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise RetryableError(
            f"there is no connection {conn_id!r}, or Airflow had no answer about it",
            f"Add it in Airflow, or set {connections.variable(conn_id)}. If it exists, check that Airflow's API server "
            "and its secrets backend answer.",
        ) from error
    except Exception as error:
        if not is_of_driver(error):
            raise
        if type(error) in (ValueError, TypeError):  # neither it nor its text is shown: they may have the connection
            raise ConfigurationError(
                f"the connection {conn_id!r} cannot be read ({type(error).__name__})",
                "Correct it where it is kept: in Airflow, in its secrets backend or in the environment.",
            ) from None
        if isinstance(error, PermissionError) or _DENIED in str(error):
            raise ConfigurationError(
                f"this task may not have the connection {conn_id!r} from Airflow", "Give its team the connection."
            ) from error
        raise RetryableError(
            f"Airflow does not give the connection {conn_id!r} ({type(error).__name__})",
            "Check that its API server and its secrets backend answer, and run the task again.",
        ) from error
    try:
        extra = connections.parse_extra(connection.extra)
    except ValueError:
        # The original error is dropped, because it would show the extras.
        raise ConfigurationError(
            f"the extras of the connection {conn_id!r} are not a JSON object", 'Write them like {"sslmode": "require"}.'
        ) from None
    return Connection(
        conn_id=conn_id,
        conn_type=connection.conn_type or "",
        host=connection.host or "",
        port=connection.port,
        schema=connection.schema or "",
        login=connection.login or "",
        password=connection.password or "",
        extra=extra,
    )
