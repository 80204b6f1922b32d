"""Connections to PostgreSQL by psycopg, and the meaning of its errors for a task."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_drivers import connect_psycopg
from airflow_trident.io.database_errors import DatabaseFault, fault_of
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.extras import require_extra
from airflow_trident.states.sql.dialect import store_error

if TYPE_CHECKING:
    import psycopg

OLDEST = 150000
"""PostgreSQL 15: older unique indexes do not treat null keys as equal."""
_NOT_OF_LIBPQ = frozenset(
    {"iam", "redshift", "cursor", "sqlalchemy_scheme", "sqlalchemy_query", "enable_log_db_messages"}
)
"""Extras of Airflow's connection type that are not for the driver."""


def connect(where: Connection, limits: Limits, application: str) -> psycopg.Connection[Any]:
    """An open connection without implicit transactions.

    :raises ConfigurationError: an option or the login is wrong, or the server is too old.
    :raises StoreUnavailableError: it does not answer.
    """
    driver = require_extra("psycopg", "airflow-trident[postgres]")
    if where.conn_type not in ("", "postgres"):
        raise ConfigurationError(
            f"the connection {where.conn_id!r} is of type {where.conn_type!r}, not postgres",
            "Name a connection of type postgres.",
        )
    options = {name: value for name, value in where.extra.items() if name not in _NOT_OF_LIBPQ and value is not None}
    place = {"host": where.host, "port": where.port, "dbname": where.schema, "user": where.login}
    given = {name: value for name, value in {**place, "password": where.password}.items() if value}
    # A dead network must not block a committer, and the marker's lock, for ever.
    settings = {**limits.for_libpq, **options, **given}
    settings |= {"application_name": application[:63], "client_encoding": "UTF8"}
    try:
        # Statements are planned anew each time: a plan for a small batch is wrong for a large one.
        connection = connect_psycopg(limits, **settings, autocommit=True, prepare_threshold=None)
    except driver.Error as error:
        # Not chained: the frames of the cause hold the arguments, and so the password.
        raise store_error(fault_in(error, where), where) from None
    if connection.info.server_version < OLDEST:
        connection.close()
        raise ConfigurationError(f"{where.describe()} is older than PostgreSQL 15", "Use PostgreSQL 15 or newer.")
    return connection


def fault_in(error: Exception, where: Connection) -> DatabaseFault:
    """What the server's error, or the driver's own, means: in one line, without secrets."""
    fault = fault_of(error, "postgresql", where)
    lines = where.conceal(str(error)).strip().split(os.linesep)
    plain = " ".join(line.strip() for line in lines if not line.startswith(("LINE ", " "))).strip()
    return replace(fault, text=plain)
