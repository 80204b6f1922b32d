"""Connections to PostgreSQL by psycopg, and the meaning of its errors for a task."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import (
    ConfigurationError,
    CorruptError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_limits import CURES, Limits
from airflow_trident.io.extras import require_extra

if TYPE_CHECKING:
    import psycopg

OLDEST = 150000
"""PostgreSQL 15: older unique indexes do not treat null keys as equal."""
_NOT_OF_LIBPQ = frozenset(
    {"iam", "redshift", "cursor", "sqlalchemy_scheme", "sqlalchemy_query", "enable_log_db_messages"}
)
"""Extras of Airflow's connection type that are not for the driver."""
_REFUSED_LOGIN = ("authentication failed", "no password supplied", "pg_hba.conf", "does not exist", "permission denied")
_CONNECTION_LOST = ("08", "57P01", "57P02", "57P03", "40003")
_NOT_AS_MADE = ("42", "3F", "3D", "28", "22", "23", "0A")


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
        connection: psycopg.Connection[Any] = driver.connect(**settings, autocommit=True, prepare_threshold=None)
    except driver.Error as error:
        # Not chained: the frames of the cause hold the arguments, and so the password.
        raise _cannot_connect(error, where) from None
    if connection.info.server_version < OLDEST:
        connection.close()
        raise ConfigurationError(f"{where.describe()} is older than PostgreSQL 15", "Use PostgreSQL 15 or newer.")
    return connection


def _cannot_connect(error: psycopg.Error, where: Connection) -> TridentError:
    import psycopg

    text = said(error, where)
    wrong = isinstance(error, psycopg.ProgrammingError)
    if wrong or any(words in text for words in _REFUSED_LOGIN):
        return ConfigurationError(
            f"{where.describe()} cannot be opened ({text})",
            f"Mend the connection {where.conn_id!r}: login, password, database, extras.",
        )
    return StoreUnavailableError(
        f"{where.describe()} does not answer ({text})", "Start it, or mend the network; nothing was applied."
    )


def is_lost(error: psycopg.Error) -> bool:
    """Did the server end or vanish, so that the outcome of a COMMIT is unknown?"""
    return error.sqlstate is None or error.sqlstate.startswith(_CONNECTION_LOST)


def store_error(error: psycopg.Error, where: Connection) -> TridentError:
    """One clear error for the server's error, or for the driver's own; nothing was applied."""
    import psycopg

    code, words = error.sqlstate or "", said(error, where)
    if not code and isinstance(error, psycopg.ProgrammingError | psycopg.DataError):
        return ConfigurationError(
            f"{where.describe()}: the driver cannot do it ({words})",
            "Mend the value that it names, or keep the state in another table, or with other fields.",
        )
    if code.startswith("XX"):
        return CorruptError(f"{where.describe()} is damaged ({words})", "Restore it from a backup.")
    if not is_lost(error) and code == "42501":
        return ConfigurationError(
            f"{where.describe()} does not allow it ({words})",
            "Let the user of the connection create tables in the schema, and read and write its own.",
        )
    if not is_lost(error) and code.startswith(_NOT_AS_MADE):
        return ConfigurationError(
            f"{where.describe()} does not accept it ({words})",
            "Somebody changed the tables of the state, or they cannot hold its fields: restore them, or name another.",
        )
    if code == "54000":
        return ConfigurationError(
            f"{where.describe()} cannot hold it ({words})",
            "The fields of a key may have about 2,700 bytes together: group by a digest of long ones.",
        )
    cures = {
        **CURES,
        "55P03": "Another committer holds the state: let it end, or raise lock_timeout_s.",
        "25006": "It is a standby: name the primary, or add the extra target_session_attrs=read-write.",
        "53100": "Free some disk space.",
    }
    return StoreUnavailableError(
        f"{where.describe()} failed ({words})",
        f"{cures.get(code, 'Mend it and run the task again.')} Nothing was applied.",
    )


def said(error: psycopg.Error, where: Connection) -> str:
    """The server's words in one line, without secrets."""
    lines = where.conceal(str(error)).strip().split(os.linesep)
    return " ".join(line.strip() for line in lines if not line.startswith(("LINE ", " "))).strip()
