"""Puts the connection to a server on this machine into Airflow's database, where every process of Airflow finds it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def require_free(conn_id: str, server: EmbeddedZooKeeper) -> None:
    """Check before the server is started, so that a refusal leaves nothing behind.

    :raises ConfigurationError: another connection has the id, or the environment sets it.
    :raises OperationalError: Airflow has no database yet.
    """
    from airflow.utils.session import create_session

    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    if variable in os.environ:
        raise ConfigurationError(
            f"{variable} is set, and comes before a connection in Airflow's database", f"Unset {variable} first."
        )
    with create_session() as session:
        _found(session, conn_id, server)


def write(conn_id: str, server: EmbeddedZooKeeper) -> None:
    """Add the connection to the running server, or update the port of the existing one.

    :raises ConfigurationError: as `require_free`.
    """
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session

    wanted = server.connection()
    with create_session() as session:
        connection = _found(session, conn_id, server)
        if connection is None:
            connection = Connection(conn_id=conn_id, conn_type=wanted["conn_type"], extra=json.dumps(wanted["extra"]))
            session.add(connection)
        connection.host = wanted["host"]


def _found(session: Session, conn_id: str, server: EmbeddedZooKeeper) -> Any:
    """The connection with this id, or None. It belongs to this server if it names the login file of its data."""
    from airflow.models.connection import Connection
    from sqlalchemy import select

    connection = session.scalar(select(Connection).where(Connection.conn_id == conn_id))
    if connection is not None and connection.extra_dejson.get("login_file") != str(server.login_file):
        raise ConfigurationError(
            f"Airflow has a connection {conn_id!r}, which is not to the server of {server.data_dir}",
            f"Delete it (`airflow connections delete {conn_id}`), or name another one in [trident] zookeeper_conn_id.",
        )
    return connection
