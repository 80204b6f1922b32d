"""Bolts in other programs as streams see them: the description, the verbs, the node of the plan, and its pass.

A bolt is a picklable description: making one starts no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, repeat
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.io.values import UnfitValueError, coerce_column
from airflow_trident.operations.expressions import col
from airflow_trident.operations.interfaces import MakesNode, OperationContext
from airflow_trident.operations.user_code import Border
from airflow_trident.plan.graph import Node, OwnPassNode
from airflow_trident.plan.nodes import EachNode, FilterNode, ProjectNode
from airflow_trident.storm.components.protocol import DEFAULT_STREAM, BoltPlace, ChildComponent
from airflow_trident.topology.stream_base import S, named, then
from airflow_trident.types import Field, FieldSpec, Schema, names_of, parse_declared, require_distinct

if TYPE_CHECKING:
    from airflow_trident.engine.fused.frames import Column, Frame
    from airflow_trident.storm.components.running import Emit

_TAG = "stream_id"


class ChildBolt(ChildComponent, MakesNode):
    """A bolt in another program."""

    @property
    def matches(self) -> bool:
        """Is the row of each emit known?"""
        return True

    @property
    def why_unmatched(self) -> str:
        """Why the row of an emit is not known."""
        return ""

    def declare_output_fields(self, declarer: Any) -> None:
        """Declare what the bolt emits, for a TransactionalTopologyBuilder: override it in a subclass (Storm:
        declareOutputFields). The verbs of a stream take the fields as an argument instead.

        :param declarer: an OutputFieldsDeclarer.
        :raises PlanError: it is not overridden.
        """
        raise PlanError(
            f"{self} does not say what it emits",
            "Make a subclass of it with declare_output_fields(self, declarer), as in "
            'declarer.declare("id, word string").',
        )

    def each_of(self, stream: S, reads: tuple[str, ...], outputs: FieldSpec) -> S:
        """Append each emit to its tuple."""
        if not self.matches:
            raise PlanError(
                f"each got {self}, and {self.why_unmatched}", "Use flat_map() or bolt(), which replace the tuple."
            )
        new = parse_declared(outputs)
        require_distinct((*stream.fields, *names_of(new)))
        return self._node(stream, "each", (*stream.schema, *new), reads, DEFAULT_STREAM, new, keeps_input=True)

    def map_of(self, stream: S, verb: str, outputs: FieldSpec | None) -> S:
        """Replace the tuples by the emits."""
        if verb != "flat_map":
            raise PlanError(f"{verb} got {self}, which may emit any number of tuples", "Use flat_map().")
        if outputs is None:
            raise PlanError(f"flat_map got {self} without fields", 'As in flat_map(bolt, "word string").')
        new = _fields(verb, self, DEFAULT_STREAM, outputs)
        return self._node(stream, verb, new, stream.fields, DEFAULT_STREAM, new)

    def _node(
        self,
        stream: S,
        verb: str,
        schema: Schema,
        reads: tuple[str, ...],
        stream_id: str,
        outputs: Schema,
        *,
        keeps_input: bool = False,
    ) -> S:
        streams = (BoltStream(id=stream_id, outputs=outputs, columns=names_of(outputs)),)
        return then(stream, BoltNode, verb, schema, reads=reads, bolt=self, streams=streams, keeps_input=keeps_input)


# ---- the node ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BoltStream:
    """One stream of a bolt. `outputs`: the fields that it emits there; `columns`: their names in the node's schema."""

    id: str
    outputs: Schema
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class BoltNode(OwnPassNode):
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
        streams = f" on {', '.join(stream.id for stream in self.streams)}" if self.tag else ""
        return f"{self.bolt.describe()}({', '.join(self.reads)}){streams}"

    def needs(self, before: Schema, used: frozenset[str], place: int = 0) -> frozenset[str]:
        columns = {name for stream in self.streams for name in stream.columns}
        return frozenset(self.reads) | (used - columns if self.keeps_input else frozenset())

    def run(self, keep: frozenset[str], context: OperationContext, frames: Iterator[Frame]) -> Iterator[Frame]:
        return _pass(self, keep, context, frames)

    def narrowed(self, used: frozenset[str]) -> Node:
        if not self.keeps_input:
            return self
        (stream,) = self.streams
        return self.with_schema((*self.input.schema, *stream.outputs))


