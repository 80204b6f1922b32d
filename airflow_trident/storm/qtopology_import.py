"""Makes a topology from a topology file of qtopology: spouts write spools, bolts are children, wires are streams."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.operations.expressions import col, lit
from airflow_trident.operations.interfaces import Function, OperationContext
from airflow_trident.storm.components.bolt import bolt as bolt_verb
from airflow_trident.storm.components.bolt_sink import BoltSink
from airflow_trident.storm.components.imported_bolt import WHOLE, ImportedBolt
from airflow_trident.storm.components.protocol import DEFAULT_STREAM, reader_of
from airflow_trident.storm.components.spouts import NodeSpout
from airflow_trident.storm.components.telemetry import TELEMETRY
from airflow_trident.storm.components.topology_file import (
    BoltDefinition,
    Input,
    NodeDefinition,
    TopologyDefinition,
    read_definition,
)
from airflow_trident.storm.workers.deployment import PlacementHints
from airflow_trident.topology.stream import Stream
from airflow_trident.topology.topology import Topology
from airflow_trident.types import FieldSpec, Schema, ddl, names_of, parse_declared

States = Mapping[str, Callable[[Stream], Any]]
_STREAM, _DATA = "stream_id", "data"
_SERVERS = {"rest": "a queue that the requests go into", "dir": "a FileSpout of the folder"}
"""Standard spouts that wait to be called by others, and what to use instead."""


class ImportedTopology(Topology):
    """The topology of a qtopology file.

    `placement_hints`: the workers that the file names, for `airflow trident deploy`.
    """

    placement_hints = PlacementHints()


def from_qtopology(
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    overrides: Mapping[str, str] | None = None,
    fields: Mapping[str, FieldSpec] | None = None,
    spool_dir: str,
    states: States | None = None,
    working_dir: str | None = None,
    protocol: str = "0.7",
) -> ImportedTopology:
    """The topology of a qtopology file, with its spouts and bolts unmodified.

    ``from_qtopology("topology.json", spool_dir="/shared/spool", fields={"split": "word string"},
    states={"split": lambda words: words.group_by("word").persistent_aggregate(state, Count(), "n")})``

    :param name: default: the name in the file's ``general``, or the name of the file.
    :param overrides: values of variables that replace those of the file.
    :param fields: node -> the fields that its state gets; default: one, ``data string``, the JSON text of the object.
        The next node gets whole objects.
    :param spool_dir: a durable, shared folder for the spools of the spouts.
    :param states: node -> a function that ends its default stream in a state. A bolt without readers that is not named
        here is a sink: it gets its rows in the commit phase, and the topology is not exactly once.
    :param working_dir: the base of the nodes' relative folders; default: the file's folder.
    :param protocol: the protocol of programs (`type` subproc), "0.7" or "seed".
    :raises ConfigurationError: the file is wrong or uses something unsupported; names file, node and cure.
    """
    definition = read_definition(os.fspath(file), overrides)
    return _Import(definition, name, fields or {}, spool_dir, states or {}, working_dir, protocol).topology


class _Import:
    def __init__(
        self,
        definition: TopologyDefinition,
        name: str | None,
        fields: Mapping[str, FieldSpec],
        spool_dir: str,
        states: States,
        working_dir: str | None,
        protocol: str,
    ) -> None:
        self._found, self._states, self._protocol = definition, states, protocol
        self._folder = os.path.abspath(working_dir or os.path.dirname(definition.file) or ".")
        self._require_known("fields", fields)
        self._require_known("states", states)
        self._fields = {node: parse_declared(spec) for node, spec in fields.items()}
        sinks = {node.name for node in definition.ends if node.name not in states} & {
            bolt.name for bolt in definition.bolts
        }
        self.topology = ImportedTopology(
            name or definition.name or os.path.splitext(os.path.basename(definition.file))[0], exactly_once=not sinks
        )
        self.topology.placement_hints = PlacementHints(
            workers=definition.workers, weight=definition.weight, affinity=definition.worker_affinity
        )
        self._streams: dict[tuple[str, str], Stream] = {}
        for spout in definition.spouts:
            self._spout(spout, os.path.join(spool_dir, self.topology.name, spout.name))
        for bolt in definition.bolts:
            self._bolt(bolt, is_sink=bolt.name in sinks)
        for node, state in states.items():
            state(self._of_fields(node))

    def _require_known(self, option: str, by_node: Mapping[str, Any]) -> None:
        node_names = [node.name for node in (*self._found.spouts, *self._found.bolts)]
        for name in by_node:
            if name not in node_names:
                raise ConfigurationError(
                    f"{self._found.file}: {option} names the node {name!r}", f"The nodes are: {', '.join(node_names)}."
                )

    def _schema(self, node: str) -> Schema:
        """What a node emits: whole objects if another node reads it, as in qtopology, else the declared fields."""
        return WHOLE if self._found.streams_of(node) else self._fields.get(node, WHOLE)

    def _of_fields(self, node: str) -> Stream:
        """The default stream of a node, for the verbs of a state."""
        stream, schema = self._streams[node, DEFAULT_STREAM], self._fields.get(node, WHOLE)
        return stream if stream.schema == schema else stream.map(_Members(node, schema), ddl(schema))

    def _ids(self, node: str) -> tuple[str, ...]:
        """The streams of a node that are read."""
        read = [DEFAULT_STREAM if stream_id is None else stream_id for stream_id in self._found.streams_of(node)]
        return tuple(dict.fromkeys((*read, DEFAULT_STREAM) if node in self._states else read))

    def _options(self, node: NodeDefinition) -> dict[str, Any]:
        return {
            "working_dir": os.path.join(self._folder, node.working_dir),
            "args": node.args,
            "init": node.init,
            "type": node.type,
            "subtype": node.subtype,
            "protocol": self._protocol,
            "heartbeat_s": self._found.heartbeat_ms / 1000,
        }

    def _spout(self, node: NodeDefinition, folder: str) -> None:
        ids = self._ids(node.name)
        if not ids:
            return  # nobody would read what it emits
        if node.type == "sys" and node.cmd in _SERVERS:
            raise ConfigurationError(
                f"{self._found.file}: spout {node.name!r} ({node.cmd}) serves for as long as it lives, and no process "
                "lives as long as the topology",
                f"Use {_SERVERS[node.cmd]}.",
            )
        schema = self._schema(node.name)
        spout = NodeSpout(
            node.cmd,
            f"{_STREAM} string, {ddl(schema)}",
            folder,
            whole=schema == WHOLE,
            stream_field=_STREAM,
            **self._options(node),
        )
        stream = self.topology.new_stream(node.name, spout)
        for stream_id in ids:
            self._streams[node.name, stream_id] = stream.filter(col(_STREAM) == stream_id).project(names_of(schema))

    def _bolt(self, node: BoltDefinition, *, is_sink: bool) -> None:
        wires = [self._wire(node, wire) for wire in node.inputs]
        rows = wires[0] if len(wires) == 1 else self.topology.merge(wires)
        try:
            bolt = ImportedBolt(node.cmd, allow_parallel=node.allow_parallel, **self._options(node))
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._found.file}: bolt {node.name!r}: {error.message}", error.cure) from error
        if is_sink:
            rows.partition_persist(BoltSink(bolt), [_STREAM, _DATA], name=node.name)
            return
        schema = self._schema(node.name)
        streams = {stream_id: ddl(WHOLE if stream_id == TELEMETRY else schema) for stream_id in self._ids(node.name)}
        made = bolt_verb(rows.name(node.name), [_STREAM, _DATA], bolt, streams)
        for stream_id, stream in made.items():
            self._streams[node.name, stream_id] = stream

    def _wire(self, node: BoltDefinition, wire: Input) -> Stream:
        """Tuples of stream id and text, so that nodes of all kinds fit together."""
        if wire.stream_id == TELEMETRY and wire.source in {spout.name for spout in self._found.spouts}:
            raise ConfigurationError(
                f"{self._found.file}: bolt {node.name!r} reads the telemetry of the spout {wire.source!r}, which has "
                "none: it is asked before a transaction begins",
                'Set "disabled": true at that input, or read the telemetry of a bolt.',
            )
        stream = self._streams[wire.source, wire.stream_id or DEFAULT_STREAM]
        return stream.each(lit(wire.stream_id or ""), f"{_STREAM} string").project([_STREAM, _DATA])


class _Members(Function):
    """The JSON text of a node's object as its declared fields."""

    def __init__(self, node: str, schema: Schema) -> None:
        self.__qualname__ = f"fields[{node!r}]"
        self._schema = schema

    def prepare(self, context: OperationContext) -> None:
        self._read = reader_of(self._schema)

    def execute(self, *values: Any) -> tuple[Any, ...]:
        return self._read(json.loads(values[0]))
