"""How long a database may keep a task waiting, and what its sessions are set to: shared by all that connect to one.

Settings of servers, roles and sessions change what statements mean and how values are written. Those that matter are
set here: in PostgreSQL for each transaction, so that a connection that a pooler shares keeps nothing; in MySQL, MariaDB
and SQL Server for the session, which nobody else uses.

How long this package waits for others. Every client of a server takes its deadlines from here, so that a silent one
(stopped, or behind a network that drops what is sent) is an error that names it, and never holds a task for ever.

Clients of databases have theirs as parameters with the same purpose (:mod:`airflow_trident.io.database_limits`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_trident.names import require_durations

_DEAD_AFTER_S = 60
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": _DEAD_AFTER_S * 1000}
"""Options of libpq: a dead network is noticed."""
MYSQL = ("mysql", "mariadb")
_LATER_S = 5.0
"""The server ends a statement itself at its limit: its word is waited for a little longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: to connect; to wait for a lock of somebody else; for one statement."""

    connect_s: float = 10.0
    lock_s: float = 30.0
    statement_s: float = 600.0

    def require_positive(self, subject: str) -> None:
        """:raises ConfigurationError: a limit is not above 0. :param subject: whose limits, for the error."""
        require_durations(
            subject,
            connect_timeout_s=self.connect_s,
            lock_timeout_s=self.lock_s,
            statement_timeout_s=self.statement_s,
        )

    @property
    def answer_s(self) -> float:
        """How long this side waits for an answer: longer than the server lets a statement take."""
        return max(self.statement_s, self.lock_s) + min(_LATER_S, max(1.0, self.statement_s))

    @property
    def whole_connect_s(self) -> int:
        """For drivers that take whole seconds."""
        return max(1, round(self.connect_s))

    @property
    def for_libpq(self) -> Mapping[str, int]:
        return {**ALIVE, "connect_timeout": max(2, round(self.connect_s))}

    def arguments(self, database: str, driver: str) -> Mapping[str, float]:
        """Arguments of a driver's `connect`, by SQLAlchemy's names of database and driver; none for one that is not
        known."""
        lock_s, statement_s, answer_s = (
            max(1, round(seconds)) for seconds in (self.lock_s, self.statement_s, self.answer_s)
        )
        match database, driver:
            case "postgresql", "psycopg" | "psycopg2":
                return self.for_libpq
            case "mysql" | "mariadb", "pymysql":
                return {"connect_timeout": self.whole_connect_s, "write_timeout": answer_s}
            case "mysql" | "mariadb", "mysqldb":
                return {"connect_timeout": self.whole_connect_s, "read_timeout": answer_s, "write_timeout": answer_s}
            case "mssql", "pymssql":
                return {"login_timeout": self.whole_connect_s, "timeout": statement_s}
            case "sqlite", _:
                return {"timeout": lock_s}
        return {}

    def session(self, database: str, *, writes: bool) -> tuple[str, ...]:
        """Statements for a new session, by SQLAlchemy's name of the database.

        :param writes: it keeps a state, and its statements are this package's alone; a spout's query is a person's.
        """
        match database:
            case "mysql" | "mariadb":
                return (_of_mysql(self, writes=writes),)
            case "mssql":
                return (f"SET LOCK_TIMEOUT {round(self.lock_s * 1000)}",)
            case "sqlite":
                return (f"PRAGMA busy_timeout = {round(self.lock_s * 1000)}",)
        return ()

    def transaction(self, database: str, *, writes: bool, options: str = "") -> tuple[str, ...]:
        """Statements for the beginning of each transaction.

        :param options: libpq's ``options`` of the connection: the limits that they name are left as they are.
        """
        return (_of_postgres(self, writes=writes, options=options),) if database == "postgresql" else ()


# ---- PostgreSQL ------------------------------------------------------------------------------------------------

_STYLES = {
    "TimeZone": "UTC",  # an instant may be beyond the years of Python elsewhere
    "DateStyle": "ISO",  # what drivers can read
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",  # a double as it is, also before PostgreSQL 12
    "bytea_output": "hex",
}
_OF_STATES = {
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "row_security": "off",  # rows that a policy hides are an error
    "jit": "off",
}
# What the ledger calls committed must survive a crash of the server (P8).
_DURABLE = (
    "set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' "
    "ELSE current_setting('synchronous_commit') END, true)"
)


def _of_postgres(limits: Limits, *, writes: bool, options: str) -> str:
    lock_ms, statement_ms = str(round(limits.lock_s * 1000)), str(round(limits.statement_s * 1000))
    waits = {
        "lock_timeout": lock_ms,
        "statement_timeout": statement_ms,
        "idle_in_transaction_session_timeout": statement_ms,
    }
    values = {**_STYLES, **(_OF_STATES if writes else {})}
    values |= {name: limit for name, limit in waits.items() if name not in options}
    calls = [f"set_config('{name}', '{value}', true)" for name, value in values.items()]
    return f"SELECT {', '.join([*calls, _DURABLE] if writes else calls)}"


# ---- MySQL and MariaDB -----------------------------------------------------------------------------------------

_ALL_ROWS = 2**64 - 1
# Without the modes that make two texts one, or cut values to fit. ANSI_QUOTES and others that a query may need are a
# person's choice: only a state's statements are without them.
_STRICT = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'"
_AS_STORED = "REPLACE(REPLACE(@@sql_mode, 'EMPTY_STRING_IS_NULL', ''), 'PAD_CHAR_TO_FULL_LENGTH', '')"


def _of_mysql(limits: Limits, *, writes: bool) -> str:
    lock_s = max(1, round(limits.lock_s))
    values: dict[str, str | int] = {
        "time_zone": "'+00:00'",  # columns of instants are given in the zone of the session
        "sql_mode": _STRICT if writes else _AS_STORED,
        "lock_wait_timeout": lock_s,  # also of ALTER TABLE
        "innodb_lock_wait_timeout": lock_s,
        "sql_select_limit": _ALL_ROWS,
        "sql_auto_is_null": 0,
    }
    if writes:
        values |= {"sql_safe_updates": 0, "foreign_key_checks": 1, "unique_checks": 1, "completion_type": 0}
    assignments = ", ".join(f"{name} = {value}" for name, value in values.items())
    # In comments that the one or the other server runs. MariaDB limits every statement, MySQL those that only read.
    # A transaction whose client is gone without a word keeps its locks only so long.
    idle_s = max(1, round(limits.statement_s))
    return (
        f"SET {assignments} "
        f"/*M!100300 , max_statement_time = {limits.statement_s:g}, idle_transaction_timeout = {idle_s} */ "
        f"/*!80000 , max_execution_time = {round(limits.statement_s * 1000)} */"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Of one kind of server, in seconds.

    :param connect_s: until a connection is there.
    :param answer_s: until a request is answered; for object stores with the content, otherwise until something comes.
    :param retry_s: how long a request without an answer is begun anew, by the client itself.
    :param where: what a user sets instead, for the table in the documents.
    """

    connect_s: float
    answer_s: float
    retry_s: float = 0
    where: str


