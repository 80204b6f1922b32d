"""Verbs for bolts in other programs."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.expr.tree import col
from airflow_trident.plan.nodes import EachNode, FilterNode, ProjectNode
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.bolt_node import BoltNode, BoltStream
from airflow_trident.storm.components.talk import DEFAULT_STREAM
from airflow_trident.topology.stream_base import S, named, then
from airflow_trident.types import Field, FieldSpec, Schema, names_of, parse_declared, require_distinct

_TAG = "stream_id"


def each(stream: S, reads: tuple[str, ...], bolt: ChildBolt, outputs: FieldSpec) -> S:
    """Append each emit to its tuple."""
    if not bolt.matches:
        raise PlanError(
            f"each got {bolt}, and {bolt.why_unmatched}", "Use flat_map() or bolt(), which replace the tuple."
        )
    new = parse_declared(outputs)
    require_distinct((*stream.fields, *names_of(new)))
    return then(
        stream,
        BoltNode,
        "each",
        (*stream.schema, *new),
        reads=reads,
        bolt=bolt,
        streams=(_stream(DEFAULT_STREAM, new),),
        keeps_input=True,
    )


def flat_map(stream: S, verb: str, bolt: ChildBolt, outputs: FieldSpec | None) -> S:
    """Replace the tuples by the emits."""
    if verb != "flat_map":
        raise PlanError(f"{verb} got {bolt}, which may emit any number of tuples", "Use flat_map().")
    if outputs is None:
        raise PlanError(f"flat_map got {bolt} without fields", 'As in flat_map(bolt, "word string").')
    new = _fields("flat_map", bolt, DEFAULT_STREAM, outputs)
    return then(
        stream,
        BoltNode,
        verb,
        new,
        reads=stream.fields,
        bolt=bolt,
        streams=(_stream(DEFAULT_STREAM, new),),
        keeps_input=False,
    )


def bolt(stream: S, inputs: FieldSpec, bolt: ChildBolt, streams: Mapping[str, FieldSpec]) -> dict[str, S]:
    """A stream of emits for each stream id."""
    if not isinstance(bolt, ChildBolt):
        raise PlanError(f"bolt() got {bolt!r}", 'Give a ShellBolt or a NodeBolt, as in ShellBolt("python split.py").')
    if not isinstance(streams, Mapping) or not streams:
        raise PlanError(f"bolt() got {streams!r} for the streams of {bolt}", 'As in {"default": "word string"}.')
    reads = named(stream, "bolt", inputs)
    declared = {name: _fields("bolt", bolt, name, spec) for name, spec in streams.items()}
    if len(declared) == 1:
        ((name, schema),) = declared.items()
        only = then(
            stream,
            BoltNode,
            "bolt",
            schema,
            reads=reads,
            bolt=bolt,
            streams=(_stream(name, schema),),
            keeps_input=False,
        )
        return {name: only}
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
    one = then(made, FilterNode, "filter", made.schema, reads=here.reads, expression=here)
    for field, column in zip(schema, columns, strict=True):
        if column != field.name:
            new = (Field(field.name, field.type),)
            before = tuple(given for given in one.schema if given.name != field.name)
            if len(before) != len(one.schema):  # another stream has a field of that name
                one = then(one, ProjectNode, "project", before)
            renamed = col(column)
            one = then(one, EachNode, "each", (*before, *new), outputs=new, reads=renamed.reads, expression=renamed)
    return then(one, ProjectNode, "project", schema)


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


def _stream(stream_id: str, schema: Schema) -> BoltStream:
    return BoltStream(id=stream_id, outputs=schema, columns=names_of(schema))


def _fields(verb: str, bolt: ChildBolt, stream_id: str, spec: FieldSpec) -> Schema:
    schema = parse_declared(spec)
    if not schema:
        raise FieldError(f"{verb} of {bolt} declares no fields for stream {stream_id!r}", "Name one at least.")
    return schema
