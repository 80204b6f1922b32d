"""Where an HDFS is, and how to reach it.

``hdfs://connection@nameservice/path`` with the id of a connection of type ``webhdfs``, as Airflow's WebHDFSHook takes
it (``webhdfs_default`` if none is named). The name service is the file system as Hadoop and Spark call it; it may be
left out. Or ``webhdfs://namenode:9870/path``, ``swebhdfs://`` with TLS, without a connection.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from airflow_trident.errors import ConfigurationError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection
from airflow_trident.io.database_limits import HDFS
from airflow_trident.io.paths import HDFS_SCHEMES
from airflow_trident.io.webhdfs import Access, WebHdfs
from airflow_trident.io.webhdfs_errors import RemoteException, Unreachable, translated

DEFAULT_CONN_ID = "webhdfs_default"
CONN_TYPE = "webhdfs"
WRITTEN = "hdfs://[connection@][nameservice]/path or webhdfs://namenode[:port]/path"
_NAMED, _PLAIN, _TLS = HDFS_SCHEMES
_PORT, _TLS_PORT = 9870, 9871
_ODD = re.compile(r"[\x00-\x1f\x7f:]")
_HOST = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?\Z")
_MOST = 1_000_000
"""More is no number of seconds or tries that anybody means."""


@dataclass(frozen=True, kw_only=True)
class HdfsAddress:
    """A folder of an HDFS.

    :param host: name service, or name node with the port of HTTP; may be empty.
    :param path: without slashes around it.
    :param access: of the resolved connection; may hold secrets.
    """

    path: str
    scheme: str = _NAMED
    host: str = ""
    conn_id: str = ""
    access: Access | None = field(default=None, repr=False)

    @classmethod
    def parse(cls, subject: str, uri: str) -> HdfsAddress:
        """
        :param subject: whose path it is, for errors.
        :raises ConfigurationError: another scheme, no path, or an unexpected part such as a password.
        """
        try:
            parts = urlsplit(uri.strip())
            user, secret = parts.username or "", parts.password
        except ValueError:
            parts, user, secret = urlsplit(""), "", None
        scheme, host = parts.scheme.lower(), parts.netloc.rpartition("@")[2]
        if secret is not None:
            raise ConfigurationError(
                f"{subject} has a password in its URI (host {host!r}), which logs and records would show",
                f"Put it into a connection of type {CONN_TYPE} and write {WRITTEN}.",
            )
        path = parts.path.strip("/")
        odd = _ODD.search(path) or {"", ".", ".."}.intersection(path.split("/"))
        bad_host = _HOST.match(host) is None and (host or scheme != _NAMED)
        if scheme not in HDFS_SCHEMES or odd or bad_host or parts.query or parts.fragment:
            raise ConfigurationError(
                f"{subject} cannot use {uri.split('?', 1)[0]!r}: it is no {WRITTEN}",
                "Write it so, without anything else.",
            )
        if scheme != _NAMED and user:
            raise ConfigurationError(
                f"{subject} cannot use {uri!r}: {scheme}:// takes no connection, and no user",
                f"Write hdfs://{user}@/{path} for the connection {user!r}, or set HADOOP_USER_NAME for the user.",
            )
        conn_id = user or (DEFAULT_CONN_ID if scheme == _NAMED else "")
        return cls(path=path, scheme=scheme, host=host, conn_id=conn_id)

    @property
    def where(self) -> str:
        """As written."""
        user = f"{self.conn_id}@" if self.conn_id not in ("", DEFAULT_CONN_ID) else ""
        return f"{self.scheme}://{user}{self.host}/{self.path}"

    @property
    def root(self) -> str:
        """The file system, without the connection."""
        return f"{self.scheme}://{self.host}"

    def resolved(self, *, required: bool = True) -> HdfsAddress:
        """With what the connection says, for processes that cannot resolve connections.

        :raises ConfigurationError: `required`, and there is no such connection; or it does not fit.
        """
        if self.access is not None:
            return self
        if self.scheme != _NAMED:
            return replace(self, access=_without_connection(self.scheme, self.host))
        connection = connections.resolve_if(self.conn_id, required=required)
        return self if connection is None else replace(self, access=_access(connection))

    def client(self) -> WebHdfs:
        """:raises ConfigurationError: see :meth:`resolved`."""
        access = self.resolved().access
        assert access is not None
        return WebHdfs(access)

    @contextmanager
    def errors(self, doing: str) -> Iterator[None]:
        """Translates what the server says. A missing file stays a FileNotFoundError.

        :param doing: "read 'a/b'".
        :raises ConfigurationError: no retry helps.
        :raises StoreUnavailableError: no answer, no space, or a temporary error.
        """
        try:
            yield
        except (RemoteException, Unreachable) as error:
            raise translated(error, doing, self.where) from None


def _without_connection(scheme: str, host: str) -> Access:
    tls = scheme == _TLS
    server = host if ":" in host else f"{host}:{_TLS_PORT if tls else _PORT}"
    return Access(servers=(server,), tls=tls, user=os.environ.get("HADOOP_USER_NAME") or getpass.getuser())


def _access(connection: Connection) -> Access:
    """As the provider's WebHDFSHook reads it; but certificates are verified unless it says not to."""
    if connection.conn_type not in (CONN_TYPE, ""):
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} is of type {connection.conn_type!r}, and hdfs:// needs one of type "
            f"{CONN_TYPE!r}",
            f"Make a connection of type {CONN_TYPE}: the name nodes as host, their HTTP port as port.",
        )
    tls = _flag(connection, "use_ssl")
    port = connection.port or (_TLS_PORT if tls else _PORT)
    hosts = [host.strip() for host in connection.host.split(",") if host.strip()]
    if not hosts or not all(_HOST.match(host) for host in hosts):
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has the host {connection.host!r}, which is no list of hosts",
            "Write the name node as its host, several with commas between them, without http://.",
        )
    return Access(
        servers=tuple(host if ":" in host else f"{host}:{port}" for host in hosts),
        tls=tls,
        path=f"/{connection.schema.strip('/')}" if connection.schema.strip("/") else "",
        user=connection.login or os.environ.get("HADOOP_USER_NAME") or getpass.getuser(),
        proxy_user=str(connection.extra.get("proxy_user") or ""),
        password=connection.password,
        token=str(connection.extra.get("delegation_token") or ""),
        verify=_verify(connection.extra.get("verify")),
        certificate=str(connection.extra.get("cert") or ""),
        key=str(connection.extra.get("key") or ""),
        connect_timeout_s=_number(connection, "connect_timeout", HDFS.connect_s),
        read_timeout_s=_number(connection, "read_timeout", HDFS.answer_s),
        retries=int(_number(connection, "max_retries", 8)),
    )


def _verify(written: object) -> str:
    text = "" if written is None else str(written)
    return text.lower() if text.lower() == "false" else "" if text.lower() == "true" else text


def _flag(connection: Connection, name: str) -> bool:
    return str(connection.extra.get(name, "")).lower() == "true"


def _number(connection: Connection, name: str, instead: float) -> float:
    written = connection.extra.get(name, instead)
    try:
        number = float(written)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= _MOST:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has {written!r} as {name}, which is no number",
            "Write a number, of seconds if it is a time, into its extras.",
        )
    return number