# ---- verbs ---------------------------------------------------------------------------------------------------


def bolt(stream: S, inputs: FieldSpec, bolt: ChildBolt, streams: Mapping[str, FieldSpec]) -> dict[str, S]:
    """Give the tuples to a component in another program. The result has one stream for each of its stream ids.

    ``out = bolt(lines, "line", ShellBolt("python split.py"), {"default": "word string", "long": "word string"})``,
    then ``out["long"]``. `each` and `flat_map` of a stream also take such a bolt, in the place of a function.

    :param streams: stream id -> the fields that the component emits there, with types.
    """
    if not isinstance(bolt, ChildBolt):
        raise PlanError(f"bolt() got {bolt!r}", 'Give a ShellBolt or a NodeBolt, as in ShellBolt("python split.py").')
    if not isinstance(streams, Mapping) or not streams:
        raise PlanError(f"bolt() got {streams!r} for the streams of {bolt}", 'As in {"default": "word string"}.')
    reads = named(stream, "bolt", inputs)
    declared = {name: _fields("bolt", bolt, name, spec) for name, spec in streams.items()}
    if len(declared) == 1:
        ((name, schema),) = declared.items()
        return {name: bolt._node(stream, "bolt", schema, reads, name, schema)}
    columns = _columns(declared)
    tag = _TAG
    while tag in {name for names in columns.values() for name in names}:
        tag += "_"
    fields = {
        name: Field(name, field.type)
        for stream_id, schema in declared.items()
        for name, field in zip(columns[stream_id], schema, strict=True)
    }
    made = then(
        stream,
        BoltNode,
        "bolt",
        (Field(tag, "string"), *fields.values()),
        reads=reads,
        bolt=bolt,
        streams=tuple(BoltStream(id=name, outputs=schema, columns=columns[name]) for name, schema in declared.items()),
        keeps_input=False,
        tag=tag,
    )
    return {name: _one(made, tag, name, schema, columns[name]) for name, schema in declared.items()}


def _one(made: S, tag: str, stream_id: str, schema: Schema, columns: tuple[str, ...]) -> S:
    """The tuples of one stream, with the declared field names."""
    here = col(tag) == stream_id
    stream = then(made, FilterNode, "filter", made.schema, reads=here.reads, expression=here)
    for field, column in zip(schema, columns, strict=True):
        if column != field.name:
            new = (Field(field.name, field.type),)
            before = tuple(column_before for column_before in stream.schema if column_before.name != field.name)
            if len(before) != len(stream.schema):  # another stream has a field of that name
                stream = then(stream, ProjectNode, "project", before)
            renamed = col(column)
            stream = then(
                stream, EachNode, "each", (*before, *new), outputs=new, reads=renamed.reads, expression=renamed
            )
    return then(stream, ProjectNode, "project", schema)


def _columns(declared: Mapping[str, Schema]) -> dict[str, tuple[str, ...]]:
    """Column names of each stream. Fields with the same name and type share a column; with another type they get a
    column of a name that no stream declares, so that no renaming of one field drops the column of another."""
    fields = {field.name for schema in declared.values() for field in schema}
    types: dict[str, str] = {}
    columns = {}
    for stream_id, schema in declared.items():
        names = []
        for field in schema:
            name = field.name
            while types.setdefault(name, field.type) != field.type or (name in fields and name != field.name):
                name += "_"
            names.append(name)
        columns[stream_id] = tuple(names)
    return columns


def _fields(verb: str, bolt: ChildBolt, stream_id: str, spec: FieldSpec) -> Schema:
    schema = parse_declared(spec)
    if not schema:
        raise FieldError(f"{verb} of {bolt} declares no fields for stream {stream_id!r}", "Name one at least.")
    return schema


# ---- the pass ------------------------------------------------------------------------------------------------


