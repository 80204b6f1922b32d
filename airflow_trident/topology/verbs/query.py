"""Streams that ask a state: one of their own topology, or one that another topology updates."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.names import require_flags, require_name
from airflow_trident.operations.state_functions import QueryFunction
from airflow_trident.plan.graph import Grouping, Node
from airflow_trident.plan.nodes import (
    EachNode,
    FilterNode,
    MapNode,
    PartitionNode,
    PeekNode,
    ProjectNode,
    StateQueryNode,
)
from airflow_trident.topology.signatures import (
    require_factory,
    require_plain,
)
from airflow_trident.topology.stream_base import S, StateHandle, append, named
from airflow_trident.types import (
    FieldSpec,
    parse_declared,
    parse_type,
    select,
    split_spec,
)


def static(topology: str, state: StateFactory, name: str, keys: FieldSpec, values: FieldSpec) -> StateSpec:
    """A state that this topology does not update."""
    spec = StateSpec(
        topology=topology,
        name=require_name("state", name),
        keys=parse_declared(keys),
        values=parse_declared(values),
        staged=(),
        factory=require_factory(state),
    )
    spec.factory.validate(spec)
    return spec


def state_query(
    stream: S,
    state: StateHandle,
    inputs: FieldSpec,
    function: QueryFunction,
    outputs: FieldSpec,
    *,
    after_commit: bool,
) -> S:
    require_flags("state_query", after_commit=after_commit)
    if not isinstance(state, StateHandle):
        raise PlanError(f"state_query got {state!r}", "Give what persistent_aggregate() or new_static_state() gave.")
    if not isinstance(function, QueryFunction):
        raise PlanError(f"state_query got {function!r}", "Give an object of a QueryFunction, such as MapGet().")
    require_plain("state_query", function, "batch_retrieve", may_yield=True)
    if state.topology is not None and state.topology is not stream.topology:
        raise PlanError(
            f"state {state.name!r} belongs to topology {state.topology.name!r}",
            "Another topology's state is asked through new_static_state().",
        )
    if state.spec.stateful is not None:
        raise PlanError(
            f"state {state.name!r} belongs to a stateful function and has no fields to ask for",
            "Ask the states of persistent_aggregate() and partition_persist().",
        )
    if after_commit and (state.topology is None or stream.topology.queries.owner(stream.node)):
        raise PlanError(
            f"state_query(after_commit=True) of state {state.name!r} has no commit to come after",
            "Leave after_commit out: neither a static state nor a query stream has transactions.",
        )
    if state.spec.factory.capabilities.appends:
        raise PlanError(
            f"state {state.name!r} is kept in {state.spec.factory.describe()}, which only appends rows",
            "Ask a state that has keys, or read the sink's files.",
        )
    _require_no_broadcast(state.name, stream.node)
    reads = named(stream, "state_query", inputs)
    function.require_fit(state.spec.keys, select(stream.schema, reads, "state_query"))
    result_types = function.result_types(state.spec.keys, state.spec.values)
    types = result_types or [parse_type(part) for part in split_spec(function.output_types)]
    new = parse_declared(outputs, types)
    if result_types and len(new) != len(result_types):
        raise FieldError(
            f"{type(function).__name__} of state {state.name!r} gives {len(result_types)} fields and {len(new)} are "
            "named",
            "Name them all.",
        )
    return append(
        stream,
        StateQueryNode,
        "state_query",
        reads=reads,
        outputs=new,
        function=function,
        # The query is sent to workers, which need no updater.
        state=replace(state.spec, updater=None),
        after_commit=after_commit,
    )


def _require_no_broadcast(state: str, node: Node) -> None:
    """:raises PlanError: a broadcast would give the query a copy of each tuple in every partition."""
    while isinstance(node, EachNode | FilterNode | MapNode | PeekNode | ProjectNode | StateQueryNode | PartitionNode):
        if isinstance(node, PartitionNode) and node.grouping is Grouping.BROADCAST:
            raise PlanError(
                f"state_query of state {state!r} comes after {node.name!r}, which brings every tuple into every "
                "partition: each would be answered as often as there are partitions",
                "Leave broadcast() out: a state belongs to the whole topology here, so one partition gets all answers.",
            )
        node = node.input
