"""Verbs that aggregate a batch: the whole of it, by partition, or by group.

Verbs that combine streams of one topology, within a batch: merge, multi_reduce, join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.aggregators import Comparator, ComparisonAggregator, comparable, groupable
from airflow_trident.operations.interfaces import GroupedMultiReducer, Joiner, JoinOutFieldsMode, JoinType, MultiReducer
from airflow_trident.plan.nodes import AggregateNode, Aggregation, MergeNode, MultiReduceNode, PartitionAggregateNode
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.topology.signatures import aggregations, named_aggregations, require_plain
from airflow_trident.topology.stream_base import GroupedBase, S, StreamBase, named, some, then
from airflow_trident.types import (
    Field,
    FieldSpec,
    Schema,
    names_of,
    parse_declared,
    parse_names,
    require_distinct,
    select,
    split_spec,
)


class Scope(StrEnum):
    """What is aggregated together; the value is the verb's name."""

    ALL = "aggregate"
    PARTITION = "partition_aggregate"


_NODES = {Scope.ALL: AggregateNode, Scope.PARTITION: PartitionAggregateNode}


def group_by(stream: S, fields: FieldSpec) -> tuple[str, ...]:
    """The group fields."""
    keys = some(stream, "group_by", fields, "Without groups use aggregate() of the stream itself.")
    require_distinct(keys)
    groupable("group_by", select(stream.schema, keys, "group_by"))
    return keys


def aggregate(
    stream: S, scope: Scope, groups: tuple[str, ...], arguments: tuple[Any, ...], by_output: Mapping[str, Any]
) -> S:
    arguments = named_aggregations(scope, arguments, by_output)
    return _aggregated(stream, scope, scope, groups, aggregations(scope, stream.schema, arguments))


def extreme(stream: S, verb: str, field: FieldSpec, comparator: Comparator | None, *, sign: int) -> S:
    """The smallest (`sign` -1) or largest (1) tuple of each partition."""
    names = named(stream, verb, field)
    if len(names) > 1 or (not names and comparator is None):
        raise PlanError(f"{verb} got {len(names)} fields", f'Name one, as in {verb}("price").')
    if comparator is None:
        comparable(verb, select(stream.schema, names, verb)[0])
    place = stream.fields.index(names[0]) if names else None
    aggregation = Aggregation(
        aggregator=ComparisonAggregator(place, comparator, sign), reads=stream.fields, output=stream.schema
    )
    return then(stream, PartitionAggregateNode, verb, stream.schema, groups=(), aggregations=(aggregation,))


def _aggregated(stream: S, scope: Scope, verb: str, groups: tuple[str, ...], several: tuple[Aggregation, ...]) -> S:
    outputs = tuple(field for aggregation in several for field in aggregation.output)
    require_distinct((*groups, *names_of(outputs)))
    schema = (*select(stream.schema, groups, "group_by"), *outputs)
    return then(stream, _NODES[scope], verb, schema, groups=groups, aggregations=several)


# ---- several in one pass, as Trident writes it -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chain(Generic[S]):
    """The aggregators collected so far, all of one scope (Trident: ChainedFullAggregatorDeclarer,
    ChainedPartitionAggregatorDeclarer)."""

    stream: S
    groups: tuple[str, ...] = ()
    scope: Scope | None = None
    several: tuple[Aggregation, ...] = ()


def chained(chain: Chain[S], scope: Scope, arguments: tuple[Any, ...]) -> Chain[S]:
    """The chain with one more aggregator."""
    if chain.scope not in (None, scope):
        raise PlanError(
            f"a chain has both {chain.scope}() and {scope}()", "Make it of one kind: all tuples, or each partition's."
        )
    several = (*chain.several, *aggregations(scope, chain.stream.schema, arguments))
    require_distinct((*chain.groups, *(field.name for aggregation in several for field in aggregation.output)))
    return replace(chain, scope=scope, several=several)


