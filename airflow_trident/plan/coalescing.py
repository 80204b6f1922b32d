"""May one pass process several transactions, and one step commit them? Pure: the plan answers, from its spouts and
states.

A group never changes what a batch is, nor its result. So everything whose result would depend on its neighbours in a
pass goes one by one: what is chosen anew for each attempt, what reads a state while it changes, and everything after a
repartition, where a function would see partitions that are not those of its transaction. Aggregation by built-ins is
the exception there: the transaction is one more field to group by. A transform is planned for each transaction apart,
and so is everything before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import (
    CheckNode,
    EachNode,
    FilterNode,
    FinalAggregateNode,
    PartialAggregateNode,
    PersistNode,
    ProjectNode,
    StateQueryNode,
)
from airflow_trident.plan.stages import Coalesces, Coalescing, Plan, Stage
from airflow_trident.protocol.spout_kinds import SpoutKind


def coalesces(plan: Plan) -> Coalesces:
    """What may be done with several transactions of this plan together."""
    why_neither = _why_neither(plan)
    why_one = why_neither or _why_committed_one_by_one(plan)
    before = before_transforms(plan.stages)
    why_no = why_neither or next(filter(None, (_why_alone(stage, plan.stages, before) for stage in plan.stages)), "")
    why_tagged = why_no or why_one or _why_not_by_key(plan)
    how = Coalescing.NO if why_no else Coalescing.BY_TRANSACTION if why_tagged else Coalescing.BY_KEY
    return Coalesces(how=how, why=why_tagged, commits=not why_one, why_one=why_one)


def by_expression(node: Node) -> bool:
    """Does it mean the same in any partition, and does it contain no user code?"""
    match node:
        case ProjectNode() | CheckNode():
            return True
        case EachNode() | FilterNode():
            return node.expression is not None
        case PartialAggregateNode():
            return node.is_builtin
    return False


def in_place(stage: Stage, stages: Sequence[Stage]) -> bool:
    """Are its tuples still in the partitions in which they were read?"""
    first = _brought_by(stage, stages)
    return first.exchange is None and first.source is not None


def _brought_by(stage: Stage, stages: Sequence[Stage]) -> Stage:
    """The stage that brought the tuples of this one into their partitions."""
    while stage.exchange is None and stage.begin is None:
        stage = stages[stage.upstreams[0]]
    return stage


def before_transforms(stages: Sequence[Stage], besides: Collection[int] = ()) -> frozenset[int]:
    """The stages that a transform's rows come from, directly or by other stages.

    :param besides: stages of transforms that do not count.
    """
    stage_indexes: set[int] = set()
    for stage in reversed(stages):
        if (stage.transform is not None and stage.index not in besides) or stage.index in stage_indexes:
            stage_indexes |= set(stage.upstreams)
    return frozenset(stage_indexes)


def merged_by(stage: Stage) -> FinalAggregateNode | None:
    """The aggregation at the beginning of the stage, after a repartition by its groups, if SQL can do all of it. On raw
    tuples only with groups: without tuples nothing would stand for the transaction."""
    first = stage.nodes[0] if stage.nodes else None
    if stage.exchange is None or not isinstance(first, FinalAggregateNode) or not first.in_sql:
        return None
    gathers = not first.groups and first.merges and stage.exchange.grouping.gathers
    return first if gathers or (first.groups and stage.exchange.keys == first.groups) else None


# ---- why not ---------------------------------------------------------------------------------------------------


def _why_neither(plan: Plan) -> str:
    kinds = {source.name: source.spout.kind for source in plan.sources}
    rewriting = next((sink.name for sink in plan.sinks if sink.state.rewrites), None)
    if rewriting is not None:
        return (
            f"state {rewriting} is rewritten, so each transaction is processed against what the one before it committed"
        )
    return next((f"stream {name} is {kind}" for name, kind in kinds.items() if kind is not SpoutKind.TRANSACTIONAL), "")


def _why_committed_one_by_one(plan: Plan) -> str:
    if plan.commit:
        return "the commit phase goes on behind a state"
    for sink in plan.sinks:
        if not sink.state.takes_groups:
            return f"state {sink.name} takes one transaction at a time"
        if sink.state.updater is not None and not getattr(sink.state.updater, "takes_groups", False):
            return f"state {sink.name} is changed by an updater"
    return ""


def _why_alone(stage: Stage, stages: Sequence[Stage], before: frozenset[int]) -> str:
    """:param before: the stages that a transform's rows come from."""
    for node in stage.nodes:
        if isinstance(node, StateQueryNode):
            return f"{node.name} asks a state"
    if stage.index in before and stage.source is None and (stage.forks or stage.sinks):
        return f"several take what comes out of {_end_of(stage)}, one of them a transform"
    if stage.source is not None:
        return ""
    if stage.of_batches is not None and stage.transform is None:
        return f"{stage.of_batches.name} gets a batch as {stage.of_batches.batch_as}"
    nodes = stage.nodes[1:] if merged_by(stage) is not None else stage.nodes
    for node in nodes:
        if by_expression(node):
            continue
        if not in_place(stage, stages):
            return f"{node.name} runs behind {_moved_by(stage, stages)}"
        if stage.source is None and before & set(stage.upstreams):
            return f"{node.name} runs on what a transform takes, too"
        if node.runs_without_tuples:
            return f"{node.name} wants partitions without tuples"
    if stage.exchange is not None and stage.exchange.grouping.repeats:
        return f"{stage.exchange.name} says where tuples go"
    return ""


def _end_of(stage: Stage) -> str:
    """The name of the last node of a stage."""
    last = stage.nodes[-1] if stage.nodes else stage.exchange or stage.begin
    return last.name if last is not None else stage.name


def _moved_by(stage: Stage, stages: Sequence[Stage]) -> str:
    """What brought the tuples of a stage into other partitions than those in which they were read."""
    first = _brought_by(stage, stages)
    if first.exchange is not None:
        return "a repartition"
    return "a transform" if first.transform is not None else "a merge"


def _why_not_by_key(plan: Plan) -> str:
    for stage in plan.stages:
        whole = merged_by(stage)
        moved = next((node for node in stage.nodes if isinstance(node, CheckNode)), None)
        if moved is not None and not in_place(stage, plan.stages):
            return f"{moved.name} measures each batch"
        if whole is not None and not (stage.sinks and not stage.forks):
            return f"{whole.name} counts within one batch"
        for sink in stage.sinks:
            state = sink.state if isinstance(sink, PersistNode) else None
            if state is None or not state.merges_exactly:
                return f"state {sink.name} is not merged by exact built-ins"
            kinds = [type(aggregation.aggregator) for aggregation in whole.aggregations] if whole is not None else []
            groups = whole.groups if whole is not None else ()
            projected = all(isinstance(node, ProjectNode) for node in stage.nodes[1:])
            if (
                not projected
                or kinds != [type(combiner) for combiner in state.combiners]
                or set(groups) != set(state.key_names)
            ):
                return f"what state {sink.name} gets is not merged by its keys alone"
    return ""
