"""An argument that cannot be meant is refused by name, on the line that gives it; in every public class."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import airflow_trident
import airflow_trident.functions
import airflow_trident.spouts
import airflow_trident.states
import airflow_trident.storm
from airflow_trident.errors import ConfigurationError, PlanError

PLACES = (
    airflow_trident,
    airflow_trident.functions,
    airflow_trident.spouts,
    airflow_trident.states,
    airflow_trident.storm,
)
RECORDS = {
    # made by the package, or by states of a user's own from its records
    *("Split", "StateSpec", "OperationContext", "TopologyContext", "TransactionAttempt", "TransformContext"),
    # an error, which a user raises in the middle of an attempt
    "FailedException",
}


def _fixed() -> Any:
    return airflow_trident.FixedBatchSpout("a string", ["x"])


def _script(**odd: Any) -> Any:
    outputs = {"b": ("a string", airflow_trident.DeltaTable("/t"))}
    return airflow_trident.Script("s", inputs={"a": _fixed()}, outputs=outputs, **odd)


COMPLETE: dict[str, dict[str, Any]] = {
    "ApproxCountDistinct": {},
    "CallableSource": {"poll": print, "fields": "a string"},
    "Capabilities": {"durable": True, "atomic": True},
    "CommandSource": {"command": ["true"]},
    "DataFrameSpout": {"read": print, "next_position": print, "fields": "a string"},
    "DeltaState": {"path": "/t"},
    "DeltaTable": {"path": "/t"},
    "FileSink": {"path": "/out"},
    "FileSpout": {"path": "/in/*.csv", "format": "csv", "fields": "a string"},
    "FirstN": {"n": 2, "sort_field": "a"},
    "FixedBatchSpout": {"fields": "a string", "rows": ["x"]},
    "IcebergTable": {"name": "a.b"},
    "KafkaSpout": {"topics": "t", "bootstrap_servers": "h:1"},
    "NodeBolt": {"cmd": "b.js"},
    "NodeSpout": {"cmd": "s.js", "fields": "a string", "folder": "/spool"},
    "NonTransactionalRedisState": {"host": "h"},
    "Partitions": {"step": "day", "begin": "2026-11-01"},
    "Percentile": {"share": 0.5},
    "PostgresState": {},
    "RedisSpout": {"host": "h", "keys": "{n}"},
    "RedisState": {"host": "h"},
    "RedisStreamSpout": {"host": "h", "streams": "s", "fields": "a string"},
    "ShellBolt": {"command": "true"},
    "ShellSpout": {"command": "true", "fields": "a string", "folder": "/spool"},
    "SlidingCountWindow": {"length_rows": 2, "slide_rows": 1},
    "SpooledSpout": {"source": airflow_trident.spouts.CommandSource(["true"]), "folder": "/spool"},
    "SqlSpout": {"conn_id": "db", "fields": "id long", "table": "t"},
    "SqlState": {"conn_id": "db"},
    "SqliteState": {"path": "/s.db"},
    "StandardDeviation": {},
    "TableSink": {},
    "Topology": {"name": "t"},
    "TransactionalTopologyBuilder": {"id": "t", "spout_id": "s", "spout": _fixed()},
    "TumblingCountWindow": {"length_rows": 2},
    "Variance": {},
}
"""What each class needs beside the argument that is tried."""

NO_NUMBER: tuple[Any, ...] = (math.nan, True, "5", b"5", -1, [])
ODD = {
    "bool": ("false", "", 0, 1, []),
    "int": (*NO_NUMBER, 1.5, math.inf),
    "float": NO_NUMBER,
    "fields": (5, b"a string", {"a": "string"}, {"a string"}, ["a string", 5]),
    "AnyPath": (5, b"/a", "/a\0b", "", []),
    "table": (5, b"a", "", []),
    "conn_id": (5, "", b"db", "postgresql://user:secret@host/db"),
}


def _kind(parameter: inspect.Parameter) -> str | None:
    if parameter.name in ("conn_id", "table"):
        return parameter.name
    if parameter.name in ("fields", "partition_fields"):
        return "fields"
    kinds = {part.strip() for part in str(parameter.annotation).split("|")} - {"None"}
    return kinds.pop() if len(kinds) == 1 and kinds <= ODD.keys() else None


def _public() -> Iterator[tuple[str, Callable[..., Any]]]:
    for place in PLACES:
        for name in place.__all__:
            made = getattr(place, name)
            is_task = hasattr(made, "template_fields") or hasattr(made, "serialize")
            is_made = inspect.isclass(made) and not inspect.isabstract(made) and name not in RECORDS and not is_task
            if is_made or name in COMPLETE:
                yield name, _script if name == "Script" else made


def _arguments() -> Iterator[tuple[str, str]]:
    for name, made in _public():
        if name == "Script":
            yield name, "exactly_once"
            continue
        for parameter in inspect.signature(made).parameters.values():
            if _kind(parameter) is not None:
                yield name, parameter.name


CASES = sorted(set(_arguments()))
MADE = dict(_public())


@pytest.mark.parametrize("name", sorted({name for name, _ in CASES}))
def test_an_argument_that_cannot_be_meant_is_refused_by_name(name: str) -> None:
    complete = COMPLETE.get(name, {})
    MADE[name](**complete)
    passed = []
    for argument in (argument for owner, argument in CASES if owner == name):
        parameter = inspect.signature(airflow_trident.Script if name == "Script" else MADE[name]).parameters[argument]
        kind = _kind(parameter)
        assert kind is not None
        takes_none = "None" in str(parameter.annotation) or kind == "fields"
        for value in (*ODD[kind], *(() if takes_none else (None,))):
            try:
                MADE[name](**{**complete, argument: value})
            except (ConfigurationError, PlanError) as error:
                is_named = argument in str(error) or kind not in ("bool", "int", "float", "conn_id")
                if not is_named or "secret" in str(error):
                    passed.append(f"{argument}={value!r}: {error}")
            except Exception as error:  # noqa: BLE001 - any other error is a raw one
                passed.append(f"{argument}={value!r}: {error!r}")
            else:
                passed.append(f"{argument}={value!r}")
    assert not passed
