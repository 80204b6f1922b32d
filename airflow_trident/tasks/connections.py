"""Airflow's connections for states and spouts, by the task SDK: it asks secrets backends and masks secrets in logs."""

from __future__ import annotations

import threading

from airflow_trident.errors import ConfigurationError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection

_ASKING = threading.Lock()
"""A drain asks from several threads. A task's own process keeps their answers apart; ``dag.test()`` and ``airflow tasks
test`` do not: an answer would reach another thread, or none (InProcessSupervisorComms of the task SDK)."""


def install_resolver() -> None:
    """From now on `connections.resolve` asks Airflow in this process. Opens nothing."""
    connections.install(from_airflow)


def from_airflow(conn_id: str) -> Connection:
    """
    :raises ConfigurationError: no such connection, or its extras are not a JSON object.
    """
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    try:
        with _ASKING:
            found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise connections.unknown(conn_id) from error
    try:
        extra = connections.parse_extra(found.extra)
    except ValueError:
        # The cause would show the extras.
        raise ConfigurationError(
            f"the extras of the connection {conn_id!r} are not a JSON object", 'Write them like {"sslmode": "require"}.'
        ) from None
    return Connection(
        conn_id=conn_id,
        conn_type=found.conn_type or "",
        host=found.host or "",
        port=found.port,
        schema=found.schema or "",
        login=found.login or "",
        password=found.password or "",
        extra=extra,
    )
