"""How long a database may keep a task waiting: shared by all that connect to one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_trident.errors import ConfigurationError

_DEAD_AFTER_S = 60
ALIVE = {"keepalives_idle": 30, "keepalives_interval": 10, "tcp_user_timeout": _DEAD_AFTER_S * 1000}
"""Options of libpq: a dead network is noticed."""
CURES = {
    "55P03": "Let whoever holds the lock end, or raise lock_timeout_s.",
    "57014": "Raise statement_timeout_s, or make batches smaller.",
}
"""By the SQLSTATE of PostgreSQL: the lock or the statement took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds: to connect; to wait for a lock of somebody else; for one statement."""

    connect_s: float = 10.0
    lock_s: float = 30.0
    statement_s: float = 600.0

    def require_positive(self, what: str) -> None:
        """:raises ConfigurationError: a limit is not above 0. :param what: whose limits, for the error."""
        limits = {"connect": self.connect_s, "lock": self.lock_s, "statement": self.statement_s}
        for name, seconds in limits.items():
            if seconds <= 0:
                raise ConfigurationError(f"{what} with {name}_timeout_s={seconds}", "It must be above 0.")

    @property
    def for_libpq(self) -> Mapping[str, int]:
        return {**ALIVE, "connect_timeout": max(2, round(self.connect_s))}

    def arguments(self, database: str, driver: str) -> Mapping[str, float]:
        """Arguments of a driver's `connect`, by SQLAlchemy's names of database and driver; none for one that is not
        known."""
        connect_s, lock_s, statement_s = (max(1, round(one)) for one in (self.connect_s, self.lock_s, self.statement_s))
        match database, driver:
            case "postgresql", "psycopg" | "psycopg2":
                return self.for_libpq
            case "mysql" | "mariadb", "pymysql" | "mysqldb":
                return {"connect_timeout": connect_s, "read_timeout": statement_s}
            case "mssql", "pymssql":
                return {"login_timeout": connect_s, "timeout": statement_s}
            case "sqlite", _:
                return {"timeout": lock_s}
        return {}

    def settings(self, database: str, options: str = "") -> tuple[str, ...]:
        """Statements for a new session, by SQLAlchemy's name of the database.

        :param options: libpq's ``options`` of the connection: what they name is left as it is.
        """
        lock_ms, statement_ms = round(self.lock_s * 1000), round(self.statement_s * 1000)
        match database:
            case "postgresql":
                both = {"lock_timeout": lock_ms, "statement_timeout": statement_ms}
                calls = [f"set_config('{name}', '{most}', false)" for name, most in both.items() if name not in options]
                return (f"SELECT {', '.join(calls)}",) if calls else ()
            case "mysql" | "mariadb":
                return (f"SET lock_wait_timeout = {max(1, round(self.lock_s))}",)
            case "mssql":
                return (f"SET LOCK_TIMEOUT {lock_ms}",)
        return ()
