"""A rewrite: moves filters by column expressions as early as possible, at best to the source."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from airflow_trident.operations.expr.dtypes import Typed, resolve
from airflow_trident.operations.expr.tree import Expression, ExpressionOp
from airflow_trident.plan.graph import Node, Sinks, readers_of, rebuilt
from airflow_trident.plan.nodes import EachNode, FilterNode, PartitionNode, ProjectNode, SourceNode, UnionNode
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, names_of, select


def push_filters(sinks: Sinks) -> Sinks:
    """Moves filters before projections, repartitions, merges and nodes that append fields which the filter does not
    read.

    The result must not depend on the move. So a filter is moved before a function that may drop rows only if the filter
    cannot fail: otherwise it would get rows that it never got before. A source is told of a filter after it; the
    filter stays.
    """
    return rebuilt(sinks, _Pushing(sinks).change)


class _Pushing:
    def __init__(self, sinks: Sinks) -> None:
        self._readers = readers_of(sinks)

    def change(self, old: Node, node: Node) -> Node:
        if not isinstance(node, FilterNode) or node.expression is None or self._readers[id(old.inputs[0])] > 1:
            return node
        before = node.input
        if isinstance(before, SourceNode):
            return self._to_source(node, before, node.expression)
        if isinstance(before, UnionNode):
            return self._into(node, before, node.expression)
        if isinstance(before, ProjectNode | PartitionNode) or (
            isinstance(before, EachNode) and _may_pass(node.expression, before)
        ):
            return replace(before, inputs=(replace(node, schema=before.input.schema, inputs=before.inputs),))
        return node

    @staticmethod
    def _to_source(node: FilterNode, source: SourceNode, expression: Expression) -> Node:
        if any(str(expression) == str(one) for one in source.filters):
            return node
        return replace(node, inputs=(replace(source, filters=(*source.filters, expression)),))

    @staticmethod
    def _into(node: FilterNode, union: UnionNode, expression: Expression) -> Node:
        inputs = []
        for place, (one, takes) in enumerate(zip(union.inputs, union.takes, strict=True)):
            names = {field.name: name for field, name in zip(union.schema, takes, strict=True) if name is not None}
            if not set(expression.reads) <= set(names):
                return node
            renamed = _renamed(expression, names)
            inputs.append(
                FilterNode(
                    name=f"{node.name}.{place}",
                    schema=one.schema,
                    inputs=(one,),
                    reads=renamed.reads,
                    expression=renamed,
                )
            )
        return replace(union, inputs=tuple(inputs))


def _may_pass(expression: Expression, each: EachNode) -> bool:
    if set(expression.reads) & set(names_of(each.outputs)):
        return False
    keeps_rows = each.expression is not None and not each.expression.is_explode
    return keeps_rows or _is_total(resolve(expression, select(each.schema, expression.reads, each.name)))


def _renamed(expression: Expression, names: dict[str, str]) -> Expression:
    if expression.op is ExpressionOp.COLUMN:
        return replace(expression, options=(names[expression.options[0]],))
    return replace(expression, arguments=tuple(_renamed(one, names) for one in expression.arguments))


_OVERFLOWS = frozenset(
    {ExpressionOp.ADD, ExpressionOp.SUBTRACT, ExpressionOp.MULTIPLY, ExpressionOp.NEGATE, ExpressionOp.ABS}
)
_NUMBERS = (*WHOLE_TYPES, "double")
_WIDENS = frozenset({*combinations(_NUMBERS, 2), ("float", "double")})


def _is_total(typed: Typed) -> bool:
    """Does it have a value for every row?"""
    if typed.op in _OVERFLOWS and typed.type not in REAL_TYPES:
        return False
    if typed.op == ExpressionOp.CAST and (typed.arguments[0].type, typed.type) not in _WIDENS:
        return False
    return all(map(_is_total, typed.arguments))
