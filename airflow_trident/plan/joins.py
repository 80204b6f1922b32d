"""What a person should know about joins: they see one transaction, not the history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from airflow_trident.operations.multireduce import Joiner
from airflow_trident.plan.graph import Node, ordered
from airflow_trident.plan.nodes import MultiReduceNode, SourceNode


def join_notes(sinks: Iterable[Node]) -> Iterator[str]:
    """A note for each join of streams from different spouts: only their arrival decides which of their tuples meet in
    one transaction.

    :param sinks: of the graph that the user built.
    """
    for node in ordered(sinks):
        if isinstance(node, MultiReduceNode) and isinstance(node.reducer, Joiner):
            origins = [_origins(one) for one in node.inputs]
            if len(set(origins)) > 1:
                names = ", ".join(sorted(frozenset().union(*origins)))
                yield (
                    f"{node.name} joins what one transaction has of the streams {names}: a tuple that comes late meets "
                    "none of the others. To find what other transactions brought, keep it in a state and ask that with "
                    "state_query()"
                )


def _origins(node: Node) -> frozenset[str]:
    return frozenset(one.name for one in ordered([node]) if isinstance(one, SourceNode))
