"""How to reach a database through SQLAlchemy, and its error messages. Shared by the state and the spout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
_ALWAYS: dict[str, dict[str, Any]] = {
    "psycopg": {"prepare_threshold": None, "client_encoding": "UTF8"},
    "psycopg2": {"client_encoding": "UTF8"},
}
_UNICODE = "utf8mb4"
_TAKE_CHARSET = ("pymysql", "mysqldb", "mysqlconnector")
_NO_OTHERS = Limits()
_OF_AIRFLOW = frozenset(
    {"iam", "redshift", "cursor", "sqlalchemy_scheme", "sqlalchemy_query", "client", "enable_log_db_messages"}
)
_SET_HERE = frozenset(
    {
        "autocommit",
        "prepare_threshold",
        "client_encoding",
        "context",
        "row_factory",
        "cursor_factory",
        "connection_factory",
    }
    | {"cursorclass", "use_unicode", "conv", "binary_prefix", "defer_connect"}
)
"""Arguments of drivers that change how statements are sent and values are read: an extra cannot change them."""


def scheme_of(connection: Connection) -> str:
    """SQLAlchemy's name for database and driver."""
    return str(connection.extra.get("sqlalchemy_scheme") or _DRIVERS.get(connection.conn_type, connection.conn_type))


def driver_extras(connection: Connection) -> dict[str, Any]:
    """The extras that are for the driver."""
    reserved = _OF_AIRFLOW | _SET_HERE
    return {name: value for name, value in connection.extra.items() if name not in reserved and value is not None}


def quoted(dialect: sqlalchemy.Dialect, table: Any) -> str:
    """A table's name as statements have it. Some drivers need percent signs doubled there, not here."""
    name: str = dialect.identifier_preparer.format_table(table)
    return name.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else name


def database_url(connection: Connection) -> sqlalchemy.URL:
    """The URL of Airflow's connection; the extra ``sqlalchemy_scheme`` names another driver."""
    import sqlalchemy as sa

    scheme = scheme_of(connection)
    if connection.conn_type == "sqlite":
        return sa.URL.create(scheme, database=connection.host or connection.schema)
    query = {name: str(value) for name, value in driver_extras(connection).items() if not isinstance(value, dict)}
    return sa.URL.create(
        scheme,
        username=connection.login or None,
        password=connection.password or None,
        host=connection.host or None,
        port=connection.port,
        database=connection.schema or None,
        query=query,
    )


def make_engine(
    connection: Connection, who: str, limits: Limits = _NO_OTHERS, *, writes: bool = True, **options: Any
) -> sqlalchemy.Engine:
    """An engine whose errors show no parameters, with sessions that are set by `io.database_limits`. Opens nothing.

    :param limits: of its sessions; extras of the connection go before.
    :param writes: it keeps a state; otherwise it reads a source.
    :raises ConfigurationError: no driver for such a connection.
    """
    sa: Any = require_extra("sqlalchemy", EXTRA)
    url = _in_unicode(database_url(connection), connection)
    driver = url.drivername.partition("+")[2]
    arguments: dict[str, Any] = dict(_EXACT_TIMES.get(url.drivername, {}))
    arguments |= limits.arguments(url.get_backend_name(), driver)
    arguments |= _ALWAYS.get(driver, {})
    dict_extras = {name: value for name, value in driver_extras(connection).items() if isinstance(value, dict)}
    options["connect_args"] = {name: value for name, value in arguments.items() if name not in url.query} | dict_extras
    try:
        with taking_extras(connection):
            engine: sqlalchemy.Engine = sa.create_engine(url, hide_parameters=True, **options)
    except (sa.exc.ArgumentError, sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise ConfigurationError(
            f"{who}: no driver for connections of type {connection.conn_type!r} ({connection.conceal(str(error))})",
            "Install one, or name another in the extra sqlalchemy_scheme, as in mysql+mysqlconnector.",
        ) from None
    _listen(engine, limits, connection, writes=writes)
    return engine


def _in_unicode(url: sqlalchemy.URL, connection: Connection) -> sqlalchemy.URL:
    """The server would write a question mark for what another character set lacks."""
    if not url.get_backend_name().startswith(MYSQL) or url.drivername.partition("+")[2] not in _TAKE_CHARSET:
        return url
    charset = str(url.query.get("charset", _UNICODE))
    if charset.lower() not in (_UNICODE, "utf8", "utf8mb3"):
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has the extra charset={charset!r}, which loses characters",
            f"Take the extra away, or set it to {_UNICODE}.",
        )
    return url.update_query_dict({"charset": _UNICODE})


def _listen(engine: sqlalchemy.Engine, limits: Limits, connection: Connection, *, writes: bool) -> None:
    """Sets each new session and each transaction."""
    import sqlalchemy as sa

    connector, gives_texts = CONNECTORS.get(engine.dialect.driver), TEXT_GIVERS.get(engine.dialect.driver)
    session = limits.session(engine.dialect.name, writes=writes)
    transaction = limits.transaction(
        engine.dialect.name, writes=writes, options=str(engine.url.query.get("options", ""))
    )
    if connector is not None:

        @sa.event.listens_for(engine, "do_connect")
        def connect(_dialect: Any, _record: Any, arguments: Any, named: dict[str, Any]) -> Any:
            with taking_extras(connection):
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


@contextmanager
def taking_extras(connection: Connection) -> Iterator[None]:
    """Around a driver's `connect`.

    :raises ConfigurationError: the driver does not take an argument, which is none of its own errors.
    """
    try:
        yield
    except (TypeError, ValueError, AttributeError, NotImplementedError, FileNotFoundError, PermissionError) as error:
        if not driver_extras(connection):
            raise
        raise ConfigurationError(
            f"the driver does not take an extra of {connection.describe()}: {connection.conceal(str(error))}",
            f"Correct the extras of the connection {connection.conn_id!r}, or remove them.",
        ) from None


def _execute(raw: Any, statements: Sequence[str]) -> None:
    cursor = raw.cursor()
    try:
        for statement in statements:
            cursor.execute(statement)
    finally:
        cursor.close()
