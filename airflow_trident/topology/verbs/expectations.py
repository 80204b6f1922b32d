"""The verb that gates a stream by rules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import cast

from airflow_trident.errors import PlanError
from airflow_trident.operations.expressions import Expression, col
from airflow_trident.operations.interfaces import VectorFilter, VectorFunction
from airflow_trident.operations.rules import MOST_RULES, BatchCheck, Expectation, Rule, require_fits, with_condition
from airflow_trident.operations.user_functions import OneOutput
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.nodes import CheckNode, EachNode
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.topology.signatures import require_callable
from airflow_trident.topology.stream_base import S, StreamBase, append, named, then
from airflow_trident.topology.verbs import rows
from airflow_trident.types import Field

_NAME_OF_CONDITION = "condition_"


def expect(stream: S, rules: Sequence[Expectation | BatchCheck]) -> S:
    if not rules or not all(isinstance(rule, Expectation | BatchCheck) for rule in rules):
        raise PlanError(
            f"expect in topology {stream.topology.name!r} got {', '.join(repr(rule) for rule in rules) or 'no rule'}",
            "Give rules: functions.expect(name, condition), functions.check(name, what, ...).",
        )
    _require_gate(stream)
    wider, bound = stream, list[Rule]()
    for rule in rules:
        wider, with_expression = _with_expression(wider, rule)
        require_fits(with_expression, wider.schema)
        bound.append(with_expression)
    _require_own_names(stream.topology, bound)
    reads = tuple(dict.fromkeys(name for rule in bound for name in rule.reads))
    checked = then(wider, CheckNode, "expect", wider.schema, reads=reads, rules=tuple(bound))
    stream.topology.add_check(cast("CheckNode", checked.node))
    return rows.keeping(checked, stream.fields)


def _require_gate(stream: StreamBase) -> None:
    """:raises PlanError: a batch is not yet, or no more, known where the stream is."""
    owner = stream.topology.queries.owner(stream.node)
    if owner is not None:
        raise PlanError(
            f"expect in query {owner!r} of topology {stream.topology.name!r}: a query publishes nothing",
            "Put the rules where the batch comes to the state.",
        )
    if in_commit_phase(stream.node):
        raise PlanError(
            f"expect behind {stream.node.name}, in the commit phase: the batch is published already",
            "Put the rules before the state.",
        )


def _with_expression(stream: S, rule: Rule) -> tuple[S, Rule]:
    """The stream with fields for what is no column expression, and the rule that reads them."""
    expression = (
        rule.condition if isinstance(rule, Expectation) else rule.only if isinstance(rule, BatchCheck) else None
    )
    if expression is None:
        return stream, rule
    if isinstance(expression, Expression):
        if not rows.has_spark_sql(expression):
            return stream, rule
        wider, replaced = rows.computed(stream, expression)
        return wider, with_condition(rule, replaced)
    assert isinstance(rule, Expectation)
    assert rule.inputs is not None
    method = "is_keep" if callable(getattr(expression, "is_keep", None)) else "execute"
    if isinstance(expression, VectorFilter | VectorFunction):
        raise PlanError(
            f"expect {rule.name!r} got the vectorised {type(expression).__name__}",
            "Give an expression, or a function of single values.",
        )
    require_callable("expect", expression, method)
    reads = named(stream, "expect", rule.inputs)
    field = Field(_unused(stream, _NAME_OF_CONDITION), "boolean")
    function = OneOutput(expression, method)
    wider = append(stream, EachNode, "each", reads=reads, outputs=(field,), function=function)
    return wider, with_condition(rule, col(field.name), reads)


def _unused(stream: StreamBase, prefix: str) -> str:
    return next(name for name in (f"{prefix}{number}" for number in count(1)) if name not in stream.fields)


def _require_own_names(topology: NodeGraph, rules: Sequence[Rule]) -> None:
    """:raises PlanError: a rule of that name is there, or there are too many."""
    names = [rule.name for node in topology.checks for rule in node.rules]
    for rule in rules:
        if rule.name in names:
            raise PlanError(f"topology {topology.name!r} has two rules named {rule.name!r}", "Give each its own name.")
        names.append(rule.name)
    if len(names) > MOST_RULES:
        raise PlanError(
            f"topology {topology.name!r} has {len(names)} rules, and at most {MOST_RULES} fit into its records",
            "Join conditions of rows by &, or leave some out.",
        )
