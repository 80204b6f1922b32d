"""A rewrite: moves filters by column expressions as early as possible, at best to the source.

Rewrites of partition nodes: as few exchanges of Spark as the meaning needs.

A rewrite: leaves out fields that nobody uses, from the source on.

Runs all rewrites, in their order, until they change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from airflow_trident.operations.expressions import Expression, ExpressionOp, Typed, resolve
from airflow_trident.plan.graph import Grouping, Node, Sinks, ordered, readers_of, rebuilt, same
from airflow_trident.plan.nodes import EachNode, FilterNode, PartitionNode, ProjectNode, SourceNode, UnionNode
from airflow_trident.plan.rewrites.lowering import lower
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
        if any(str(expression) == str(pushed) for pushed in source.filters):
            return node
        return replace(node, inputs=(replace(source, filters=(*source.filters, expression)),))

    @staticmethod
    def _into(node: FilterNode, union: UnionNode, expression: Expression) -> Node:
        inputs = []
        for place, (input_node, takes) in enumerate(zip(union.inputs, union.takes, strict=True)):
            names = {field.name: name for field, name in zip(union.schema, takes, strict=True) if name is not None}
            if not set(expression.reads) <= set(names):
                return node
            renamed = _renamed(expression, names)
            inputs.append(
                FilterNode(
                    name=f"{node.name}.{place}",
                    schema=input_node.schema,
                    inputs=(input_node,),
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
    return replace(expression, arguments=tuple(_renamed(argument, names) for argument in expression.arguments))


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


def colocate(sinks: Sinks) -> Sinks:
    """If a node that works on whole partitions follows a union before anything moves, it needs partition i of every
    input in one place: this adds a partition node. Otherwise partitions may simply stand side by side."""
    whole: set[int] = set()
    for node in reversed(ordered(sinks)):
        if node.whole_partitions or id(node) in whole:
            whole.update(id(input_node) for input_node in node.inputs if not isinstance(node, PartitionNode))

    def change(old: Node, node: Node) -> Node:
        if not isinstance(node, UnionNode) or id(old) not in whole:
            return node
        return PartitionNode(
            name=f"{node.name}.partition", schema=node.schema, inputs=(node,), grouping=Grouping.COLOCATED
        )

    return rebuilt(sinks, change)


def collapse(sinks: Sinks) -> Sinks:
    """Of two repartitions in a row only the second counts. If all inputs of a union are partitioned alike, the union is
    partitioned instead.

    A broadcast or a custom grouping repeats tuples, so it stays.
    """
    return rebuilt(sinks, _Collapsing(sinks).change)


class _Collapsing:
    def __init__(self, sinks: Sinks) -> None:
        self._readers = readers_of(sinks)

    def change(self, old: Node, node: Node) -> Node:
        if not isinstance(node, PartitionNode):
            return node
        before = node.input
        if self._readers[id(old.inputs[0])] > 1:  # other readers need it in any case
            return node
        if isinstance(before, PartitionNode) and not before.grouping.repeats:
            return replace(node, inputs=before.inputs)
        return self._over_union(node, before) if isinstance(before, UnionNode) else node

    def _over_union(self, node: PartitionNode, union: UnionNode) -> Node:
        """A repartition undoes what the inputs of a union did before, or they all did the same, which can be done
        once."""
        parts = [part for part in union.inputs if isinstance(part, PartitionNode) and not part.grouping.repeats]
        if node.grouping is Grouping.COLOCATED:
            how = _alike(union, parts)
            if how is None:
                return node
            node = replace(node, grouping=how[0], keys=how[1])
        if not parts:
            return node
        inputs = tuple(input_node.input if input_node in parts else input_node for input_node in union.inputs)
        return replace(node, inputs=(replace(union, inputs=inputs),))


def _alike(union: UnionNode, parts: list[PartitionNode]) -> tuple[Grouping, tuple[str, ...]] | None:
    """How all inputs are partitioned, in the names of the union; None if not all are, or not all alike."""
    if len(parts) != len(union.inputs):
        return None
    kinds = {part.grouping for part in parts}
    if all(kind.gathers for kind in kinds):
        return Grouping.GLOBAL, ()
    if kinds != {Grouping.FIELDS}:
        return None
    places = {
        tuple(takes.index(key) if key in takes else -1 for key in part.keys)
        for part, takes in zip(parts, union.takes, strict=True)
    }
    (first, *others) = places
    if others or -1 in first:
        return None
    return Grouping.FIELDS, tuple(union.fields[place] for place in first)


def prune(sinks: Sinks) -> Sinks:
    """Sources, projections and unions give only used fields; before a repartition a projection drops the rest.
    Projections that drop nothing are removed."""
    used = _used(sinks)
    return rebuilt(sinks, lambda old, node: node.narrowed(used[id(old)]))


def _used(sinks: Sinks) -> dict[int, frozenset[str]]:
    """The fields that the readers of each node need, by the node's `id`."""
    used: dict[int, frozenset[str]] = {}
    for node in reversed(ordered(sinks)):
        needed = used.get(id(node), frozenset())
        if node.narrows:
            needed = needed or frozenset(node.fields[:1])
        used[id(node)] = needed
        for place, input_node in enumerate(node.inputs):
            used[id(input_node)] = used.get(id(input_node), frozenset()) | node.needs(input_node.schema, needed, place)
    return used


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A pure function from sinks to sinks that keeps what reaches every sink. If it changes nothing it returns the same
    objects, so the loop ends."""

    name: str
    apply: Callable[[Sinks], Sinks]
    why_here: str


REWRITES = (
    Rewrite("lower", lower, "first: the others know only the kinds that it makes"),
    Rewrite("colocate", colocate, "before anything is taken out that shows what works on whole partitions"),
    Rewrite("collapse", collapse, "behind colocate, whose partition nodes it takes away where it can"),
    Rewrite("push_filters", push_filters, "behind collapse: fewer partition nodes to pass"),
    Rewrite("prune", prune, "last: it adds projections, which would be in the way of repartitions in a row"),
)


def rewrite(sinks: Sinks, rewrites: Sequence[Rewrite] = REWRITES) -> Sinks:
    """Runs each rewrite until it changes nothing, and all of them again until none does."""
    while True:
        before = sinks
        for rule in rewrites:
            sinks = _until_still(rule, sinks)
        if same(sinks, before):
            return sinks


def _until_still(rule: Rewrite, sinks: Sinks) -> Sinks:
    while True:
        before, sinks = sinks, rule.apply(sinks)
        if same(sinks, before):
            return sinks
