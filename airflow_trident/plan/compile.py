"""Compilation: rewrites the logical plan, then fuses it into stages. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from airflow_trident.errors import PlanError
from airflow_trident.plan.coalescing import coalesces
from airflow_trident.plan.commit.levels import split_phases
from airflow_trident.plan.commit.nodes import CarriedNode
from airflow_trident.plan.commit.static_queries import require_answers
from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.made_by import made_by
from airflow_trident.plan.nodes import PersistNode, SourceNode
from airflow_trident.plan.resources import PlanSettings
from airflow_trident.plan.rewrites.fixed_point import rewrite
from airflow_trident.plan.show.trees import logical_text
from airflow_trident.plan.stages import Plan
from airflow_trident.plan.transform_node import require_partitions_known

RESULT = "~result"
"""The name of the result that a query hands on."""


def compile_plan(
    topology: str,
    sources: tuple[SourceNode, ...],
    sinks: tuple[PersistNode, ...],
    settings: PlanSettings | None = None,
) -> Plan:
    """The plan that engines run.

    :raises PlanError: there is no state, a stream reaches none, a node that works on whole partitions gets none, or
        what the commit phase asks for would not be the same in every try.
    """
    if not sinks:
        raise PlanError(
            f"topology {topology!r} has no state: nothing would ever be committed",
            "End a stream with persistent_aggregate() or partition_persist().",
        )
    reached = {id(node) for node in ordered(sinks)}
    for source in sources:
        if id(source) not in reached:
            raise PlanError(
                f"stream {source.name!r} of topology {topology!r} reaches no state: its data would be read and lost",
                "End it with persistent_aggregate() or partition_persist(), or remove it.",
            )
    require_partitions_known(sinks)
    require_answers(sinks)
    rewritten = rewrite(sinks)
    _require_own_names(topology, sinks)
    _require_own_names(topology, rewritten)
    processing, *commit = split_phases(rewritten, settings or PlanSettings())
    plan = Plan(
        topology=topology,
        sources=sources,
        sinks=sinks,
        rewritten=rewritten,
        stages=processing.stages,
        commit=tuple(commit),
        digest=_digest(topology, sources, sinks),
    )
    return replace(plan, coalesces=coalesces(plan), made_by=made_by(plan))


def _require_own_names(topology: str, sinks: Sinks) -> None:
    """Rows are handed from phase to phase under the names of nodes, and settings are found by these.

    :raises PlanError: two nodes have the same name.
    """
    owners: dict[str, Node] = {}
    for node in ordered(sinks):
        if not isinstance(node, PersistNode) and owners.setdefault(node.name, node) is not node:
            raise PlanError(
                f"topology {topology!r} has two nodes {node.name!r}: a name that was given to a stream or bolt is made "
                "for another one, too",
                "Give the stream or bolt another name.",
            )


def compile_query(topology: str, source: SourceNode, result: Node) -> Plan:
    """The plan of a query stream: from its arguments to its result, which is handed to the caller."""
    answers = (CarriedNode(name=RESULT, schema=result.schema, inputs=(result,)),)
    rewritten = rewrite(answers)
    _require_own_names(topology, answers)
    _require_own_names(topology, rewritten)
    (level,) = split_phases(rewritten, PlanSettings())
    return Plan(
        topology=topology,
        sources=(source,),
        sinks=(),
        rewritten=rewritten,
        stages=level.stages,
        digest=_digest(topology, (source,), answers),
        answers=answers,
    )


def _digest(topology: str, sources: tuple[SourceNode, ...], sinks: Sinks) -> str:
    return hashlib.sha256(logical_text(topology, sources, sinks).encode()).hexdigest()