REDIS = Deadlines(connect_s=10, answer_s=30, retry_s=30, where="`timeout_s` of the state or spout")
KAFKA = Deadlines(connect_s=30, answer_s=30, where="`timeout_s` of the spout")
OBJECT_STORES = Deadlines(
    connect_s=5,
    answer_s=60,
    retry_s=60,
    where="the connection's extras for time-outs and retries, as its type has them",
)
HDFS = Deadlines(
    connect_s=5, answer_s=60, retry_s=60, where="the extras `connect_timeout`, `read_timeout`, `max_retries`"
)
ZOOKEEPER = Deadlines(connect_s=15, answer_s=20, where="the extras `connect_deadline_s`, `op_deadline_s`")
CLUSTERS = Deadlines(connect_s=10, answer_s=10, where="no setting: the next look asks again")
"""Spark's masters, YARN's resource manager and the API server of Kubernetes, asked about drivers."""

REST_CATALOGS = Deadlines(connect_s=5, answer_s=60, where="no setting")

EVERY = {
    "Redis, Valkey": REDIS,
    "Kafka": KAFKA,
    "S3, Azure, Google Cloud Storage": OBJECT_STORES,
    "HDFS (WebHDFS)": HDFS,
    "ZooKeeper": ZOOKEEPER,
    "Spark master, YARN, Kubernetes": CLUSTERS,
    "Iceberg catalogs (HTTP)": REST_CATALOGS,
}
"""Name in the documents -> its deadlines."""
