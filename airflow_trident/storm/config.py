"""Storm's configuration names and their meaning here."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Json

_PREFIXES = ("topology.", "transactional.", "storm.", "drpc.", "supervisor.", "nimbus.", "worker.", "zmq.", "ui.")
_DEFAULT_PORT = 2181


@dataclass(frozen=True, kw_only=True)
class TransactionalConfig:
    """The settings of a topology in Storm's configuration.

    :param max_pending: ``topology.max.spout.pending``; None: the default of this package, which is 2 (Storm: 1).
    :param attempt_timeout: ``topology.message.timeout.secs``; None: no time-out.
    :param zookeeper_uri: ``transactional.zookeeper.servers`` and ``.port``, as the URI of a connection of type
        zookeeper: ``AIRFLOW_CONN_ZOOKEEPER_DEFAULT=<this>``.
    :param zookeeper_root: ``transactional.zookeeper.root``, for ``[trident] root``.
    :param max_task_parallelism: ``topology.max.task.parallelism``.
    :param state_provider: ``topology.stream_base.provider``, a name for :class:`KeyValueStates`.
    :param state_provider_config: ``topology.stream_base.provider.config``, its arguments.
    :param checkpoint_interval: ``topology.stream_base.checkpoint.interval.ms``, for the ``schedule`` of the DAG: each
        transaction makes a checkpoint, so the schedule decides how often there is one.
    :param for_components: the whole configuration, as bolts get it.
    """

    max_pending: int | None = None
    attempt_timeout: timedelta | None = None
    zookeeper_uri: str | None = None
    zookeeper_root: str | None = None
    max_task_parallelism: int | None = None
    state_provider: str | None = None
    state_provider_config: Mapping[str, Json] = field(default_factory=dict, repr=False)
    checkpoint_interval: timedelta | None = None
    for_components: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def transaction(self) -> dict[str, Any]:
        """Arguments of :func:`trident_transaction` and operators: ``trident_transaction(topology,
        **builder.config.transaction())``."""
        options = {"max_pending": self.max_pending, "attempt_timeout": self.attempt_timeout}
        return {name: value for name, value in options.items() if value is not None}


def read_config(conf: Mapping[str, Any]) -> TransactionalConfig:
    """
    :param conf: Storm's names; all other names are the user's, for the components.
    :raises ConfigurationError: a name of Storm's has no meaning here, or a value does not fit.
    """
    settings: dict[str, Any] = {}
    for name in conf:
        if name.startswith(_PREFIXES) and name not in _NAMES:
            listing = f"Leave it out. These are known: {', '.join(_NAMES)}."
            raise ConfigurationError(f"the configuration {name!r} is unknown", _ELSEWHERE.get(name, listing))
    for name, (target, read) in _NAMES.items():  # a later name wins
        if name in conf:
            settings[target] = read(name, conf[name])
    servers, port = settings.pop("servers", None), settings.pop("port", _DEFAULT_PORT)
    if servers is not None:
        settings["zookeeper_uri"] = "zookeeper://" + ",".join(
            server if ":" in server else f"{server}:{port}" for server in servers
        )
    return TransactionalConfig(**settings, for_components=dict(conf))


def read_names(conf: Mapping[str, Any]) -> list[str]:
    """The names in it that are Storm's. Those of users have other prefixes."""
    return [name for name in conf if name.startswith(_PREFIXES)]


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} is {value!r}", "Give a whole number, 1 or more.")
    return value


def _seconds(name: str, value: Any) -> timedelta:
    return timedelta(seconds=_number(name, value))


def _milliseconds(name: str, value: Any) -> timedelta:
    return timedelta(milliseconds=_number(name, value))


def _provider(name: str, value: Any) -> str:
    text = _text(name, value)
    return _PROVIDERS.get(text.rpartition(".")[2], text)


def _provider_config(name: str, value: Any) -> dict[str, Json]:
    """Storm's names translated to those of :class:`KeyValueStates`."""
    options: dict[str, Json] = {}
    for key, option in _json(name, value).items():
        if key == "jedisPoolConfig":
            options.update(_pool(name, option))
        else:
            options[_PROVIDER_OPTIONS.get(key, key)] = option
    return options


def _pool(name: str, pool: Json) -> dict[str, Json]:
    if not isinstance(pool, dict):
        raise ConfigurationError(f"jedisPoolConfig in {name} is a {type(pool).__name__}", "Give a JSON object.")
    if unknown := ", ".join(sorted(pool.keys() - _POOL_OPTIONS.keys())):  # never the values: one is a password
        raise ConfigurationError(
            f"jedisPoolConfig in {name} has {unknown}", f"These are known: {', '.join(_POOL_OPTIONS)}."
        )
    options = {_POOL_OPTIONS[key]: option for key, option in pool.items()}
    if "timeout_s" in options:
        options["timeout_s"] = _number("timeout", options["timeout_s"]) / 1000
    return options


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{name} is {value!r}", "Give a text.")
    return value


def _servers(name: str, value: Any) -> list[str]:
    if isinstance(value, str) or not value or not all(isinstance(server, str) and server for server in value):
        raise ConfigurationError(f"{name} is {value!r}", 'Give a list of hosts, as in ["zk1", "zk2"].')
    return list(value)


def _json(name: str, value: Any) -> dict[str, Json]:
    """Takes a JSON text, as in storm.yaml, or a dict. Its errors show no value: one may be a password."""
    try:
        read = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        place = f"column {error.colno} of line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "it"
        raise ConfigurationError(f"{name} is no JSON: {place} is wrong", "Give a JSON object, or a dict.") from None
    if not isinstance(read, dict):
        raise ConfigurationError(f"{name} is a {type(read).__name__}", "Give a JSON object, or a dict.")
    return read


_PROVIDERS = {"RedisKeyValueStateProvider": "redis", "InMemoryKeyValueStateProvider": "memory"}
_PROVIDER_OPTIONS = {
    "keyClass": "key_class",
    "valueClass": "value_class",
    "keySerializerClass": "key_serializer",
    "valueSerializerClass": "value_serializer",
}
_POOL_OPTIONS = {"host": "host", "port": "port", "timeout": "timeout_s", "database": "db", "password": "password"}
_NAMES: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "storm.zookeeper.servers": ("servers", _servers),
    "storm.zookeeper.port": ("port", _number),
    "topology.max.spout.pending": ("max_pending", _number),
    "topology.message.timeout.secs": ("attempt_timeout", _seconds),
    "topology.max.task.parallelism": ("max_task_parallelism", _number),
    "topology.state.checkpoint.interval.ms": ("checkpoint_interval", _milliseconds),
    "topology.state.provider": ("state_provider", _provider),
    "topology.state.provider.config": ("state_provider_config", _provider_config),
    "transactional.zookeeper.servers": ("servers", _servers),
    "transactional.zookeeper.port": ("port", _number),
    "transactional.zookeeper.root": ("zookeeper_root", _text),
}
_ELSEWHERE = {
    "topology.workers": "Leave it out: Airflow and Spark place the work.",
    "topology.acker.executors": "Leave it out: there are no ackers, the ledger knows what is done.",
    "topology.trident.batch.emit.interval.millis": "Leave it out: the DAG's schedule says when batches begin.",
    "topology.transactional.id": "Leave it out: it is the first argument of TransactionalTopologyBuilder.",
}
