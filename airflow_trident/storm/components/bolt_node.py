"""The node kind for bolts in other programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.plan.graph import Node, ProcessorNode
from airflow_trident.types import Schema

if TYPE_CHECKING:
    from airflow_trident.storm.components.bolt import ChildBolt


@dataclass(frozen=True, kw_only=True)
class BoltStream:
    """One stream of a bolt. `outputs`: the fields that it emits there; `columns`: their names in the node's schema."""

    id: str
    outputs: Schema
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoltNode(ProcessorNode):
    """A bolt in another program: `bolt` gets the values of `reads`.

    `keeps_input`: an emit is appended to the tuple that it belongs to; otherwise it replaces that tuple. `tag`: the
    field, if there are several streams, that gets the id of an emit's stream; then fields of other streams are null.
    """

    reads: tuple[str, ...]
    bolt: ChildBolt
    streams: tuple[BoltStream, ...]
    keeps_input: bool
    tag: str = ""

    @property
    def component(self) -> str:
        """The label (`Stream.name`), which stays when other nodes come or go; the node's name if it has none."""
        return self.name.rpartition(".")[0] or self.name

    @property
    def what(self) -> str:
        streams = f" on {', '.join(one.id for one in self.streams)}" if self.tag else ""
        return f"{self.bolt.describe()}({', '.join(self.reads)}){streams}"

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        given = {name for one in self.streams for name in one.columns}
        return frozenset(self.reads) | (used - given if self.keeps_input else frozenset())

    def narrowed(self, used: frozenset[str]) -> Node:
        if not self.keeps_input:
            return self
        (stream,) = self.streams
        return self.with_schema((*self.input.schema, *stream.outputs))
