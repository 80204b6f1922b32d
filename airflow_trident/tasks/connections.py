"""Airflow's connections for states and spouts. The task SDK asks secrets backends and masks secrets in logs."""

from __future__ import annotations

import threading

from airflow_trident.errors import ConfigurationError, RetryableError, is_of_driver
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection

_ASKING = threading.Lock()
"""A drain asks from several threads. ``dag.test()`` and ``airflow tasks test`` do not keep the answers apart, so an
answer could reach the wrong thread or none (InProcessSupervisorComms of the task SDK)."""

_DENIED = "PERMISSION_DENIED"
"""Airflow's word for what no retry cures."""


def install_resolver() -> None:
    """Let `connections.resolve` ask Airflow in this process. Opens no connection."""
    connections.install(from_airflow)


def from_airflow(conn_id: str) -> Connection:
    """
    :raises ConfigurationError: the connection does not exist, cannot be read, or its extras are not a JSON object.
    :raises RetryableError: Airflow, or its secrets backend, does not give it now.
    """
    from airflow.providers.common.compat.sdk import AirflowNotFoundException, BaseHook

    try:
        with _ASKING:
            found = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise connections.unknown(conn_id) from error
    except Exception as error:
        if not is_of_driver(error):
            raise
        if type(error) in (ValueError, TypeError):  # neither it nor its text is shown: they may have the connection
            raise ConfigurationError(
                f"the connection {conn_id!r} cannot be read ({type(error).__name__})",
                "Correct it where it is kept: in Airflow, in its secrets backend or in the environment.",
            ) from None
        if _DENIED in str(error):
            raise ConfigurationError(
                f"this task may not have the connection {conn_id!r} from Airflow", "Give its team the connection."
            ) from error
        raise RetryableError(
            f"Airflow does not give the connection {conn_id!r} ({type(error).__name__})",
            "Check that its API server and its secrets backend answer, and run the task again.",
        ) from error
    try:
        extra = connections.parse_extra(found.extra)
    except ValueError:
        # The original error is dropped, because it would show the extras.
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