def chain_end(chain: Chain[S]) -> S:
    if chain.scope is None:
        raise PlanError("chain_end() after no aggregator", 'Put one before it, as in aggregate(Count(), "n").')
    return _aggregated(chain.stream, chain.scope, "chained_agg", chain.groups, chain.several)


def merge(graph: NodeGraph, streams: Sequence[S], out_fields: FieldSpec | None) -> S:
    _require(graph, "merge", streams)
    first = streams[0].schema
    for place, stream in enumerate(streams):
        if tuple(field.type for field in stream.schema) != tuple(field.type for field in first):
            raise FieldError(
                f"merge: stream {place} has ({_ddl(stream.schema)}) and stream 0 has ({_ddl(first)})",
                "Fields are merged by position: give them the same number and types, with project() or each().",
            )
    names = names_of(first) if out_fields is None else parse_names(out_fields)
    schema = _renamed("merge", first, names)
    node = MergeNode(
        name=graph.next_name("merge"), schema=schema, inputs=tuple(input_stream.node for input_stream in streams)
    )
    return replace(streams[0], node=node, label="")


def multi_reduce(
    graph: NodeGraph,
    input_fields: Sequence[FieldSpec],
    streams: Sequence[S] | Sequence[GroupedBase[S]],
    reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
    out_fields: FieldSpec,
) -> S:
    grouped = [stream for stream in streams if isinstance(stream, GroupedBase)]
    plain = [stream.stream if isinstance(stream, GroupedBase) else stream for stream in streams]
    _require(graph, "multi_reduce", plain)
    wanted = GroupedMultiReducer if grouped else MultiReducer
    if len(grouped) not in (0, len(plain)) or not isinstance(reducer, wanted):
        raise PlanError(
            f"multi_reduce got {len(grouped)} grouped of {len(plain)} streams and {reducer!r}",
            "Group all streams and give a GroupedMultiReducer, or none and give a MultiReducer.",
        )
    require_plain("multi_reduce", reducer, "init", "execute", "complete")
    if len(input_fields) != len(plain) or isinstance(input_fields, str):
        raise PlanError(
            f"multi_reduce got fields for {len(input_fields)} of {len(plain)} streams",
            'Name those of each, as in multi_reduce(["a, b", "c"], [one, other], ...).',
        )
    reads = tuple(named(stream, "multi_reduce", names) for stream, names in zip(plain, input_fields, strict=True))
    groups = tuple(stream.keys for stream in grouped) or ((),) * len(plain)
    _require_alike("multi_reduce", plain, groups)
    outputs = parse_declared(out_fields, list(split_spec(reducer.output_types)))
    return _node(graph, "multi_reduce", plain, reducer, reads, groups, outputs)


def join(
    graph: NodeGraph,
    streams: Sequence[S],
    join_fields: Sequence[FieldSpec],
    out_fields: FieldSpec,
    join_type: JoinType | str | Sequence[JoinType | str],
    mode: JoinOutFieldsMode | str,
) -> S:
    _require(graph, "join", streams, least=2)
    if len(join_fields) != len(streams) or isinstance(join_fields, str):
        raise PlanError(
            f"join got join fields for {len(join_fields)} of {len(streams)} streams",
            'Name those of each, as in join([orders, users], ["user_id", "id"], ...).',
        )
    keys = tuple(named(stream, "join", names) for stream, names in zip(streams, join_fields, strict=True))
    if not keys[0]:
        raise PlanError("join got no join fields", "Name the fields that must be equal in all streams.")
    _require_alike("join", streams, keys)
    groupable("join", select(streams[0].schema, keys[0], "join"))
    types = _join_types(join_type, len(streams))
    if mode not in tuple(JoinOutFieldsMode):
        raise PlanError(f"join got the mode {mode!r}", "Give JoinOutFieldsMode.COMPACT or PRESERVE.")
    kept = JoinOutFieldsMode(mode)
    others = tuple(
        tuple(name for name in stream.fields if name not in names) for stream, names in zip(streams, keys, strict=True)
    )
    layout = tuple(
        tuple((name in names, names.index(name) if name in names else rest.index(name)) for name in stream.fields)
        for stream, names, rest in zip(streams, keys, others, strict=True)
    )
    joiner = Joiner(types=types, widths=tuple(map(len, others)), mode=kept, layout=layout)
    whole: Schema = tuple(field for stream in streams for field in stream.schema)
    if kept is JoinOutFieldsMode.COMPACT:
        rest = tuple(
            field
            for stream, names in zip(streams, others, strict=True)
            for field in select(stream.schema, names, "join")
        )
        whole = (*select(streams[0].schema, keys[0], "join"), *rest)
    schema = _renamed("join", whole, parse_names(out_fields))
    return _node(graph, "join", streams, joiner, others, keys, schema)


