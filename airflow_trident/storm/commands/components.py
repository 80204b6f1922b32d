"""``airflow trident qtopology`` and ``airflow trident child``: components in other programs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_trident.cli.console import OK, PROBLEM, UsageError, pairs, trident_command
from airflow_trident.plan.show.explain import explain
from airflow_trident.storm.components.component_trial import try_bolt, try_spout
from airflow_trident.storm.components.multilang import ShellBolt, ShellProgram
from airflow_trident.storm.components.protocol import ChildLimits, reader_of
from airflow_trident.storm.components.qtopology import NodeBolt, NodeProgram
from airflow_trident.storm.components.topology_file import NodeDefinition, TopologyDefinition, read_definition
from airflow_trident.storm.qtopology_import import from_qtopology
from airflow_trident.types import Schema, names_of, parse_declared

if TYPE_CHECKING:
    from airflow_trident.storm.components.bolt import ChildBolt
    from airflow_trident.storm.components.running import ChildSpout

_MAX_S, _IDLE_S = 30.0, 0.5
_SPOOL_DIR = "/spool"
"""A placeholder: plans open no spool."""


# ---- qtopology -------------------------------------------------------------------------------------------------


@trident_command
def check(args: Namespace) -> int | None:
    for line in _described(read_definition(args.file, pairs("--set", args.set))):
        print(line)
    return OK


@trident_command
def plan(args: Namespace) -> int | None:
    topology = from_qtopology(
        args.file,
        overrides=pairs("--set", args.set),
        fields=pairs("--fields-of", args.fields_of),
        spool_dir=_SPOOL_DIR,
    )
    print(explain(topology.compile(), args.format), end="")
    return OK


def _described(definition: TopologyDefinition) -> Iterator[str]:
    workers = f", {len(definition.workers)} workers" if definition.workers else ""
    yield f"{definition.file}: {len(definition.spouts)} spouts, {len(definition.bolts)} bolts{workers}"
    for spout in definition.spouts:
        yield f"  spout {spout.name}: {_what(spout)}"
    for bolt in definition.bolts:
        wires = ", ".join(wire.source + (f":{wire.stream_id}" if wire.stream_id else "") for wire in bolt.inputs)
        yield f"  bolt {bolt.name}: {_what(bolt)} <- {wires}"
    if ends := [node.name for node in definition.ends]:
        yield f"  nobody reads: {', '.join(ends)}"
    for note in definition.notes:
        yield f"  note: {note}"


def _what(node: NodeDefinition) -> str:
    folder = "" if node.type == "sys" else f" in {node.working_dir}"
    return f"{node.type} {' '.join((node.cmd, *node.args))}{folder}{f' @ {node.worker}' if node.worker else ''}"


# ---- child -----------------------------------------------------------------------------------------------------


@trident_command
def try_child(args: Namespace) -> int | None:
    try:
        init = json.loads(args.init)
    except ValueError as error:
        raise UsageError(f"--init {args.init!r} is no JSON ({error}).") from error
    if not isinstance(init, dict):
        raise UsageError(f"--init {args.init!r} is no JSON object.")
    if args.spout:
        try_spout(_spout(args, init), args.max_rows, _say, max_s=_MAX_S, idle_s=_IDLE_S)
        return OK
    schema = parse_declared(args.fields)
    return PROBLEM if try_bolt(_bolt(args, init), names_of(schema), _rows(schema), _say) else OK


def _bolt(args: Namespace, init: dict[str, Any]) -> ChildBolt:
    program, *rest = args.component
    if args.protocol == "multilang":
        return ShellBolt(args.component, cwd=args.working_dir, conf=init)
    if args.protocol == "module":
        return NodeBolt(program, working_dir=args.working_dir, init=init, args=rest)
    return NodeBolt(program, working_dir=args.working_dir, init=init, args=rest, type="subproc", protocol=args.protocol)


def _spout(args: Namespace, init: dict[str, Any]) -> ChildSpout:
    program, *rest = args.component
    if args.protocol == "multilang":
        return ShellProgram(args.component, cwd=args.working_dir, env=None, conf=init, ids=True, limits=ChildLimits())
    is_module = args.protocol == "module"
    return NodeProgram(
        program,
        working_dir=args.working_dir,
        args=rest,
        init=init,
        type="inproc" if is_module else "subproc",
        subtype=None,
        protocol="0.7" if is_module else args.protocol,
        ack="spooled",
        heartbeat_s=None,
        node="node",
        limits=ChildLimits(),
    )


def _rows(schema: Schema) -> Iterator[tuple[Any, ...]]:
    read = reader_of(schema)
    for number, line in enumerate(sys.stdin, 1):
        text = line.removesuffix("\n")
        if [field.type for field in schema] == ["string"]:
            yield (text,)
            continue
        try:
            yield read(json.loads(text))
        except ValueError as error:
            raise UsageError(f"line {number} of the input is no row: {error}.") from error


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message, ensure_ascii=False), flush=True)
