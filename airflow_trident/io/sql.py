"""How to reach a database through SQLAlchemy, and its error messages. Shared by the state and the spout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_limits import Limits
from airflow_trident.io.extras import require_extra

if TYPE_CHECKING:
    import sqlalchemy

EXTRA = "sqlalchemy>=2"
_DRIVERS = {"postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "mssql": "mssql+pymssql"}
# These databases convert columns of instants to the session's time zone; timestamps here are in UTC.
_IN_UTC = dict.fromkeys(("mysql", "mariadb"), "SET time_zone = '+00:00'")
# pymssql writes milliseconds otherwise, whatever the column holds.
_EXACT_TIMES = {"mssql+pymssql": {"use_datetime2": True}}
_NOT_OF_DRIVERS = frozenset({"iam", "redshift", "cursor", "sqlalchemy_scheme", "sqlalchemy_query"})


def scheme_of(where: Connection) -> str:
    """SQLAlchemy's name for database and driver."""
    return str(where.extra.get("sqlalchemy_scheme") or _DRIVERS.get(where.conn_type, where.conn_type))


def database_url(where: Connection) -> sqlalchemy.URL:
    """The URL of Airflow's connection; the extra ``sqlalchemy_scheme`` names another driver."""
    import sqlalchemy as sa

    scheme = scheme_of(where)
    if where.conn_type == "sqlite":
        return sa.URL.create(scheme, database=where.host or where.schema)
    query = {name: str(value) for name, value in where.extra.items() if name not in _NOT_OF_DRIVERS}
    return sa.URL.create(
        scheme,
        username=where.login or None,
        password=where.password or None,
        host=where.host or None,
        port=where.port,
        database=where.schema or None,
        query=query,
    )


def make_engine(where: Connection, who: str, limits: Limits | None = None, **options: Any) -> sqlalchemy.Engine:
    """An engine whose errors show no parameters. Opens nothing.

    :param limits: of its sessions; extras of the connection go before. None: those of the driver and the database.
    :raises ConfigurationError: no driver for such a connection.
    """
    sa: Any = require_extra("sqlalchemy", EXTRA)
    url = database_url(where)
    given: dict[str, Any] = dict(_EXACT_TIMES.get(url.drivername, {}))
    if limits is not None:
        given |= limits.arguments(url.get_backend_name(), url.drivername.partition("+")[2])
    options["connect_args"] = {name: value for name, value in given.items() if name not in url.query}
    try:
        engine: sqlalchemy.Engine = sa.create_engine(url, hide_parameters=True, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"{who}: no driver for connections of type {where.conn_type!r} ({where.conceal(str(error))})",
            "Install one, or name another in the extra sqlalchemy_scheme, as in mysql+mysqlconnector.",
        ) from None
    told = str(url.query.get("options", ""))
    settings = limits.settings(engine.dialect.name, told) if limits is not None else ()
    if statement := _IN_UTC.get(engine.dialect.name):
        settings = (statement, *settings)
    if settings:
        sa.event.listen(engine, "connect", lambda raw, _record: _execute(raw, settings))
    return engine


def _execute(raw: Any, statements: Sequence[str]) -> None:
    """For the whole session: what is not committed would be undone with the first transaction."""
    cursor = raw.cursor()
    try:
        for statement in statements:
            cursor.execute(statement)
    finally:
        cursor.close()
    raw.commit()


def said(error: sqlalchemy.exc.DBAPIError, where: Connection) -> str:
    """The driver's words in one line, without secrets."""
    return " ".join(where.conceal(str(error.orig)).split())
