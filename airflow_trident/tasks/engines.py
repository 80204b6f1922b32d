"""Chooses the engine of a task."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.extras import SUBMIT_EXTRA, require_extra
from airflow_trident.topology.script import ScriptApplication, application_of

if TYPE_CHECKING:
    from airflow_trident.engine.base import Engine
    from airflow_trident.topology.topology import Topology


class EngineKind(StrEnum):
    SPARK = "spark"
    LOCAL = "local"
    """Plain Python in the task's process."""


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
    from airflow.providers.common.compat.sdk import BaseHook

    connection = BaseHook.get_connection(conn_id)
    if connection.conn_type == "spark_connect":
        hooks = require_extra("airflow.providers.apache.spark.hooks.spark_connect", SUBMIT_EXTRA)
        from airflow_trident.engine.spark.sessions.connect import ConnectSessions

        return SparkEngine(ConnectSessions(hooks.SparkConnectHook(conn_id).get_connection_url(), conf=conf))
    if connection.conn_type == "spark":
        from airflow_trident.engine.spark.submit import SubmitEngine
        from airflow_trident.tasks.hook_submit import HookSubmit

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
    from airflow.providers.common.compat.sdk import BaseHook

    from airflow_trident.engine.spark.script_engine import ScriptEngine
    from airflow_trident.tasks.hook_submit import HookSubmit

    conn_id = require_submitted(kind, conn_id)
    found = BaseHook.get_connection(conn_id).conn_type
    if found != "spark":
        raise ConfigurationError(
            f"a script is run by spark-submit, and connection {conn_id!r} is of type {found!r}",
            "Name a connection of type spark.",
        )
    settings = {**SCRIPT_CONF, **dict(application.conf), **conf}
    return ScriptEngine(
        application.application,
        application.arguments,
        lambda own, modules, known: HookSubmit(conn_id, {**settings, **own}, app_name, py_files=modules, known=known),
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
