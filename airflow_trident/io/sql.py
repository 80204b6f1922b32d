"""How to reach a database through SQLAlchemy, and its error messages. Shared by the state and the spout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.connections import Connection, require_extra
from airflow_trident.io.database_drivers import CONNECTORS, EXTRA, TEXT_GIVERS
from airflow_trident.io.database_limits import MYSQL, Limits

if TYPE_CHECKING:
    import sqlalchemy

_DRIVERS = {"postgres": "postgresql+psycopg", "mysql": "mysql+pymysql", "mssql": "mssql+pymssql"}
# pymssql writes milliseconds otherwise, whatever the column holds.
_EXACT_TIMES = {"mssql+pymssql": {"use_datetime2": True}}
# A statement that a pooler sends to another session is not prepared there.
_UNPREPARED: dict[str, dict[str, Any]] = {"psycopg": {"prepare_threshold": None, "client_encoding": "UTF8"}}
_UNICODE = "utf8mb4"
_TAKE_CHARSET = ("pymysql", "mysqldb", "mysqlconnector")
_NO_OTHERS = Limits()
_NOT_OF_DRIVERS = frozenset({"iam", "redshift", "cursor", "sqlalchemy_scheme", "sqlalchemy_query", "client"})


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


def make_engine(
    where: Connection, who: str, limits: Limits = _NO_OTHERS, *, writes: bool = True, **options: Any
) -> sqlalchemy.Engine:
    """An engine whose errors show no parameters, with sessions that are set by `io.database_limits`. Opens nothing.

    :param limits: of its sessions; extras of the connection go before.
    :param writes: it keeps a state; otherwise it reads a source.
    :raises ConfigurationError: no driver for such a connection.
    """
    sa: Any = require_extra("sqlalchemy", EXTRA)
    url = _in_unicode(database_url(where), where)
    driver = url.drivername.partition("+")[2]
    arguments: dict[str, Any] = dict(_EXACT_TIMES.get(url.drivername, {}))
    arguments |= limits.arguments(url.get_backend_name(), driver)
    arguments |= _UNPREPARED.get(driver, {})
    options["connect_args"] = {name: value for name, value in arguments.items() if name not in url.query}
    try:
        engine: sqlalchemy.Engine = sa.create_engine(url, hide_parameters=True, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"{who}: no driver for connections of type {where.conn_type!r} ({where.conceal(str(error))})",
            "Install one, or name another in the extra sqlalchemy_scheme, as in mysql+mysqlconnector.",
        ) from None
    _listen(engine, limits, writes=writes, options=str(url.query.get("options", "")))
    return engine


def _in_unicode(url: sqlalchemy.URL, where: Connection) -> sqlalchemy.URL:
    """The server would write a question mark for what another character set lacks."""
    if not url.get_backend_name().startswith(MYSQL) or url.drivername.partition("+")[2] not in _TAKE_CHARSET:
        return url
    charset = str(url.query.get("charset", _UNICODE))
    if charset.lower() not in (_UNICODE, "utf8", "utf8mb3"):
        raise ConfigurationError(
            f"the connection {where.conn_id!r} has the extra charset={charset!r}, which loses characters",
            f"Take the extra away, or set it to {_UNICODE}.",
        )
    return url.update_query_dict({"charset": _UNICODE})


def _listen(engine: sqlalchemy.Engine, limits: Limits, *, writes: bool, options: str) -> None:
    """Sets each new session and each transaction."""
    import sqlalchemy as sa

    connector, gives_texts = CONNECTORS.get(engine.dialect.driver), TEXT_GIVERS.get(engine.dialect.driver)
    session = limits.session(engine.dialect.name, writes=writes)
    transaction = limits.transaction(engine.dialect.name, writes=writes, options=options)
    if connector is not None:

        @sa.event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, named: dict[str, Any]) -> Any:
            return connector(limits, *arguments, **named)

    if session or (gives_texts and not writes):
        # Before SQLAlchemy asks for the settings of the first session: it quotes names as they say.
        @sa.event.listens_for(engine, "connect", insert=True)
        def set_session(raw: Any, _record: Any) -> None:
            if gives_texts is not None and not writes:
                gives_texts(raw)
            if session:
                _execute(raw, session)
                raw.commit()  # what is not committed would be undone with the first transaction

    if transaction:

        @sa.event.listens_for(engine, "begin")
        def set_transaction(connection: sqlalchemy.Connection) -> None:
            # Not by SQLAlchemy: it would open a server's cursor for a connection that streams its results.
            _execute(connection.connection.dbapi_connection, transaction)


def _execute(raw: Any, statements: Sequence[str]) -> None:
    cursor = raw.cursor()
    try:
        for statement in statements:
            cursor.execute(statement)
    finally:
        cursor.close()
