"""The base of streams: a node of the graph, to which verbs append more nodes.

Handles on states, which streams can query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.plan.graph import Node
from airflow_trident.topology.node_graph import NodeGraph
from airflow_trident.types import FieldSpec, Schema, ddl, names_of, parse_names, require_distinct, select


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StreamBase:
    """A stream as verbs see it. They return a stream of the same class.

    :param node: the node of the plan that produces the stream's tuples.
    :param label: a prefix for the names of the following nodes.
    """

    topology: NodeGraph
    node: Node
    label: str = ""

    def __post_init__(self) -> None:
        self.topology.queries.note(self.node)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.node.name}: {ddl(self.schema)})"

    @property
    def schema(self) -> Schema:
        return self.node.schema

    @property
    def fields(self) -> tuple[str, ...]:
        """Field names in order."""
        return names_of(self.node.schema)


S = TypeVar("S", bound=StreamBase)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class GroupedBase(Generic[S]):
    """A grouped stream as verbs see it; `keys` are the group fields."""

    stream: S
    keys: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.keys)} of {self.stream!r})"


def named(stream: StreamBase, verb: str, names: FieldSpec) -> tuple[str, ...]:
    """The fields that the user named.

    :raises FieldError: the stream has no such field.
    """
    wanted = parse_names(names)
    select(stream.schema, wanted, f"{verb} in topology {stream.topology.name!r}")
    return wanted


def some(stream: StreamBase, verb: str, names: FieldSpec, instead: str) -> tuple[str, ...]:
    """As `named`, with at least one field.

    :raises PlanError: no field is named; `instead` is the cure in the error.
    """
    wanted = named(stream, verb, names)
    if not wanted:
        raise PlanError(f"{verb} in topology {stream.topology.name!r} got no fields", instead)
    return wanted


def staged_fields(stream: StreamBase, verb: str, names: FieldSpec) -> Schema:
    """As `named`, for what is staged under the names of its fields.

    :raises FieldError: a field is named twice.
    """
    wanted = named(stream, verb, names)
    for name in wanted:
        if wanted.count(name) > 1:
            raise FieldError(
                f"{verb} in topology {stream.topology.name!r} got the field {name!r} twice",
                'Name it once, or copy it before, as in each(col("n"), "copy").',
            )
    return select(stream.schema, wanted, verb)


def then(
    stream: S,
    kind: Callable[..., Node],
    verb: str,
    schema: Schema,
    *,
    others: Iterable[StreamBase] = (),
    **arguments: Any,
) -> S:
    """Append a node of this kind.

    :param others: further input streams of the node, after this one.
    """
    name = stream.topology.next_name(f"{stream.label}.{verb}" if stream.label else verb)
    inputs = (stream.node, *(other.node for other in others))
    return replace(stream, node=kind(name=name, schema=schema, inputs=inputs, **arguments))


def append(stream: S, kind: Callable[..., Node], verb: str, *, outputs: Schema, **arguments: Any) -> S:
    """As `then`, with `outputs` appended to the fields."""
    require_distinct((*stream.fields, *names_of(outputs)))
    return then(stream, kind, verb, (*stream.schema, *outputs), outputs=outputs, **arguments)


class StateHandle:
    """A state, and the topology that updates it (None for a static state)."""

    def __init__(self, spec: StateSpec, topology: NodeGraph | None) -> None:
        self.spec = spec
        self._topology = topology

    @property
    def topology(self) -> NodeGraph | None:
        return self._topology

    @property
    def name(self) -> str:
        return self.spec.name


class StaticState(StateHandle):
    """A handle on a state that streams can query but not update (Trident: newStaticState)."""

    def __init__(self, spec: StateSpec) -> None:
        super().__init__(spec, None)