def _pass(node: BoltNode, keep: frozenset[str], context: OperationContext, frames: Iterator[Frame]) -> Iterator[Frame]:
    """
    :param keep: the fields that a later node needs.
    :raises UserCodeError: the component failed a row, or emitted something undeclared.
    :raises ChildError: the child died, hung, or broke the protocol.
    :raises ConfigurationError: the program does not exist.
    """
    # Children need a library that the executors of most topologies do not have.
    from airflow_trident.storm.components.running import run_bolt

    border = Border(node.name, node.bolt.describe(), node.reads, context.txid)
    place = BoltPlace(
        node=node.name,
        component=node.component,
        fields=node.reads,
        streams={stream.id: stream.outputs for stream in node.streams},
        matched=node.keeps_input,
        topology=context.topology,
        txid=context.txid,
        attempt=context.attempt,
        partition=context.partition_index,
        partitions=context.num_partitions,
    )
    given_rows = _Given(node.reads, frames)
    made = _Made(node, keep, border, given_rows)
    for some in run_bolt(node.bolt, given_rows.rows(), place, border.error, given_rows.look):
        for frame in made.appended(some.emits) if node.keeps_input else made.instead(some.emits):
            yield frame.only(keep)
        given_rows.drop(some.end)


class _Given:
    """The frames whose rows the child has, or whose emits are still pending."""

    def __init__(self, reads: tuple[str, ...], frames: Iterator[Frame]) -> None:
        self._reads = reads
        self._frames = frames
        self._kept: deque[tuple[int, Frame]] = deque()
        self._looks: Iterator[None] | None = None

    def rows(self) -> Iterator[tuple[Any, ...]]:
        start = 0
        for frame in self._frames:
            if self._looks is None and frame.guard is not None:
                self._looks = frame.guard(repeat(None))
            self._kept.append((start, frame))
            start += frame.rows
            yield from frame.tuples(self._reads)

    def look(self) -> None:
        """Raises if the attempt was cancelled."""
        if self._looks is not None:
            next(self._looks)

    def of(self, row: int) -> tuple[int, Frame]:
        """The frame that contains the row, and the number of its first row."""
        return next(frame for frame in self._kept if row < frame[0] + frame[1].rows)

    def drop(self, end: int) -> None:
        """Rows below `end` are no longer needed."""
        while self._kept and self._kept[0][0] + self._kept[0][1].rows <= end:
            self._kept.popleft()

    def values(self, row: int) -> tuple[Any, ...]:
        from airflow_trident.storm.components.running import NO_ROW

        if row == NO_ROW:
            return ()
        start, frame = self.of(row)
        return frame.row(self._reads, row - start)


@dataclass
class _Made:
    """Emits as frames of the node's schema."""

    _node: BoltNode
    _keep: frozenset[str]
    _border: Border
    _given: _Given

    def appended(self, emits: list[Emit]) -> Iterator[Frame]:
        """Appended to their rows."""
        import numpy as np

        (stream,) = self._node.streams
        for start, some in groupby(emits, lambda emit: self._given.of(emit.row)[0]):
            here = list(some)
            _, frame = self._given.of(here[0].row)
            kept = frame.take(np.asarray([emit.row - start for emit in here]), self._keep)
            yield kept.with_columns(self._columns(stream, here))

    def instead(self, emits: list[Emit]) -> Iterator[Frame]:
        """In place of the rows."""
        from airflow_trident.engine.fused.frames import Frame  # a DAG needs no engine to be built

        if not emits:
            return
        if not self._node.tag:
            (stream,) = self._node.streams
            yield Frame(len(emits), self._columns(stream, emits))
            return
        columns: dict[str, Column] = {
            name: [None] * len(emits) for stream in self._node.streams for name in stream.columns
        }
        tags: list[str] = [""] * len(emits)
        for number, stream in enumerate(self._node.streams):
            places = [place for place, emit in enumerate(emits) if emit.stream == number]
            for name, values in self._columns(stream, [emits[place] for place in places]).items():
                column = columns[name]
                for place, value in zip(places, values, strict=True):
                    column[place] = value
            for place in places:
                tags[place] = stream.id
        yield Frame(len(emits), {self._node.tag: tags, **columns})

    def _columns(self, stream: BoltStream, emits: list[Emit]) -> dict[str, Column]:
        columns: dict[str, Column] = {}
        for place, (field, name) in enumerate(zip(stream.outputs, stream.columns, strict=True)):
            values = [emit.values[place] for emit in emits]
            try:
                columns[name] = list(coerce_column(values, field.type))
            except UnfitValueError as error:
                row = self._given.values(emits[error.position].row)
                raise self._border.error(row, f"gave {error}") from error
        return columns
