"""Verbs that give whole DataFrames to the user's function or query."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.contracts.spout import SparkRead
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.interfaces import TransformContext
from airflow_trident.operations.sql import SqlQuery, query_names, require_query
from airflow_trident.operations.user_functions import function_name, takes_context
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.nodes import TransformNode
from airflow_trident.topology.stream_base import S, StreamBase, then
from airflow_trident.types import FieldSpec, parse_declared, split_spec

_AS = 'As in transform(to_daily, "day date, cents long").'


def transform(
    stream: S,
    function: Any,
    fields: FieldSpec,
    others: Mapping[str, S] | None,
    *,
    rowwise: bool,
    version: str | int | None,
) -> S:
    more = dict(others or {})
    _require_function(function, tuple(more))
    return _node(stream, "transform", function, fields, more, rowwise=rowwise, version=_version(version))


@dataclass(frozen=True)
class BatchOfSpout:
    """A transform that reads the batch of a stream by the user's function. Its input only carries the position, which
    the context has, too."""

    stream: str
    read: SparkRead

    def __post_init__(self) -> None:
        object.__setattr__(self, "__qualname__", function_name(self.read.function))  # for plans and errors

    @property
    def user_function(self) -> Any:
        return self.read.function

    def __call__(self, positions: Any, context: TransformContext) -> Any:
        metadata = context.metadata.get(self.stream)  # None: the batch has nothing of this stream
        position = None if metadata is None else self.read.position_of(metadata)
        if position is None:
            columns = ", ".join(f"`{field.name}` {field.type}" for field in self.read.fields)
            return positions.sparkSession.createDataFrame([], columns)
        frame = self.read.function(positions.sparkSession, position)
        return frame if self.read.completed is None else self.read.completed(frame, metadata)


def read_by_spark(stream: S, name: str, read: SparkRead) -> S:
    return _node(stream, "read", BatchOfSpout(name, read), list(map(str, read.fields)), {}, rowwise=False, version=None)


def sql(stream: S, text: str, fields: FieldSpec, others: Mapping[str, S]) -> S:
    names = query_names(text)
    require_query(text)
    unused = [name for name in others if name not in names]
    own_names = [name for name in names if name not in others]
    if unused:
        raise PlanError(f"sql does not use {', '.join(unused)}", "Name it in braces in the text, or leave it out.")
    if len(own_names) != 1:
        raise PlanError(
            f"sql names {', '.join(f'{{{name}}}' for name in own_names) or 'no stream'}, and one of the names must be "
            "this stream's",
            'Give the others as keywords: orders.sql("SELECT ... FROM {orders} JOIN {users} ...", "...", users=users).',
        )
    query = SqlQuery(text, (own_names[0], *others))
    return _node(stream, "sql", query, fields, dict(others), rowwise=False, version=None)


def _node(
    stream: S,
    verb: str,
    function: Any,
    fields: FieldSpec,
    others: Mapping[str, S],
    *,
    rowwise: bool,
    version: str | None,
) -> S:
    if not split_spec(fields):
        raise FieldError(f"{verb} has no fields: what comes out must be declared", f"{_AS}")
    schema = parse_declared(fields)
    for name, candidate in {"the stream": stream, **others}.items():
        _require_stream(stream, verb, name, candidate)
    if rowwise and others:
        raise PlanError(
            f"{verb} of {len(others) + 1} streams is said to be row by row",
            "Where rows of several streams meet, what comes out depends on which are there: leave out rowwise=True.",
        )
    return then(
        stream,
        TransformNode,
        verb,
        schema,
        others=others.values(),
        function=function,
        names=tuple(others),
        rowwise=rowwise,
        version=version,
    )


def _require_stream(stream: StreamBase, verb: str, name: str, candidate: object) -> None:
    if not name.replace("the stream", "s").isidentifier():
        raise PlanError(f"{verb} got a stream under the name {name!r}", "Name it as an argument of a function.")
    if not isinstance(candidate, StreamBase):
        raise PlanError(
            f"{verb} got {candidate!r} for {name!r}",
            "Give streams of this topology; a table that does not change is read inside of the function.",
        )
    if candidate.topology is not stream.topology:
        raise PlanError(
            f"{verb}: {name!r} belongs to topology {candidate.topology.name!r}, not to {stream.topology.name!r}",
            "A batch has one topology: make all streams with the same one.",
        )
    owner = stream.topology.queries.owner(candidate.node)
    if owner is not None:
        raise PlanError(
            f"{verb} of query {owner!r} of topology {stream.topology.name!r}: queries run without Spark",
            "Use each(), filter(), map() or aggregate() there.",
        )
    if in_commit_phase(candidate.node):
        raise PlanError(
            f"{verb} behind {candidate.node.name}, in the commit phase, which runs without Spark",
            "Transform the stream before it comes to a state, or let another topology read what this one stores.",
        )


def _require_function(function: Any, others: tuple[str, ...]) -> None:
    """:raises PlanError: it cannot be called with DataFrames, or would not return one."""
    if isinstance(function, type) or not callable(function):
        shown = function.__name__ if isinstance(function, type) else repr(function)
        raise PlanError(f"transform got {shown}", "Give a function of a DataFrame that returns one. " + _AS)
    called = function if inspect.isroutine(function) else type(function).__call__
    if inspect.iscoroutinefunction(called) or inspect.isgeneratorfunction(called):
        raise PlanError(f"{function_name(function)} awaits or yields", "Let it return one DataFrame.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin without a known signature
    keywords = dict.fromkeys((*others, *(["context"] if takes_context(function) else [])))
    try:
        signature.bind(None, **keywords)
    except TypeError as error:
        shown = ", ".join(["a DataFrame", *(f"{name}=..." for name in others)])
        raise PlanError(
            f"{function_name(function)}{signature} cannot be called with ({shown}): {error}",
            "The stream itself is its first argument; the streams in others= are named arguments.",
        ) from error


def _version(version: str | int | None) -> str | None:
    if version is None:
        return None
    text = str(version).strip()
    if isinstance(version, bool) or not isinstance(version, str | int) or not text or "\n" in text:
        raise PlanError(f"transform got version={version!r}", 'Give a short text or a number, as in version="2".')
    return text
