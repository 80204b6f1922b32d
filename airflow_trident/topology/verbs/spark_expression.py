"""Spark SQL inside `each` and `filter`: a query computes it as a field, and the rest of the expression reads that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from airflow_trident.operations.expr.tree import Expression, ExpressionOp, col
from airflow_trident.operations.sql_expression import require_expression
from airflow_trident.topology.stream_base import S, StreamBase
from airflow_trident.topology.verbs.transform import sql
from airflow_trident.types import Field

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
    known: dict[tuple[Any, ...], str] = {}
    for one in _texts(expression):
        if one.options not in known:
            names = (f"{_NAME}{number}" for number in count(len(known) + 1))
            known[one.options] = next(name for name in names if name not in stream.fields)
            stream = with_field(stream, one, Field(known[one.options], one.options[1]))
    return stream, _replaced(expression, known)


def _texts(expression: Expression) -> Iterator[Expression]:
    if is_spark_sql(expression):
        yield expression
    for argument in expression.arguments:
        yield from _texts(argument)


def _replaced(expression: Expression, known: dict[tuple[Any, ...], str]) -> Expression:
    if is_spark_sql(expression):
        return col(known[expression.options])
    return replace(expression, arguments=tuple(_replaced(one, known) for one in expression.arguments))


def _checked(stream: StreamBase, expression: Expression) -> str:
    text = str(expression.options[0])
    require_expression(text, stream.fields)
    return "(" + text.replace("{", "{{").replace("}", "}}") + ")"


def _listed(stream: StreamBase) -> str:
    return ", ".join(f"`{name}`" for name in stream.fields)


def _query(stream: S, text: str, *more: str) -> S:
    return sql(stream, text, [*map(str, stream.schema), *more], {})