def _node(
    graph: NodeGraph,
    verb: str,
    streams: Sequence[S],
    reducer: MultiReducer[Any] | GroupedMultiReducer[Any],
    reads: tuple[tuple[str, ...], ...],
    groups: tuple[tuple[str, ...], ...],
    schema: Schema,
) -> S:
    node = MultiReduceNode(
        name=graph.next_name(verb),
        schema=schema,
        inputs=tuple(stream.node for stream in streams),
        reducer=reducer,
        reads=reads,
        groups=groups,
    )
    return replace(streams[0], node=node, label="")


# ---- what must fit ---------------------------------------------------------------------------------------------


def _require(graph: NodeGraph, verb: str, streams: Sequence[Any], least: int = 1) -> None:
    if isinstance(streams, StreamBase) or len(streams) < least:
        raise PlanError(f"{verb} got too few streams", f"Give a list, as in topology.{verb}([one, other], ...).")
    for place, stream in enumerate(streams):
        if not isinstance(stream, StreamBase):
            raise PlanError(f"{verb} got {stream!r} as stream {place}", "Give streams of this topology.")
        if stream.topology is not graph:
            raise PlanError(
                f"{verb}: stream {place} belongs to topology {stream.topology.name!r}, not to {graph.name!r}",
                "A batch has one topology: make all streams with the same one.",
            )


def _require_alike(verb: str, streams: Sequence[S], groups: Sequence[tuple[str, ...]]) -> None:
    wanted = [field.type for field in select(streams[0].schema, groups[0], verb)]
    for place, (stream, names) in enumerate(zip(streams, groups, strict=True)):
        fields = select(stream.schema, names, verb)
        if [field.type for field in fields] != wanted:
            raise FieldError(
                f"{verb}: the fields of stream {place} are ({_ddl(fields)}) and those of stream 0 are "
                f"({_ddl(select(streams[0].schema, groups[0], verb))})",
                'Their number and types must be the same: cast one, as in each(cast(col("id"), "long"), "key").',
            )


def _join_types(requested: JoinType | str | Sequence[JoinType | str], count: int) -> tuple[JoinType, ...]:
    each = [requested] * count if isinstance(requested, str) else list(requested)
    names = {str(kind) for kind in JoinType}
    if len(each) != count or any(str(kind) not in names for kind in each):
        raise PlanError(
            f"join of {count} streams got the join types {[str(kind) for kind in each]}",
            "Give JoinType.INNER or JoinType.OUTER for all, or a list with one for each stream; OUTER: may be missing.",
        )
    return tuple(map(JoinType, each))


def _renamed(verb: str, schema: Schema, names: tuple[str, ...]) -> Schema:
    if len(names) != len(schema):
        raise FieldError(
            f"{verb} gives {len(schema)} fields ({_ddl(schema)}) and {len(names)} are named ({', '.join(names)})",
            "Name each of them.",
        )
    return parse_declared(list(names), [field.type for field in schema])


def _ddl(fields: Sequence[Field]) -> str:
    return ", ".join(map(str, fields))
