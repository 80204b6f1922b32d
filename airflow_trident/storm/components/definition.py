"""Reads and compiles a topology file of qtopology: JSON with spouts, bolts and variables. Starts no process.

It reads both generations (:mod:`airflow_trident.storm.components.schema`), and refuses what is not supported here, with
the reason (qtopology: TopologyCompiler, validate).
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.storm.components.schema import require_fit
from airflow_trident.storm.components.variables import Variables
from airflow_trident.types import Json


class Generation(StrEnum):
    """Of the file; its keys tell."""

    SEED = "seed"
    """Has workers or a coordinator's port (0.1 to 0.5): nodes are programs."""
    MODULES = "modules"
    """Has neither (0.6 to 2.3): nodes are modules, unless their type says otherwise."""


_SEED_KEYS = ("name", "coordination_port")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDefinition:
    """A spout or a bolt that is not disabled, with its variables resolved.

    :param working_dir: as in the file; relative to the folder in which the topology runs.
    :param cmd: file, class, function, standard node or program, by `type`.
    :param init: what the node gets when it starts.
    :param worker: name of the worker, in a file with workers.
    """

    name: str
    type: str
    working_dir: str
    cmd: str
    args: tuple[str, ...] = ()
    init: Mapping[str, Json] = field(default_factory=dict, repr=False)
    subtype: str | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a bolt. `stream_id`: None is the default stream."""

    source: str
    stream_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltDefinition(NodeDefinition):
    """`inputs`: in the order of the file. An input that is listed twice gives every tuple twice."""

    inputs: tuple[Input, ...]
    allow_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDefinition:
    """A compiled file.

    :param file: its path, for errors.
    :param name: the name in the file's ``general``, or None.
    :param bolts: bolts with at least one live input, each after its sources.
    :param notes: what was left out or is not used, one sentence each.
    """

    file: str
    generation: Generation
    name: str | None
    heartbeat_ms: int
    weight: int
    worker_affinity: tuple[str, ...]
    workers: tuple[str, ...]
    spouts: tuple[NodeDefinition, ...]
    bolts: tuple[BoltDefinition, ...]
    notes: tuple[str, ...]

    def streams_of(self, source: str) -> tuple[str | None, ...]:
        """The stream ids of a node that have a reader, each once; None is the default stream."""
        wires = (wire for bolt in self.bolts for wire in bolt.inputs if wire.source == source)
        return tuple(dict.fromkeys(wire.stream_id for wire in wires))

    @property
    def ends(self) -> tuple[NodeDefinition, ...]:
        """Nodes whose tuples nobody reads."""
        return tuple(node for node in (*self.spouts, *self.bolts) if not self.streams_of(node.name))


def read_definition(path: str | Path, overrides: Mapping[str, str] | None = None) -> TopologyDefinition:
    """Read and compile a file, which may have ``//`` and ``/* */`` comments.

    :param overrides: values of variables that replace those of the file.
    :raises ConfigurationError: the file is missing or no JSON, or as :func:`compile_definition`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(
            f"the topology file {str(path)!r} cannot be read ({error.strerror})", "Name a file of qtopology."
        ) from error
    except UnicodeDecodeError as error:
        raise _error(str(path), "it is no UTF-8", "Save it as UTF-8.") from error
    try:
        config = json.loads(without_comments(text))
    except ValueError as error:
        raise _error(str(path), f"it is no JSON ({error})", "Correct it there; comments may stay.") from error
    return compile_definition(config, file=str(path), overrides=overrides)


