"""Which engine a task runs its plan on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.extras import SUBMIT_EXTRA, require_extra

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
    """The engine for a task; nothing is started before it runs something.

    :param one_shot: it runs one batch: a local JVM is tuned to start soon. Long ones are faster without that.
    :param conn_id: of type ``spark`` or ``spark_connect``; None: a session in this process.
    :param topology: its loads become settings of an application that is started here, below `conf`; a Connect server
        is an application already.
    :raises ConfigurationError: the connection is of a type that Spark cannot be reached by.
    """
    if kind is EngineKind.LOCAL:
        from airflow_trident.engine.local import LocalEngine

        return LocalEngine()
    from airflow_trident.engine.spark.engine import SparkEngine

    started = conf if topology is None else {**topology.spark_conf(), **conf}
    if conn_id is None:
        from airflow_trident.engine.spark.sessions.local import LocalSessions

        # It tells of every connection to the JVM that it opens and closes: no news in a task's log.
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
        return SubmitEngine(submit, submit.cancel)
    raise ConfigurationError(
        f"connection {conn_id!r} is of type {connection.conn_type!r}, by which Spark cannot be reached",
        "Name one of type spark (submitted) or spark_connect, or none for a session in the task's process.",
    )
