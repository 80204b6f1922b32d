"""Verbs that move no tuple to another partition.

Spark SQL inside `each` and `filter`: a query computes it as a field, and the rest of the expression reads that.

Verbs that move tuples between partitions, or set parallelism and resources.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.names import at_least_one, positive
from airflow_trident.operations.aggregators import groupable
from airflow_trident.operations.expressions import Expression, ExpressionOp, col, dtype
from airflow_trident.operations.interfaces import CustomGrouping, MakesNode, VectorFunction
from airflow_trident.operations.user_functions import OneOutput, returns_one_value
from airflow_trident.plan.graph import Grouping
from airflow_trident.plan.nodes import EachNode, FilterNode, MapNode, PartitionNode, PeekNode, ProjectNode
from airflow_trident.topology.signatures import declared_outputs, require_callable, require_lossless, require_plain
from airflow_trident.topology.stream_base import S, StreamBase, append, named, some, then
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
    require_callable("each", function, "execute", may_yield=True)
    single = not isinstance(function, VectorFunction) and returns_one_value(getattr(function, "execute", function))
    new = declared_outputs(function, "execute", outputs, many=not single)
    called = OneOutput(function, "execute") if single else function
    return append(stream, EachNode, "each", reads=reads, outputs=new, function=called)


def _each_expression(stream: S, expression: Expression, outputs: FieldSpec) -> S:
    if is_spark_sql(expression):
        field = _only(expression, parse_declared(outputs, [str(expression.options[1])]))
        return with_field(stream, expression, field)
    if has_spark_sql(expression):
        wider, expression = computed(stream, expression)
        made = _each_expression(wider, expression, outputs)
        return keeping(made, (*stream.fields, made.fields[-1]))
    named(stream, "each", list(expression.reads))
    expression_type = dtype(expression, stream.schema)
    new = parse_declared(outputs, [expression_type])
    wanted = _only(expression, new).type
    require_lossless(
        new,
        [expression_type],
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
    if is_spark_sql(expression) and expression.options[1] == "boolean":
        return where(stream, expression)
    if has_spark_sql(expression):
        wider, expression = computed(stream, expression)
        return keeping(_filter_expression(wider, expression), stream.fields)
    named(stream, "filter", list(expression.reads))
    expression_type = dtype(expression, stream.schema)
    if expression_type != "boolean" or expression.is_explode:
        raise FieldError(f"filter needs a boolean and {expression} is {expression_type}", "Compare it with something.")
    return then(stream, FilterNode, "filter", stream.schema, reads=expression.reads, expression=expression)


def map(stream: S, verb: str, function: Any, outputs: FieldSpec | None) -> S:
    """`verb`: "map" or "flat_map"."""
    flat = verb == "flat_map"
    if isinstance(function, MakesNode):
        return function.map_of(stream, verb, outputs)
    require_callable(verb, function, "execute", may_yield=flat)
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


_NAME = "spark_sql_"


def is_spark_sql(expression: Expression) -> bool:
    """Is the whole expression one Spark SQL text?"""
    return expression.op is ExpressionOp.SPARK_SQL


def has_spark_sql(expression: Expression) -> bool:
    return any(True for _ in _texts(expression))


def with_field(stream: S, expression: Expression, field: Field) -> S:
    """Append the value of a text as the last field.

    :raises PlanError: the text is no expression over a tuple, or its value may differ in another attempt.
    """
    value = _checked(stream, expression)
    return _query(stream, f"SELECT {_listed(stream)}, {value} AS `{field.name}` FROM {{rows}}", str(field))


def where(stream: S, expression: Expression) -> S:
    """Keep the tuples for which the text is true.

    :raises PlanError: see :func:`with_field`.
    """
    return _query(stream, f"SELECT {_listed(stream)} FROM {{rows}} WHERE {_checked(stream, expression)}")


def computed(stream: S, expression: Expression) -> tuple[S, Expression]:
    """The stream with a field for each text, and the expression that reads these fields.

    :raises PlanError: see :func:`with_field`.
    """
    field_names: dict[tuple[Any, ...], str] = {}
    for sql_expression in _texts(expression):
        if sql_expression.options not in field_names:
            names = (f"{_NAME}{number}" for number in count(len(field_names) + 1))
            field_names[sql_expression.options] = next(name for name in names if name not in stream.fields)
            field = Field(field_names[sql_expression.options], sql_expression.options[1])
            stream = with_field(stream, sql_expression, field)
    return stream, _replaced(expression, field_names)


def _texts(expression: Expression) -> Iterator[Expression]:
    if is_spark_sql(expression):
        yield expression
    for argument in expression.arguments:
        yield from _texts(argument)


def _replaced(expression: Expression, field_names: dict[tuple[Any, ...], str]) -> Expression:
    if is_spark_sql(expression):
        return col(field_names[expression.options])
    return replace(expression, arguments=tuple(_replaced(argument, field_names) for argument in expression.arguments))


def _checked(stream: StreamBase, expression: Expression) -> str:
    from airflow_trident.operations.sql import require_expression

    text = str(expression.options[0])
    require_expression(text, stream.fields)
    return "(" + text.replace("{", "{{").replace("}", "}}") + ")"


def _listed(stream: StreamBase) -> str:
    return ", ".join(f"`{name}`" for name in stream.fields)


def _query(stream: S, text: str, *more: str) -> S:
    from airflow_trident.topology.verbs.transform import sql

    return sql(stream, text, [*(str(field) for field in stream.schema), *more], {})


def repartition(stream: S, verb: str, grouping: Grouping, **arguments: Any) -> S:
    return then(stream, PartitionNode, verb, stream.schema, grouping=grouping, **arguments)


def partition_by(stream: S, fields: FieldSpec) -> S:
    keys = some(stream, "partition_by", fields, "Use global_() to bring all tuples together.")
    groupable("partition_by", select(stream.schema, keys, "partition_by"))
    return repartition(stream, "partition_by", Grouping.FIELDS, keys=keys)


def partition(stream: S, grouping: CustomGrouping) -> S:
    if not isinstance(grouping, CustomGrouping):
        raise PlanError(
            f"partition got {grouping!r}", "Give an object of a subclass of CustomGrouping, or use partition_by()."
        )
    require_plain("partition", grouping, "choose_partitions", may_yield=True)
    return repartition(stream, "partition", Grouping.CUSTOM, custom=grouping)


# ---- parallelism and resources ---------------------------------------------------------------------------------


def parallelism_hint(stream: S, partitions: int) -> S:
    stream.topology.set_node(stream.node.name, parallelism=at_least_one("parallelism_hint", partitions))
    return stream


def set_cpu_load(stream: S, percent: float) -> S:
    stream.topology.set_node(stream.node.name, cpu_percent=positive("set_cpu_load", percent))
    return stream


def set_memory_load(stream: S, megabytes: float) -> S:
    stream.topology.set_node(stream.node.name, memory_mb=positive("set_memory_load", megabytes))
    return stream
