"""Finds the row groups of a Parquet file that may have a row that a filter keeps, by the smallest and largest values in
the file's metadata. In doubt a group is read: the rows are filtered afterwards in any case."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from airflow_trident.operations.expressions import Expression, ExpressionOp
from airflow_trident.types import WHOLE_TYPES, Schema

_TYPES: dict[str, type] = {**dict.fromkeys(WHOLE_TYPES, int), "date": datetime.date}
"""Types with usable statistics. Not reals (statistics leave out NaN), not text (statistics may cut it)."""
_TURNED = {
    ExpressionOp.LESS: ExpressionOp.GREATER,
    ExpressionOp.LESS_EQUAL: ExpressionOp.GREATER_EQUAL,
    ExpressionOp.GREATER: ExpressionOp.LESS,
    ExpressionOp.GREATER_EQUAL: ExpressionOp.LESS_EQUAL,
}


def groups_that_may_hold(metadata: Any, schema: Schema, filters: Sequence[Expression]) -> list[int]:
    """The numbers of these row groups.

    :param metadata: a `pyarrow.parquet.FileMetaData`.
    """
    wanted = [part for expression in filters for part in _parts(expression, schema)]
    every = range(metadata.num_row_groups)
    if not wanted:
        return list(every)
    return [number for number in every if all(_may_hold(metadata.row_group(number), *part) for part in wanted)]


def _parts(expression: Expression, schema: Schema) -> list[tuple[str, ExpressionOp, Any]]:
    """Comparisons of a field with a literal which must all be true: (field, how, literal)."""
    if expression.op is ExpressionOp.AND:
        return [part for argument in expression.arguments for part in _parts(argument, schema)]
    if expression.op not in (*_TURNED, ExpressionOp.EQUAL):
        return []
    left, right = expression.arguments
    how = ExpressionOp(expression.op)
    if left.op is ExpressionOp.LITERAL:
        left, right, how = right, left, ExpressionOp(_TURNED.get(how, how))
    if left.op is not ExpressionOp.COLUMN or right.op is not ExpressionOp.LITERAL:
        return []
    types = {field.name: field.type for field in schema}
    value, kind = right.options[0], _TYPES.get(types.get(left.options[0], ""))
    return [(left.options[0], how, value)] if kind is not None and type(value) is kind else []


def _may_hold(group: Any, name: str, how: ExpressionOp, value: Any) -> bool:
    for place in range(group.num_columns):
        column = group.column(place)
        if column.path_in_schema != name:
            continue
        statistics = column.statistics
        if statistics is None or not statistics.has_min_max or type(statistics.min) is not type(value):
            return True
        low, high = statistics.min, statistics.max
        return bool(
            {
                ExpressionOp.EQUAL: low <= value <= high,
                ExpressionOp.LESS: low < value,
                ExpressionOp.LESS_EQUAL: low <= value,
                ExpressionOp.GREATER: high > value,
                ExpressionOp.GREATER_EQUAL: high >= value,
            }[how]
        )
    return True
