"""Asks a topology: a query stream runs in this process over committed data, and its tuples are the answer.

How far the checkpoints of a topology's stateful functions are, for people. Only reads.

The commit sweep drives the checkpoints (`states.keyvalue.checkpoint`): the next committer recovers first. So nobody
has to repair anything by hand after a crash; this module only says what the next committer will do.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from airflow_trident.contracts.state import Marker
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, state_code
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.io.values import UnfitValueError, coercer
from airflow_trident.operations.evaluate import convert, interval_of, microseconds_of
from airflow_trident.plan.compile import RESULT
from airflow_trident.plan.nodes import GivenTuples
from airflow_trident.protocol.checkpoint import Action, CheckpointRecord, Marks, Mode, decide
from airflow_trident.staging.manifest import Slot
from airflow_trident.states.keyvalue.stateful import OpenStateful
from airflow_trident.topology.topology import Topology
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field, Json, Schema, is_nested, names_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The tuples of an answer; each has a value for each field of `schema`."""

    schema: Schema
    rows: tuple[tuple[Any, ...], ...]

    @property
    def fields(self) -> tuple[str, ...]:
        return names_of(self.schema)

    def as_json(self) -> list[dict[str, Json]]:
        """One object per tuple. Times are ISO 8601, intervals microseconds, decimals text, bytes hex."""
        return [dict(zip(self.fields, map(json_value, row), strict=True)) for row in self.rows]


def query(topology: Topology, name: str, *args: Any) -> QueryResult:
    """Asks a query: ``query(topology, "count_of", "storm").rows``.

    It runs in this process, and each state that it reads gives what is committed at that moment. Two states need not
    show the same transaction.

    :param args: one value for each argument of the query.
    :raises PlanError: the topology has no such query.
    :raises ConfigurationError: the arguments do not fit.
    :raises UserCodeError: a function of the query raised.
    """
    plan = topology.queries.compile(name)
    (source,) = plan.sources
    table = rows_to_table(source.spout.schema, [_fitting(topology, name, source.spout.schema, args)])
    job = Job(
        plan=plan.with_spouts({source.name: GivenTuples(source.spout.schema, source.name, table)}),
        slot=Slot(topology=topology.name, incarnation="query", txid=0, attempt=0),
        metadata={source.name: None},
        staging_root="",
    )
    answer = dict(LocalEngine().tables(job))[RESULT]
    (sink,) = plan.staged
    return QueryResult(schema=sink.schema, rows=tuple(table_to_rows(answer)))


def query_texts(topology: Topology, name: str, args: list[Any]) -> QueryResult:
    """:func:`query` with arguments from a command line or a template: a text is parsed as its argument's type, and any
    other value is used as it is.

    :raises ConfigurationError: a text is not a value of its argument's type.
    """
    topology.queries.compile(name)
    schema = topology.queries.names[name]
    _require_count(topology, name, schema, len(args))
    values = (
        parse_text(field, argument) if isinstance(argument, str) else argument
        for field, argument in zip(schema, args, strict=True)
    )
    return query(topology, name, *values)


def _fitting(topology: Topology, name: str, schema: Schema, args: tuple[Any, ...]) -> tuple[Any, ...]:
    _require_count(topology, name, schema, len(args))
    try:
        return tuple(coercer(field.type)(value) for field, value in zip(schema, args, strict=True))
    except UnfitValueError as error:
        raise ConfigurationError(
            f"an argument of query {name!r} is {error}", f"Give ({', '.join(map(str, schema))})."
        ) from error


def _require_count(topology: Topology, name: str, schema: Schema, count: int) -> None:
    if count != len(schema):
        raise ConfigurationError(
            f"query {name!r} of topology {topology.name!r} takes {len(schema)} arguments and got {count}",
            f"Give ({', '.join(map(str, schema))}).",
        )


def parse_text(field: Field, text: str) -> Any:
    """Parses a text as a value of the field's type; ``null`` is null, except for a string.

    :raises ConfigurationError: the text is not such a value.
    """
    if text == "null" and field.type != "string":
        return None
    try:
        return coercer(field.type)(_parser(field.type)(text))
    except (ValueError, InvalidOperation, OverflowError, RecursionError) as error:
        raise ConfigurationError(f"{text!r} is no {field.type}", f"Give another value for {field.name}.") from error


def _parser(type_text: str) -> Callable[[str], Any]:
    if type_text.startswith("decimal"):
        return Decimal
    if is_nested(type_text):
        return json.loads
    parsers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(WHOLE_TYPES, int),
        "double": float,
        "float": float,
        "boolean": _boolean,
        "binary": bytes.fromhex,
        "date": datetime.date.fromisoformat,
        "time": convert("string", "time"),
        "timestamp": _timestamp,
        INTERVAL: lambda text: interval_of(int(text)),
    }
    return parsers.get(type_text, str)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _timestamp(text: str) -> datetime.datetime:
    time = datetime.datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


def json_value(value: Any) -> Json:
    """A value of any field as JSON."""
    if isinstance(value, list | tuple):
        return [json_value(member) for member in value]
    if isinstance(value, dict):
        return {
            name if isinstance(name, str) else str(json_value(name)): json_value(member)
            for name, member in value.items()
        }
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return microseconds_of(value)
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, bool | int | str) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointView:
    """One stateful node. `partitions`: namespace -> its marks. They are read one by one, so during a commit they may
    show different moments."""

    state: str
    record: CheckpointRecord
    marker: Marker | None
    partitions: dict[str, Marks]

    @property
    def recovery(self) -> Action:
        """What the next committer does first; INITSTATE if nothing was left unfinished."""
        step = decide(self.record, Mode.RECOVERING)
        assert step is not None  # every case has an action
        return step.action


def checkpoints(topology: Topology) -> list[CheckpointView]:
    """Every stateful node, in the order of the DAG file.

    :raises StoreUnavailableError: a store does not answer.
    """
    views: list[CheckpointView] = []
    for name, spec in topology.states.items():
        if spec.stateful is None:
            continue
        with state_code(name), spec.factory.make_state(spec) as state:
            if isinstance(state, OpenStateful):
                saved = state.saved()
                views.append(
                    CheckpointView(state=name, record=saved.record, marker=saved.marker, partitions=state.marks())
                )
    return views
