"""Connections: how to reach a store or a source, by its id in Airflow.

States and spouts do not import Airflow. Inside Airflow, `tasks.engines` installs a resolver here that asks Airflow.
Elsewhere the environment variable ``AIRFLOW_CONN_<ID>`` holds a URI or JSON, in Airflow's format. Executors resolve
nothing: they receive resolved settings.

Optional drivers. They are imported on first use; the error for a missing one says what to install.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from airflow_trident.errors import ConfigurationError, MissingExtraError, RetryableError

_PUBLIC_LENGTH = 3
"""Shorter texts stay in messages: to replace them would hide nothing and garble everything."""


@dataclass(frozen=True, kw_only=True)
class Connection:
    """The content of a connection. Its text forms show neither password nor extras, which may hold secrets.

    :param conn_type: ``postgres``, ``redis``, ...; empty if there is none.
    :param schema: the database.
    :param extra: the extras, read from their JSON.
    """

    conn_id: str = ""
    conn_type: str = ""
    host: str = ""
    port: int | None = None
    schema: str = ""
    login: str = ""
    password: str = field(default="", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def describe(self) -> str:
        """Type and place, no secrets."""
        port = f":{self.port}" if self.port else ""
        return f"{self.conn_type or 'connection'}://{self.host}{port}{f'/{self.schema}' if self.schema else ''}"

    @property
    def options(self) -> dict[str, str]:
        """The extras that fit as options of a library: texts, numbers and booleans, as texts."""
        return {name: str(value) for name, value in self.extra.items() if isinstance(value, str | int | float)}

    def conceal(self, text: str) -> str:
        """`text`, such as a driver's message, without the password and the texts of the extras."""
        for secret in sorted({self.password, *_texts(self.extra)}, key=len, reverse=True):
            if len(secret) > _PUBLIC_LENGTH:
                text = text.replace(secret, "***")
        return text


Resolver: TypeAlias = Callable[[str], Connection]


class _Installed:
    resolver: Resolver | None = None


def install(resolver: Resolver | None) -> None:
    """Let `resolver` answer in this process; None: use the environment again."""
    _Installed.resolver = resolver


def resolve(conn_id: str) -> Connection:
    """The connection of this id.

    :raises ConfigurationError: there is none, or it cannot be read.
    :raises RetryableError: Airflow does not give it now.
    """
    return (_Installed.resolver or from_environment)(conn_id)


def resolve_if(conn_id: str | None, *, required: bool) -> Connection | None:
    """The connection of this id; None: no id, or there is no such connection.

    :raises ConfigurationError: `required`, and there is no such connection.
    :raises RetryableError: `required`, and Airflow does not give it now.
    """
    try:
        return resolve(conn_id) if conn_id is not None else None
    except (ConfigurationError, RetryableError):
        if required:
            raise
        return None


def from_environment(conn_id: str) -> Connection:
    """The connection in ``AIRFLOW_CONN_<ID>``.

    :raises ConfigurationError: the variable is not set, or neither a URI nor JSON.
    """
    name = variable(conn_id)
    written = os.environ.get(name, "").strip()
    if not written:
        raise unknown(conn_id)
    try:
        return _from_json(conn_id, written) if written.startswith("{") else _from_uri(conn_id, written)
    except (ValueError, TypeError):
        # The cause would show the connection with its password.
        raise ConfigurationError(
            f"the connection {conn_id!r} cannot be read: {name} is neither a URI nor JSON of a connection",
            'Write it like postgres://user:password@host:5432/database or {"conn_type": "postgres", "host": "..."}.',
        ) from None


def variable(conn_id: str) -> str:
    """The environment variable of a connection."""
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def as_json(connection: Connection) -> str:
    """The connection in Airflow's JSON for the environment. It holds the secrets."""
    texts = {name: getattr(connection, name) for name in ("conn_type", "host", "schema", "login", "password")}
    return json.dumps({**texts, "port": connection.port, "extra": dict(connection.extra)})


def unknown(conn_id: str) -> ConfigurationError:
    """The error for an unknown id."""
    return ConfigurationError(f"there is no connection {conn_id!r}", f"Add it in Airflow, or set {variable(conn_id)}.")


def parse_extra(written: Any) -> dict[str, Any]:
    """The extras, from JSON text or an object.

    :raises ValueError: not a JSON object.
    """
    extra = json.loads(written) if isinstance(written, str) and written else written or {}
    if not isinstance(extra, dict):
        raise ValueError("extras are a JSON object")
    return extra


def _from_json(conn_id: str, written: str) -> Connection:
    content = json.loads(written)
    port = content.get("port")
    texts = {name: str(content.get(name) or "") for name in ("conn_type", "host", "schema", "login", "password")}
    return Connection(
        conn_id=conn_id, port=int(port) if port else None, extra=parse_extra(content.get("extra")), **texts
    )


def _from_uri(conn_id: str, written: str) -> Connection:
    parts = urlsplit(written)
    if not parts.scheme:
        raise ValueError("no scheme")
    conn_type = "postgres" if parts.scheme == "postgresql" else parts.scheme.replace("-", "_")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Connection(
        conn_id=conn_id,
        conn_type=conn_type,
        host=unquote(parts.hostname or ""),
        port=parts.port,
        schema=unquote(parts.path[1:]),
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        extra=parse_extra(query["__extra__"]) if "__extra__" in query else query,
    )


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for part in value.values() for text in _texts(part)]
    if isinstance(value, list):
        return [text for part in value for text in _texts(part)]
    return []


SUBMIT_EXTRA = "airflow-trident[submit]"
"""For connections of type ``spark`` and ``spark_connect``."""
KUBERNETES_PROVIDER = "apache-airflow-providers-cncf-kubernetes"
"""For masters of Kubernetes: the Spark provider needs it to submit to them."""


def require_extra(module: str, extra: str) -> ModuleType:
    """The module of an optional driver: ``require_extra("redis.cluster", "airflow-trident[redis]")``.

    :param extra: what to install for it, in pip's notation.
    :raises MissingExtraError: it, or a module that it needs, is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"the module {error.name!r} is not installed here", f'Install it: pip install "{extra}".'
        ) from error
