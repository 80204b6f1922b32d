"""How to reach a Redis or Valkey server, and the meaning of its errors. Shared by the state, the provider and the
spouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_trident.errors import ConfigurationError, RetryableError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.connections import require_extra
from airflow_trident.io.database_limits import REDIS
from airflow_trident.io.datasets import Dataset, redis_dataset
from airflow_trident.names import require_conn_id, require_counts, require_durations, require_flags

EXTRA = "airflow-trident[redis]"
DEFAULT_CONN_ID = "redis_default"
_PASSED_ON = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_LOGIN = ("NOAUTH", "WRONGPASS", "NOPERM")
_IN_A_PIPELINE = " of pipeline caused error: "
"""What the driver puts before the answer to one of several commands, behind the command."""
_NO_CLUSTER = "Cluster mode is not enabled"
_NOT_NOW = ("BUSY", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "TRYAGAIN", "CLUSTERDOWN")


@dataclass(frozen=True, kw_only=True)
class RedisSettings:
    """A user's settings for a server: an Airflow connection of type ``redis``, or host, port and so on.

    :param conn_id: the connection; ``redis_default`` if no host is given. Its extras: db, ssl, ssl_*, cluster.
    :param db: the database's number; 0 in a cluster.
    :param cluster: the server is a node of a Redis Cluster.
    :param timeout_s: how long to retry a step when the server does not answer.
    """

    conn_id: str | None = None
    host: str | None = None
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl: bool = False
    cluster: bool = False
    timeout_s: float = REDIS.answer_s

    def __post_init__(self) -> None:
        require_flags(type(self).__name__, ssl=self.ssl, cluster=self.cluster)
        if self.conn_id is not None:
            require_conn_id(type(self).__name__, self.conn_id)
        if self.conn_id is not None and self.host is not None:
            raise ConfigurationError(
                f"both the connection {self.conn_id!r} and the host {self.host!r} say where Redis is", "Give one."
            )
        require_counts(type(self).__name__, port=self.port)
        require_counts(type(self).__name__, least=0, db=self.db)
        require_durations(type(self).__name__, timeout_s=self.timeout_s)

    @property
    def place(self) -> str:
        """Where the server is, without secrets and without a look-up."""
        if self.host is None:
            return self.conn_id or DEFAULT_CONN_ID
        return f"{self.host}:{self.port}" + (f"/{self.db}" if self.db else "")

    def resolve(self) -> RedisServer:
        """
        :raises ConfigurationError: there is no such connection.
        """
        if self.host is not None:
            options: dict[str, Any] = {
                "host": self.host,
                "port": self.port,
                "db": self.db,
                "username": self.username,
                "password": self.password,
                "ssl": self.ssl,
            }
            return RedisServer(place=self.place, options=options, cluster=self.cluster, timeout_s=self.timeout_s)
        connection = connections.resolve(self.place)
        extra = connection.extra
        options = {
            "host": connection.host or "localhost",
            "port": connection.port or 6379,
            "db": int(extra.get("db") or 0),
            "username": connection.login or None,
            "password": connection.password or None,
            "ssl": _is_true(extra.get("ssl")),
        }
        if options["ssl"]:
            options |= {name: extra[name] for name in _PASSED_ON if extra.get(name) is not None}
        cluster = self.cluster or _is_true(extra.get("cluster"))
        return RedisServer(place=self.place, options=options, cluster=cluster, timeout_s=self.timeout_s)


@dataclass(frozen=True, kw_only=True)
class RedisServer:
    """A server's settings for its client. Picklable for executors, which cannot resolve connections. `options` hold the
    password and are not shown."""

    place: str
    options: Mapping[str, Any] = field(repr=False, hash=False)
    cluster: bool = False
    timeout_s: float = REDIS.answer_s

    def dataset(self, key: str) -> Dataset:
        """The name of the key, or of a prefix of keys, in lineage."""
        return redis_dataset(self.options["host"], self.options["port"], self.options["db"], key)

    def open(self, unavailable: type[TridentError] = RetryableError) -> Any:
        """A client with its own connection; bytes in, bytes out. Repeats nothing by itself: the caller decides.

        :param unavailable: raised if no node of a cluster answers now.
        :raises MissingExtraError: the driver is not installed.
        """
        redis = require_extra("redis", EXTRA)
        retry = require_extra("redis.retry", EXTRA).Retry(require_extra("redis.backoff", EXTRA).NoBackoff(), 0)
        options = {
            **self.options,
            "socket_timeout": self.timeout_s,
            "socket_connect_timeout": min(self.timeout_s, REDIS.connect_s),
            "retry": retry,
        }
        if self.cluster:
            options.pop("db")
            with redis_errors(self.place, unavailable):
                return redis.cluster.RedisCluster(**options)
        return redis.Redis(**options)


@contextmanager
def redis_errors(place: str, unavailable: type[TridentError] = RetryableError) -> Iterator[None]:
    """Translate the driver's errors; raises `unavailable` if the same call may succeed later.

    :raises ConfigurationError: the login is refused, or a key holds something else.
    """
    try:
        yield
    except (TridentError, GeneratorExit):
        raise
    except Exception as error:
        translated = _translated(error, place, unavailable)
        if translated is None:
            raise
        raise translated from error


def is_a_replica(place: str, unavailable: type[TridentError]) -> TridentError:
    return unavailable(
        f"Redis at {place} is a replica, which does not keep what others write into it",
        "Give the connection the address of the primary. After a failover the task tries again.",
    )


def may_have_happened(error: BaseException | None) -> bool:
    """True: the answer was lost. False: the server said that it did nothing."""
    exceptions = require_extra("redis.exceptions", EXTRA)
    return error is not None and not isinstance(error, exceptions.ResponseError)


def _translated(error: Exception, place: str, unavailable: type[TridentError]) -> TridentError | None:
    exceptions = require_extra("redis.exceptions", EXTRA)
    message = str(error).rpartition(_IN_A_PIPELINE)[2]
    refused = (exceptions.AuthenticationError, exceptions.NoPermissionError)
    if isinstance(error, refused) or message.startswith(_LOGIN):
        return ConfigurationError(
            f"Redis at {place} refused the login or the command ({message})", "Give it the right user and password."
        )
    if _NO_CLUSTER in message:
        return ConfigurationError(f"Redis at {place} is no node of a cluster", "Leave out cluster=True.")
    if isinstance(error, exceptions.ReadOnlyError) or message.startswith("READONLY"):
        return is_a_replica(place, unavailable)
    unreachable = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterError, OSError)
    now = (*unreachable, exceptions.RedisClusterException, exceptions.OutOfMemoryError)
    if isinstance(error, now) or (isinstance(error, exceptions.ResponseError) and message.startswith(_NOT_NOW)):
        return unavailable(f"Redis at {place} does not work now ({message})", "Mend the server; the task tries again.")
    if isinstance(error, exceptions.RedisError):
        return ConfigurationError(
            f"Redis at {place} refused a command ({message})",
            "Its keys belong to something else, or it is older than version 7: give another server, db or key.",
        )
    return None


def _is_true(value: Any) -> bool:
    return value is True or str(value).strip().lower() in ("1", "true", "yes", "on")
