"""New places of modules and names of earlier versions: an old import works, warns, and gives the same object."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

_ROOT = "airflow_trident"

MODULES = {
    "arrow": "io.arrow",
    "connections": "io.connections",
    "engine.spark_archive": "engine.spark.sessions.archive",
    "engine.spark_connect": "engine.spark.sessions.connect",
    "engine.spark_local": "engine.spark.sessions.local",
    "engine.spark_server": "engine.spark.sessions.server",
    "engine.spark_session": "engine.spark.sessions.session",
    "engine.spark_stderr": "engine.spark.sessions.stderr",
    "engine.spark_submit": "engine.spark.submit",
    "hooks.connections": "tasks.connections",
    "hooks.settings": "settings",
    "ledger.java": "ledger.embedded.java",
    "ledger.settings": "ledger.zookeeper.settings",
    "operations.base": "operations.api",
    "operations.expressions": "operations.expr.tree",
    "operators.group": "task_group",
    "plan.states": "contracts.state",
    "protocol.batches": "contracts.batch_spout",
    "protocol.partitioned": "contracts.partitioned_spout",
    "protocol.spouts": "contracts.spout",
    "runtime.drain": "runtime.drains.drain",
    "runtime.rebuild": "runtime.mending.rebuild",
    "runtime.replay": "runtime.mending.dry_replay",
    "spouts.file": "spouts.files.spout",
    "spouts.jdbc": "spouts.sql.spout",
    "spouts.redis_keys": "spouts.redis.keys",
    "spouts.redis_stream": "spouts.redis.stream",
    "spouts.spool_sources": "spouts.spool.sources",
    "spouts.spooled": "spouts.spool.spout",
    "states.file_sink": "states.files.sink",
    "states.jdbc": "states.sql.sqlalchemy_state",
    "states.keyvalue_stateful": "states.keyvalue.stateful",
    "states.marker": "states.core.marker",
    "states.merge": "states.core.merge",
    "states.postgres": "states.sql.postgres",
    "states.redis_plain": "states.redis.nontransactional",
    "states.sqlite": "states.sql.sqlite",
    "states.table_sink": "states.sql.table_sink",
}
"""Old path -> new path, both below ``airflow_trident``."""

NAMES = {
    "engine.spark": {"SparkEngine": "engine.spark.engine"},
    "ledger.embedded": {"EmbeddedZooKeeper": "ledger.embedded.server"},
    "ledger.zookeeper": {"ZooKeeperZNodes": "ledger.zookeeper.client"},
    "spouts.delta": {"DeltaSpout": "spouts.delta.spout"},
    "spouts.kafka": {"KafkaSpout": "spouts.kafka.spout", "OpaqueKafkaSpout": "spouts.kafka.spout"},
    "states.delta": {"DeltaState": "states.delta.state"},
    "states.keyvalue": {
        "KeyValueState": "states.keyvalue.base",
        "StateProvider": "states.keyvalue.base",
        "namespace_of": "states.keyvalue.base",
    },
    "states.redis": {"RedisState": "states.redis.state"},
}
"""Modules that are packages now -> the names that were in them -> where each name is now."""


def names_in(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package that was a module."""
    there = NAMES[package.removeprefix(f"{_ROOT}.")]

    def find(name: str) -> Any:
        if name not in there:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = f"{_ROOT}.{there[name]}"
        _warn(f"{package}.{name}", f"{module}.{name}", stacklevel=3)
        found = getattr(import_module(module), name)
        setattr(sys.modules[package], name, found)  # `from ... import` asks for the name twice
        return found

    return find


class _Finder:
    """Asked last, so only for modules that no folder has. Without a base class: importlib.abc takes long to import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, rest = fullname.partition(".")
        return ModuleSpec(fullname, cast(Any, self)) if package == _ROOT and rest in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # exec_module puts the new module in its place

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__
        new = f"{_ROOT}.{MODULES[old.removeprefix(f'{_ROOT}.')]}"
        _warn(old, new, stacklevel=3)
        # The import system gives the importer what is in sys.modules at the end.
        sys.modules[old] = import_module(new)


def _warn(old: str, new: str, *, stacklevel: int) -> None:
    warnings.warn(f"{old} is now {new}.", DeprecationWarning, stacklevel=stacklevel)


def install() -> None:
    """Make the old paths importable in this process."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.append(_Finder())