def compile_definition(
    config: Any, *, file: str = "the definition", overrides: Mapping[str, str] | None = None
) -> TopologyDefinition:
    """:param config: as ``json.loads`` returns it; it is not changed.

    :raises ConfigurationError: an unknown or missing key, worker, source or variable, a repeated name, a cycle, or
        something unsupported; names file, node and cure.
    """
    require_fit(file, config)
    config = copy.deepcopy(config)
    general, notes = config["general"], list[str]()
    variables = Variables(file, config["variables"], overrides)
    seed = "workers" in config or any(key in general for key in _SEED_KEYS)
    workers = tuple(worker["name"] for worker in config.get("workers", ()))
    _require_distinct(file, config, workers)
    _refuse_hooks(file, general, variables)
    if "coordination_port" in general:
        notes.append("coordination_port is not used: workers meet in ZooKeeper")
    known = {node["name"] for kind in ("spouts", "bolts") for node in config[kind]}
    spouts: list[NodeDefinition] = []
    bolts: list[BoltDefinition] = []
    for kind in ("spout", "bolt"):
        for node in config[f"{kind}s"]:
            where = f"{kind} {node['name']!r}"
            # A disabled node is checked, too: one changed word would enable it.
            common = _node(file, node, where, variables, workers, seed)
            wires = _inputs(file, node, where, variables, known, notes) if kind == "bolt" else ()
            if _is_disabled(node, where, variables):
                notes.append(f"{where} is disabled")
            elif kind == "spout":
                spouts.append(NodeDefinition(**common))
            else:
                bolts.append(BoltDefinition(**common, inputs=wires, allow_parallel=node.get("allow_parallel", False)))
    variables.require_used()
    return TopologyDefinition(
        file=file,
        generation=Generation.SEED if seed else Generation.MODULES,
        name=general.get("name"),
        heartbeat_ms=general["heartbeat"],
        weight=general.get("weight", 1),
        worker_affinity=tuple(general.get("worker_affinity", ())),
        workers=workers,
        spouts=tuple(spouts),
        bolts=_behind_sources(file, spouts, bolts, notes),
        notes=tuple(notes),
    )


# ---- one node --------------------------------------------------------------------------------------------------


def _node(
    file: str, node: dict[str, Any], where: str, variables: Variables, workers: tuple[str, ...], seed: bool
) -> dict[str, Any]:
    worker = node.get("worker")
    if worker is not None and worker not in workers:
        raise _error(
            file,
            f"{where} is of the unknown worker {worker!r}",
            f"The workers are: {', '.join(workers)}." if workers else "The file has no workers: leave it out.",
        )
    if workers and worker is None:
        raise _error(file, f"{where} has no 'worker'", f"Give it one of {', '.join(workers)}.")
    subtype = node.get("subtype")
    return {
        "name": node["name"],
        "type": node.get("type", "subproc" if seed else "inproc"),
        "working_dir": variables.text(node["working_dir"], f"{where}, working_dir,"),
        "cmd": variables.text(node["cmd"], f"{where}, cmd,"),
        "args": tuple(variables.text(one, f"{where}, args,") for one in node.get("args", ())),
        "init": variables.resolve(node["init"], f"{where}, init,"),
        "subtype": None if subtype is None else variables.text(subtype, f"{where}, subtype,"),
        "worker": worker,
    }


def _inputs(
    file: str, bolt: dict[str, Any], where: str, variables: Variables, known: set[str], notes: list[str]
) -> tuple[Input, ...]:
    wires = []
    for wire in bolt["inputs"]:
        source, stream_id = wire["source"], wire.get("stream_id") or None
        if source not in known:
            raise _error(
                file,
                f"{where[0].upper()}{where[1:]} is using unknown input source {source!r}",
                f"The nodes are: {', '.join(sorted(known))}.",
            )
        if _is_disabled(wire, f"{where}, input {source!r},", variables):
            notes.append(f"{where}: its input {source!r} is disabled")
        else:
            wires.append(Input(source=source, stream_id=None if stream_id == "$default" else stream_id))
    return tuple(wires)


def _is_disabled(part: Mapping[str, Any], where: str, variables: Variables) -> bool:
    """Is `disabled` true, or a text whose resolved value is exactly ``true``?"""
    said = part.get("disabled", False)
    return variables.text(said, f"{where} disabled").strip() == "true" if isinstance(said, str) else bool(said)


