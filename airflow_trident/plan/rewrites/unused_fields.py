"""A rewrite: leaves out fields that nobody uses, from the source on."""

from __future__ import annotations

from airflow_trident.plan.graph import Sinks, ordered, rebuilt


def prune(sinks: Sinks) -> Sinks:
    """Sources, projections and unions give only used fields; before a repartition a projection drops the rest.
    Projections that drop nothing are removed."""
    used = _used(sinks)
    return rebuilt(sinks, lambda old, node: node.narrowed(used[id(old)]))


def _used(sinks: Sinks) -> dict[int, frozenset[str]]:
    """The fields that the readers of each node need, by the node's `id`."""
    used: dict[int, frozenset[str]] = {}
    for node in reversed(ordered(sinks)):
        own = used.get(id(node), frozenset())
        if node.narrows:
            own = own or frozenset(node.fields[:1])
        used[id(node)] = own
        for place, one in enumerate(node.inputs):
            used[id(one)] = used.get(id(one), frozenset()) | node.needs(one.schema, own, place)
    return used
