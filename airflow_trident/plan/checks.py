"""Which spouts and states together are exactly once: the matrix in Storm's documentation, which Storm itself never
checks. Pure.

A state applies each txid once. That is exactly once if the txid always has the same batch (transactional spout), or if
the state can take back what another attempt's batch did (opaque state).

What a person should know about joins: they see one transaction, not the history. Pure.

What states may be asked for by name in the commit phase (`new_static_state`): pure.

A commit that was killed between two states runs again. What it asks its own states for is the same then, because they
wait for it; a state of another topology may have changed. So the answer may lead to one state only: that one takes the
batch of one of the tries. Two would have the batches of two tries, or a state would be asked for the new values of a
batch that it never got.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateKind, StateSpec
from airflow_trident.errors import PlanError
from airflow_trident.operations.interfaces import Joiner
from airflow_trident.plan.commit.levels import in_commit_phase
from airflow_trident.plan.graph import Node, Sinks, ordered
from airflow_trident.plan.nodes import MultiReduceNode, PersistNode, SourceNode, StateQueryNode
from airflow_trident.protocol.spout_kinds import SpoutKind

EXACTLY_ONCE = frozenset(
    {
        (SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL),
        (SpoutKind.TRANSACTIONAL, StateKind.OPAQUE),
        (SpoutKind.OPAQUE, StateKind.OPAQUE),
    }
)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A stream and a state that together are not exactly once, and their kinds."""

    stream: str
    spout: str
    spout_kind: SpoutKind
    state: str
    store: str
    state_kind: StateKind

    def __str__(self) -> str:
        return f"state {self.state} with stream {self.stream}: {self.why}"

    @property
    def why(self) -> str:
        """The reason with the names of both, for people."""
        return f"{self.spout} is {self.spout_kind}, {self.store} is {self.state_kind}, so {_what(self.spout_kind)}"

    @property
    def note(self) -> str:
        """For the topology's definition: stays the same as long as the kinds do."""
        return f"not exactly once: stream {self.stream} is {self.spout_kind}, the state {self.state_kind}"


def shortfalls(spouts: Mapping[str, Spout], states: Mapping[str, StateSpec]) -> tuple[Shortfall, ...]:
    """Every pair outside of the matrix. Each state is paired with all streams of its topology: a repeated attempt
    repeats all streams."""
    kinds = {name: spec.factory.capabilities.kind for name, spec in states.items()}
    of_kind = {
        spout: [name for name, state in kinds.items() if (spout, state) not in EXACTLY_ONCE] for spout in SpoutKind
    }
    return tuple(
        Shortfall(stream, spout.describe(), spout.kind, name, states[name].factory.describe(), kinds[name])
        for stream, spout in spouts.items()
        for name in of_kind[spout.kind]
    )


def require_exactly_once(topology: str, spouts: Mapping[str, Spout], states: Mapping[str, StateSpec]) -> None:
    """:raises PlanError: a pair is outside of the matrix; the error names both, and the cure."""
    for shortfall in shortfalls(spouts, states):
        raise PlanError(
            f"stream {shortfall.stream!r} and state {shortfall.state!r} of topology {topology!r} are not exactly "
            f"once together: {shortfall.why}",
            f"{_cure(shortfall.spout_kind)} Or say that it need not be: Topology({topology!r}, exactly_once=False).",
        )


def _what(kind: SpoutKind) -> str:
    return {
        SpoutKind.TRANSACTIONAL: "a repeated commit may count the batch twice",
        SpoutKind.OPAQUE: "the batch of a repeated attempt may be counted beside that of the first",
        SpoutKind.NON_TRANSACTIONAL: "a repeated attempt may lose rows or count them twice",
    }[kind]


def _cure(spout: SpoutKind) -> str:
    if spout is SpoutKind.NON_TRANSACTIONAL:
        return "Put a SpooledSpout before the source."
    if spout is SpoutKind.OPAQUE:
        return "Use an opaque state, such as SqliteState, or a transactional spout."
    return "Use a transactional or an opaque state, such as SqliteState."


def join_notes(sinks: Iterable[Node]) -> Iterator[str]:
    """A note for each join of streams from different spouts: only their arrival decides which of their tuples meet in
    one transaction.

    :param sinks: of the graph that the user built.
    """
    for node in ordered(sinks):
        if isinstance(node, MultiReduceNode) and isinstance(node.reducer, Joiner):
            origins = [_origins(input_node) for input_node in node.inputs]
            if len(set(origins)) > 1:
                names = ", ".join(sorted(frozenset().union(*origins)))
                yield (
                    f"{node.name} joins what one transaction has of the streams {names}: a tuple that comes late meets "
                    "none of the others. To find what other transactions brought, keep it in a state and ask that with "
                    "state_query()"
                )


def _origins(node: Node) -> frozenset[str]:
    return frozenset(upstream.name for upstream in ordered([node]) if isinstance(upstream, SourceNode))


def overwrite_notes(sinks: Iterable[Node]) -> Iterator[str]:
    """A note for each table whose partitions batches replace. A batch has what is new, and not all of a day.

    :param sinks: of the graph that the user built.
    """
    for node in sinks:
        if isinstance(node, PersistNode) and node.state.overwrites and node.state.partition is None:
            yield (
                f'state {node.name}: mode="overwrite" replaces a partition ({", ".join(node.state.partition_by)}) by '
                "the rows of one batch. A later file of the same partition removes the rows of earlier files"
            )


def require_answers(sinks: Sinks) -> None:
    """:raises PlanError: a state of another topology is asked in the commit phase, and leads to several states; or one
    of this topology is asked for what it is fed with."""
    if not any(isinstance(node, StateQueryNode) for node in ordered(sinks)):
        return
    persisted = {(sink.state.topology, sink.name) for sink in sinks if isinstance(sink, PersistNode)}
    queries_of = {sink.name: _asked(sink) for sink in sinks}
    circle = {
        name: [state_query.state.name for state_query in queries if _key(state_query) in persisted]
        for name, queries in queries_of.items()
    }
    try:
        TopologicalSorter(circle).prepare()
    except CycleError as error:
        raise PlanError(
            f"the commit phase asks for what it feeds: {' <- '.join(map(repr, error.args[1]))}",
            "Ask a state of this topology by what persistent_aggregate() gave, not by new_static_state(): then it is "
            "clear what comes first.",
        ) from None
    for query in {
        id(state_query): state_query
        for queries in queries_of.values()
        for state_query in queries
        if _key(state_query) not in persisted
    }.values():
        fed = [name for name, queries in queries_of.items() if query in queries]
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