# ---- the whole -------------------------------------------------------------------------------------------------


def _require_distinct(file: str, config: Mapping[str, Any], workers: tuple[str, ...]) -> None:
    if name := _twice(workers):
        raise _error(file, f"Worker name {name!r} occurs several times", "Give each its own name.")
    spouts = [spout["name"] for spout in config["spouts"]]
    if name := _twice(spouts):
        raise _error(file, f"Spout name {name!r} occurs several times", "Give each its own name.")
    if name := _twice([*spouts, *(bolt["name"] for bolt in config["bolts"])]):
        raise _error(
            file, f"Bolt name {name!r} occurs several times. Could also be spout's name", "Give each its own name."
        )
    for node in (*config["spouts"], *config["bolts"]):
        if node["name"] in workers:
            raise _error(file, f"{node['name']!r} is the name of a node and of a worker", "Rename one of them.")


def _twice(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _refuse_hooks(file: str, general: Mapping[str, Any], variables: Variables) -> None:
    """Refuse code that runs in the nodes' process before or after all nodes."""
    for key in ("initialization", "shutdown", "shutdown_hard"):
        hooks = general.get(key, ())
        for index, hook in enumerate((hooks,) if isinstance(hooks, dict) else hooks):
            where = f"general.{key}" if hook is hooks else f"general.{key}[{index}]"
            if not _is_disabled(hook, where, variables):
                raise _error(
                    file,
                    f"{where} ({hook['cmd']}) cannot run: no process lives as long as the topology, each node of each "
                    "batch is a process of its own",
                    'Move it into the init of the nodes that need it, or set "disabled": true.',
                )


def _behind_sources(
    file: str, spouts: list[NodeDefinition], bolts: list[BoltDefinition], notes: list[str]
) -> tuple[BoltDefinition, ...]:
    """The bolts, each after its sources, without inputs from disabled nodes and without bolts that have no input."""
    live = {node.name for node in (*spouts, *bolts)}
    left = [replace(bolt, inputs=tuple(wire for wire in bolt.inputs if wire.source in live)) for bolt in bolts]
    while idle := [bolt.name for bolt in left if not bolt.inputs]:
        notes.extend(f"bolt {name!r} is left out: nothing comes into it" for name in idle)
        left = [
            replace(bolt, inputs=tuple(wire for wire in bolt.inputs if wire.source not in idle))
            for bolt in left
            if bolt.name not in idle
        ]
    placed, ordered = {spout.name for spout in spouts}, list[BoltDefinition]()
    while left:
        ready = [bolt for bolt in left if all(wire.source in placed for wire in bolt.inputs)]
        if not ready:
            raise _error(
                file,
                f"a circle of bolts: {_circle(left, placed)}",
                "A batch goes through every bolt once: put what is repeated into one bolt.",
            )
        ordered += ready
        placed |= {bolt.name for bolt in ready}
        left = [bolt for bolt in left if bolt.name not in placed]
    return tuple(ordered)


def _circle(left: list[BoltDefinition], placed: set[str]) -> str:
    """The path of a cycle. Every bolt of `left` waits for another one, so following the sources reaches one twice."""
    waits = {bolt.name: next(wire.source for wire in bolt.inputs if wire.source not in placed) for bolt in left}
    way = [left[0].name]
    while way[-1] not in way[:-1]:
        way.append(waits[way[-1]])
    return " -> ".join(reversed(way[way.index(way[-1]) :]))


_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_comments(text: str) -> str:
    """The JSON with blanks for comments, so that lines and columns stay the same."""

    def kept(token: re.Match[str]) -> str:
        return token[0] if token[0].startswith('"') else re.sub(r"[^\n]", " ", token[0])

    return _TOKEN.sub(kept, text)


def _error(file: str, what: str, cure: str) -> ConfigurationError:
    return ConfigurationError(f"{file}: {what}", cure)
