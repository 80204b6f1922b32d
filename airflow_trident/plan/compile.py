"""Compilation: rewrites the logical plan, then fuses it into stages. Pure.

What makes each staged batch, as a digest that is kept beside it.

A staged batch is found by its name. But the names of streams that are handed on are numbers of verbs (`~each-2`), and
the name of a state stays when its definition is changed: after a change of the DAG file, a batch that was staged before
may have the name of another one. Then it must not be taken for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_trident.errors import PlanError
from airflow_trident.plan.checks import require_answers
from airflow_trident.plan.coalescing import coalesces
from airflow_trident.plan.commit.levels import split_phases
from airflow_trident.plan.graph import Node, PlanSettings, Sinks, ordered
from airflow_trident.plan.nodes import (
    CarriedNode,
    CheckNode,
    EachNode,
    FilterNode,
    PartitionNode,
    PeekNode,
    PersistNode,
    ProjectNode,
    SourceNode,
    TransformNode,
    UnionNode,
    recorded_transforms,
    require_partitions_known,
)
from airflow_trident.plan.rewrites.pushdown import rewrite
from airflow_trident.plan.show.trees import logical_text
from airflow_trident.plan.stages import Plan
from airflow_trident.types import names_of
from airflow_trident.version import VERSION

_DIGITS = 16


def made_by(plan: Plan) -> dict[str, str]:
    """Name of each staged batch -> package version and digest.

    Rows of a state mean what the state's definition says, so the digest is that of the definition but for its place:
    what leads to the state may change, or the state may move, and the batch stays what it was. Tuples that are handed
    on mean what the stream does that they are of. As everywhere in a plan, a function is known by its name.
    """
    handed_on = [sink for sink in plan.staged if isinstance(sink, CarriedNode)]
    trees: dict[int, _Tree] = {}
    for node in ordered(handed_on):
        trees[id(node)] = _tree(node, [trees[id(input_node)] for input_node in node.inputs])
    digests = {sink.name: trees[id(sink)].digest for sink in handed_on}
    staged = {sink.name for sink in plan.staged}
    for sink in plan.sinks:
        if sink.name in staged:
            digests[sink.name] = _digest_of_texts(sink.state.applied, *sink.state.inputs, *recorded_transforms(sink))
    digests[RULES] = _digest_of_texts(*sorted(f"{rule.name} {rule.uid}" for rule in plan.rules))
    return {name: f"{VERSION} {digest}" for name, digest in digests.items()}


def made_otherwise(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The batches that something else makes now. Other versions of the package may say the same thing in other words:
    between them nothing is known, and nothing is said."""
    return sorted(name for name in before.keys() & now.keys() if _differ(before[name], now[name]))


def _differ(stamp: str, other: str) -> bool:
    return stamp != other and stamp.partition(" ")[0] == other.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class _Tree:
    """What leads to a stream. `filters`: by expressions, which the plan moves to and fro between the other nodes, as it
    suits the branches beside them."""

    made: str
    filters: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        return _digest_of_texts(self.made, *sorted(self.filters))


def _tree(node: Node, above: Sequence[_Tree]) -> _Tree:
    if isinstance(node, CarriedNode | CheckNode) or (isinstance(node, ProjectNode) and node.implied):
        return above[0]
    if isinstance(node, FilterNode) and node.expression is not None:
        return replace(above[0], filters=above[0].filters | {str(node.expression)})
    if isinstance(node, EachNode | PartitionNode | ProjectNode):
        return replace(above[0], made=_digest_of_texts(_text(node), above[0].made))
    return _Tree(_digest_of_texts(_text(node), *(tree.digest for tree in above)))


def _text(node: Node) -> str:
    """What it does, without the names of nodes: these have numbers, which move when a verb is added before."""
    if isinstance(node, SourceNode):  # its place may change, as everywhere: which data a batch is, is its metadata
        return f"{node.name} {type(node.spout).__name__} {node.spout.adapts}"
    if isinstance(node, UnionNode):
        return f"{node.takes} {node.tag}"
    description = f"{node.function_text} {node.names}" if isinstance(node, TransformNode) else node.what
    passes = node.narrows or isinstance(node, FilterNode | PeekNode)  # which fields pass depends on other streams, too
    fields = () if passes else names_of(getattr(node, "outputs", node.schema))
    return f"{type(node).__name__} {description} {fields}"


def _digest_of_texts(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:_DIGITS]


RULES = "~rules"
"""In :attr:`Plan.made_by`: what the rules measure. A batch without their numbers is emitted again, but a rule with
another limit is judged by the numbers that are there."""
RESULT = "~result"
"""The name of the result that a query hands on."""


def compile_plan(
    topology: str,
    sources: tuple[SourceNode, ...],
    sinks: tuple[PersistNode, ...],
    settings: PlanSettings | None = None,
    checks: tuple[CheckNode, ...] = (),
) -> Plan:
    """The plan that engines run.

    :param checks: all that streams have.
    :raises PlanError: there is no state, a stream or a check reaches none, a node that works on whole partitions gets
        none, or what the commit phase asks for would not be the same in every try.
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
    for node in checks:
        if id(node) not in reached:
            names = ", ".join(rule.name for rule in node.rules)
            raise PlanError(
                f"{node.name} of topology {topology!r} reaches no state: the rules {names} would never be measured",
                "Use the stream that expect() returns.",
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


def compile_query(topology: str, source: SourceNode, answer: Node) -> Plan:
    """The plan of a query stream: from its arguments to its result, which is handed to the caller."""
    answers = (CarriedNode(name=RESULT, schema=answer.schema, inputs=(answer,)),)
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
