"""Verbs that move no tuple to another partition."""

from __future__ import annotations

from typing import Any

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.api import MakesNode
from airflow_trident.operations.calls.infer import OneOutput, returns_one_value
from airflow_trident.operations.expr.dtypes import dtype
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.operations.vectors import VectorFunction
from airflow_trident.plan.nodes import EachNode, FilterNode, MapNode, PeekNode, ProjectNode
from airflow_trident.topology.declared_types import require_lossless
from airflow_trident.topology.signatures import declared_outputs, require_callable
from airflow_trident.topology.stream_base import S, append, named, some, then
from airflow_trident.topology.verbs import spark_expression
from airflow_trident.types import Field, FieldSpec, Schema, parse_declared, require_distinct, select


def each(stream: S, inputs: FieldSpec | Expression, function: Any, outputs: FieldSpec | None = None) -> S:
    if isinstance(inputs, Expression):
        return _each_expression(stream, inputs, function)
    if outputs is None:
        raise PlanError(
            "each() needs the fields that the function appends",
            'As in each("line", Split(), "word string").',
        )
    reads = named(stream, "each", inputs)
    if isinstance(function, Expression):
        return _each_expression(stream, function, outputs)
    if isinstance(function, MakesNode):
        return function.each_of(stream, reads, outputs)
    require_callable("each", function, "execute")
    single = not isinstance(function, VectorFunction) and returns_one_value(getattr(function, "execute", function))
    new = declared_outputs(function, "execute", outputs, many=not single)
    called = OneOutput(function, "execute") if single else function
    return append(stream, EachNode, "each", reads=reads, outputs=new, function=called)


def _each_expression(stream: S, expression: Expression, outputs: FieldSpec) -> S:
    if spark_expression.is_spark_sql(expression):
        field = _only(expression, parse_declared(outputs, [str(expression.options[1])]))
        return spark_expression.with_field(stream, expression, field)
    if spark_expression.has_spark_sql(expression):
        wider, expression = spark_expression.computed(stream, expression)
        made = _each_expression(wider, expression, outputs)
        return keeping(made, (*stream.fields, made.fields[-1]))
    named(stream, "each", list(expression.reads))
    known = dtype(expression, stream.schema)
    new = parse_declared(outputs, [known])
    wanted = _only(expression, new).type
    require_lossless(
        new,
        [known],
        f"the expression {expression}",
        f'Leave the type away, or convert it: ({expression}).cast("{wanted}").',
    )
    return append(stream, EachNode, "each", reads=expression.reads, outputs=new, expression=expression)


def _only(expression: Expression, fields: Schema) -> Field:
    if len(fields) != 1:
        raise FieldError(f"the expression {expression} gives one field and {len(fields)} are named", "Name one.")
    return fields[0]


def filter(stream: S, inputs: Any, keep: Any = None) -> S:
    if isinstance(inputs, Expression):
        return _filter_expression(stream, inputs)
    if keep is None:
        inputs, keep = list(stream.fields), inputs
    if isinstance(keep, Expression):
        return _filter_expression(stream, keep)
    require_callable("filter", keep, "is_keep")
    reads = named(stream, "filter", inputs)
    return then(stream, FilterNode, "filter", stream.schema, reads=reads, function=keep)


def _filter_expression(stream: S, expression: Expression) -> S:
    if spark_expression.is_spark_sql(expression) and expression.options[1] == "boolean":
        return spark_expression.where(stream, expression)
    if spark_expression.has_spark_sql(expression):
        wider, expression = spark_expression.computed(stream, expression)
        return keeping(_filter_expression(wider, expression), stream.fields)
    named(stream, "filter", list(expression.reads))
    given = dtype(expression, stream.schema)
    if given != "boolean" or expression.is_explode:
        raise FieldError(f"filter needs a boolean and {expression} is {given}", "Compare it with something.")
    return then(stream, FilterNode, "filter", stream.schema, reads=expression.reads, expression=expression)


def map(stream: S, verb: str, function: Any, outputs: FieldSpec | None) -> S:
    """`verb`: "map" or "flat_map"."""
    flat = verb == "flat_map"
    if isinstance(function, MakesNode):
        return function.map_of(stream, verb, outputs)
    require_callable(verb, function, "execute")
    if flat and isinstance(function, VectorFunction):
        raise PlanError(
            f"flat_map got the vectorised {type(function).__name__}, which gives one output per tuple",
            "Use map(), or let it give an array and go on with each(explode(...)).",
        )
    new = stream.schema if outputs is None else declared_outputs(function, "execute", outputs, many=flat)
    return then(stream, MapNode, verb, new, function=function, flat=flat)


def project(stream: S, keep: FieldSpec) -> S:
    names = some(stream, "project", keep, "Name one at least: a tuple without fields cannot be moved.")
    require_distinct(names)
    return _projected(stream, names, implied=False)


def _projected(stream: S, names: tuple[str, ...], *, implied: bool) -> S:
    return then(stream, ProjectNode, "project", select(stream.schema, names, "project"), implied=implied)


def keeping(stream: S, names: tuple[str, ...]) -> S:
    """As `project`; the same stream if it has just these fields."""
    return stream if names == stream.fields else _projected(stream, names, implied=True)


def peek(stream: S, inputs: Any, consumer: Any = None) -> S:
    if consumer is None:
        inputs, consumer = list(stream.fields), inputs
    require_callable("peek", consumer, "accept")
    return then(stream, PeekNode, "peek", stream.schema, reads=named(stream, "peek", inputs), function=consumer)


def assembled(stream: S, assembly: Any) -> S:
    """:raises PlanError: the assembly cannot be called, or returns no stream."""
    apply = getattr(assembly, "apply", assembly)
    if isinstance(assembly, type) or not callable(apply):
        raise PlanError(f"apply_assembly got {assembly!r}", "Give an object with apply(stream), or a function.")
    made = apply(stream)
    if not isinstance(made, type(stream)):
        raise PlanError(f"the assembly {assembly!r} gave {made!r}", "It must return the stream that it made.")
    return made
