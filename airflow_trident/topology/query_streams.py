"""Query streams of a topology: their nodes and their results (Trident: newDRPCStream)."""

from __future__ import annotations

from airflow_trident.errors import PlanError
from airflow_trident.names import require_name
from airflow_trident.plan.commit.nodes import GivenTuples
from airflow_trident.plan.compile import compile_query
from airflow_trident.plan.graph import Node
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.stages import Plan
from airflow_trident.types import FieldSpec, Schema, parse_declared


class QueryStreams:
    """The query streams of one topology. The result of a query is the last node that was added downstream of it."""

    def __init__(self, topology: str) -> None:
        self._topology = topology
        self._sources: dict[str, SourceNode] = {}
        self._results: dict[str, Node] = {}
        self._nodes: dict[int, tuple[Node, str | None]] = {}
        """By `id`: the node, and its query or None. The entry keeps the node alive, so that its id stays unique."""

    def add(self, name: str, args: FieldSpec) -> SourceNode:
        """:raises PlanError: the name is taken. :raises FieldError: an argument has no type."""
        require_name("query", name)
        if name in self._sources:
            raise PlanError(f"topology {self._topology!r} has two queries named {name!r}", "Give each its own name.")
        schema = parse_declared(args)
        source = SourceNode(name=name, schema=schema, spout=GivenTuples(schema, f"arguments of query {name}"))
        self._sources[name] = source
        self._nodes[id(source)] = (source, name)
        self._results[name] = source
        return source

    def note(self, node: Node) -> None:
        """Record a node of a stream.

        :raises PlanError: the node joins a query with other streams (Storm: "Cannot join DRPC stream with streams
            originating from other spouts").
        """
        if id(node) in self._nodes:
            return
        owners = {self.owner(one) for one in node.inputs}
        if len(owners) > 1:
            names = " and ".join(sorted(repr(one) for one in owners if one is not None))
            raise PlanError(
                f"{node.name} of topology {self._topology!r} brings query {names} together with other streams",
                "A query reads states only: let it ask a state that the other stream ends in.",
            )
        owner = next(iter(owners), None)
        self._nodes[id(node)] = (node, owner)
        if owner is not None:
            self._results[owner] = node

    def owner(self, node: Node) -> str | None:
        """The query that a node belongs to."""
        return self._nodes.get(id(node), (node, None))[1]

    def require_none(self, sink: Node) -> None:
        """:raises PlanError: a query stream ends in a state."""
        name = self.owner(sink.inputs[0])
        if name is not None:
            raise PlanError(
                f"query {name!r} of topology {self._topology!r} ends in state {sink.name!r}",
                "A query changes nothing: it has no transaction that would make the change exactly once.",
            )

    @property
    def names(self) -> dict[str, Schema]:
        """Query -> its arguments."""
        return {name: source.schema for name, source in self._sources.items()}

    def compile(self, name: str) -> Plan:
        """The plan of a query.

        :raises PlanError: there is no query of that name.
        """
        if name not in self._sources:
            known = ", ".join(map(repr, self._sources)) or "none"
            raise PlanError(f"topology {self._topology!r} has no query {name!r}", f"It has {known}.")
        return compile_query(self._topology, self._sources[name], self._results[name])
