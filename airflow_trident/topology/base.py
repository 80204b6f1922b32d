"""What every verb of a stream is made with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from airflow_trident.errors import PlanError
from airflow_trident.plan.nodes import Node
from airflow_trident.types import FieldSpec, Schema, ddl, names_of, parse_names, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream
    from airflow_trident.topology.topology import Topology


class StreamBase:
    """A handle on a node, and how verbs make the next one."""

    def __init__(self, topology: Topology, node: Node, label: str = "") -> None:
        self._topology = topology
        self._node = node
        self._label = label
        topology.queries.note(node)

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def node(self) -> Node:
        """The node of the plan that gives the stream's tuples."""
        return self._node

    @property
    def schema(self) -> Schema:
        return self._node.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """Field names in order."""
        return names_of(self._node.schema)

    def name(self, label: str) -> Stream:
        """Put a label before the names of the nodes that follow; it shows in plans and error texts, and in
        Spark's UI."""
        return self._on(self._node, label)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._node.name}: {ddl(self.schema)})"

    # ---- how verbs make nodes ----------------------------------------------------------------------------------

    def _on(self, node: Node, label: str | None = None) -> Stream:
        made: Any = type(self)(self._topology, node, self._label if label is None else label)
        return cast("Stream", made)

    def _select(self, verb: str, names: FieldSpec) -> tuple[str, ...]:
        wanted = parse_names(names)
        select(self.schema, wanted, f"{verb} in topology {self._topology.name!r}")
        return wanted

    def _some(self, verb: str, names: FieldSpec, instead: str) -> tuple[str, ...]:
        """:raises PlanError: none is named; `instead` says what does without fields."""
        wanted = self._select(verb, names)
        if not wanted:
            raise PlanError(f"{verb} in topology {self._topology.name!r} got no fields", instead)
        return wanted

    def _then(self, kind: Callable[..., Node], verb: str, schema: Schema, **arguments: Any) -> Stream:
        name = self._topology.next_name(f"{self._label}.{verb}" if self._label else verb)
        return self._on(kind(name=name, schema=schema, inputs=(self._node,), **arguments))

    def _append(self, kind: Callable[..., Node], verb: str, *, outputs: Schema, **arguments: Any) -> Stream:
        require_distinct((*self.fields, *names_of(outputs)))
        return self._then(kind, verb, (*self.schema, *outputs), outputs=outputs, **arguments)
