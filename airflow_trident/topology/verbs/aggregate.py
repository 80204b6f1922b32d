"""Verbs that aggregate a batch: the whole of it, by partition, or by group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic

from airflow_trident.errors import PlanError
from airflow_trident.operations.comparing import Comparator, ComparisonAggregator, comparable, groupable
from airflow_trident.plan.nodes import AggregateNode, Aggregation, PartitionAggregateNode
from airflow_trident.topology.signatures import aggregations
from airflow_trident.topology.stream_base import S, named, some, then
from airflow_trident.types import FieldSpec, names_of, require_distinct, select


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


def aggregate(stream: S, scope: Scope, groups: tuple[str, ...], what: tuple[Any, ...]) -> S:
    return _aggregated(stream, scope, scope, groups, aggregations(scope, stream.schema, what))


def extreme(stream: S, verb: str, field: FieldSpec, comparator: Comparator | None, *, sign: int) -> S:
    """The smallest (`sign` -1) or largest (1) tuple of each partition."""
    names = named(stream, verb, field)
    if len(names) > 1 or (not names and comparator is None):
        raise PlanError(f"{verb} got {len(names)} fields", f'Name one, as in {verb}("price").')
    if comparator is None:
        comparable(verb, select(stream.schema, names, verb)[0])
    place = stream.fields.index(names[0]) if names else None
    what = Aggregation(
        aggregator=ComparisonAggregator(place, comparator, sign), reads=stream.fields, output=stream.schema
    )
    return then(stream, PartitionAggregateNode, verb, stream.schema, groups=(), aggregations=(what,))


def _aggregated(stream: S, scope: Scope, verb: str, groups: tuple[str, ...], several: tuple[Aggregation, ...]) -> S:
    outputs = tuple(field for one in several for field in one.output)
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


def chained(chain: Chain[S], scope: Scope, what: tuple[Any, ...]) -> Chain[S]:
    """The chain with one more aggregator."""
    if chain.scope not in (None, scope):
        raise PlanError(
            f"a chain has both {chain.scope}() and {scope}()", "Make it of one kind: all tuples, or each partition's."
        )
    several = (*chain.several, *aggregations(scope, chain.stream.schema, what))
    require_distinct((*chain.groups, *(field.name for one in several for field in one.output)))
    return replace(chain, scope=scope, several=several)


def chain_end(chain: Chain[S]) -> S:
    if chain.scope is None:
        raise PlanError("chain_end() after no aggregator", 'Put one before it, as in aggregate(Count(), "n").')
    return _aggregated(chain.stream, chain.scope, "chained_agg", chain.groups, chain.several)
