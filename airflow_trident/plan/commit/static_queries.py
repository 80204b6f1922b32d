"""What states may be asked for by name in the commit phase (`new_static_state`): pure.

A commit that was killed between two states runs again. What it asks its own states for is the same then, because they
wait for it; a state of another topology may have changed. So the answer may lead to one state only: that one takes the
batch of one of the tries. Two would have the batches of two tries, or a state would be asked for the new values of a
batch that it never got.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

from airflow_trident.errors import PlanError
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.commit.nodes import StateQueryNode
from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.nodes import PersistNode


def require_answers(sinks: Sinks) -> None:
    """:raises PlanError: a state of another topology is asked in the commit phase, and leads to several states; or one
    of this topology is asked for what it is fed with."""
    if not any(isinstance(node, StateQueryNode) for node in ordered(sinks)):
        return
    own = {(sink.state.topology, sink.name) for sink in sinks if isinstance(sink, PersistNode)}
    asked = {sink.name: _asked(sink) for sink in sinks}
    circle = {name: [one.state.name for one in asked[name] if _key(one) in own] for name in asked}
    try:
        TopologicalSorter(circle).prepare()
    except CycleError as error:
        raise PlanError(
            f"the commit phase asks for what it feeds: {' <- '.join(map(repr, error.args[1]))}",
            "Ask a state of this topology by what persistent_aggregate() gave, not by new_static_state(): then it is "
            "clear what comes first.",
        ) from None
    for query in {id(one): one for queries in asked.values() for one in queries if _key(one) not in own}.values():
        fed = [name for name, queries in asked.items() if query in queries]
        if len(fed) > 1:
            raise PlanError(
                f"{query.name} asks state {query.state.name!r}, which topology {query.state.topology!r} changes at any "
                f"time, in the commit phase, and leads to the states {', '.join(map(repr, fed))}: a commit that is "
                "killed between them and tried again could give them different answers",
                "Ask it where the answer leads to one state only, or before the first state: there the answer is "
                "staged with the batch.",
            )


def _asked(sink: Node) -> list[StateQueryNode]:
    """The queries of the commit phase that lead to a state."""
    return [node for node in ordered([sink]) if isinstance(node, StateQueryNode) and in_commit_phase(node)]


def _key(query: StateQueryNode) -> tuple[str, str]:
    return query.state.topology, query.state.name
