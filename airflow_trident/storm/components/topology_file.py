"""Reads and compiles a topology file of qtopology: JSON with spouts, bolts and variables. Starts no process.

It reads both generations, and refuses what is not supported here, with the reason (qtopology: TopologyCompiler,
validate).

The keys of a qtopology file, of both generations, and the type of each.

The first generation (0.1 to 0.5) has workers, a coordinator's port and programs with arguments; the second (0.6 to 2.3)
has modules, weights and telemetry. A file may have keys of both.

The variables of a qtopology file: each ``${NAME}`` in a text is replaced.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Json

TYPES = ("inproc", "module_class", "module_method", "sys", "subproc")
"""The kinds of nodes: a file with ``create()``, a class or function of a module, a standard node, a program."""

Requirement = Callable[[Any, str], None]
"""Takes a value and its place, ``bolt 'b'.inputs[0]``; raises Misfit."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one object."""

    required: Mapping[str, Requirement]
    optional: Mapping[str, Requirement]

    def __call__(self, value: Any, location: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(location, f"is {shown(value)}", "Make it an object, {...}.")
        keys = {**self.required, **self.optional}
        for key in value:
            if key not in keys:
                near = get_close_matches(key, keys, 1)
                listed = f"Did you mean {near[0]!r}?" if near else f"The keys are: {', '.join(sorted(keys))}."
                raise Misfit(location, f"has an unknown key {key!r}", listed)
        for key in self.required:
            if key not in value:
                raise Misfit(location, f"has no {key!r}", "Add it.")
        for key, member in value.items():
            keys[key](member, f"{location}.{key}" if location else key)


@dataclass(frozen=True, slots=True)
class List:
    """A list whose items all meet one requirement. `called`: the word for an item that has a name."""

    each: Requirement
    called: str = ""

    def __call__(self, value: Any, location: str) -> None:
        if not isinstance(value, list):
            raise Misfit(location, f"is {shown(value)}", "Make it a list, [...].")
        for index, member in enumerate(value):
            name = member.get("name") if isinstance(member, dict) and self.called else None
            self.each(member, f"{self.called} {name!r}" if isinstance(name, str) else f"{location}[{index}]")


class Misfit(Exception):
    """A value is not what it must be. :param cure: one sentence."""

    def __init__(self, location: str, problem: str, cure: str) -> None:
        super().__init__(f"{location} {problem}. {cure}")
        self.where, self.what, self.cure = location, problem, cure


def require_fit(file: str, value: Any) -> None:
    """:raises ConfigurationError: a key is unknown or missing, or its value is wrong."""
    try:
        TOPOLOGY(value, "")
    except Misfit as misfit:
        raise ConfigurationError(f"{file}: {misfit.where or 'the file'} {misfit.what}", misfit.cure) from None


def shown(value: Any) -> str:
    return json.dumps(value)[:80]


def _text(value: Any, location: str) -> None:
    if not isinstance(value, str):
        raise Misfit(location, f"is {shown(value)}", "Make it a text.")


def _name(value: Any, location: str) -> None:
    _text(value, location)
    if not value.strip():
        raise Misfit(location, "is empty", "Give it a name.")


def _stream(value: Any, location: str) -> None:
    if value is not None:
        _text(value, location)


def _whole(value: Any, location: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(location, f"is {shown(value)}", "Make it a whole number.")


def _milliseconds(value: Any, location: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Misfit(location, f"is {shown(value)}", "Make it a whole number of milliseconds, above 0.")


def _truth(value: Any, location: str) -> None:
    if not isinstance(value, bool):
        raise Misfit(location, f"is {shown(value)}", "Make it true or false.")


def _disabled(value: Any, location: str) -> None:
    if not isinstance(value, bool | str):
        raise Misfit(location, f"is {shown(value)}", 'Make it true, false, or a text such as "${FLAG}".')


def _type(value: Any, location: str) -> None:
    if value not in TYPES:
        raise Misfit(location, f"is {shown(value)}", f"Use one of {', '.join(TYPES)}.")


def _object(value: Any, location: str) -> None:
    if not isinstance(value, dict):
        raise Misfit(location, f"is {shown(value)}", "Make it an object, {...}.")


_NODE: Mapping[str, Requirement] = {"name": _name, "working_dir": _text, "cmd": _text, "init": _object}
_NODE_TOO: Mapping[str, Requirement] = {
    "type": _type,
    "subtype": _text,
    "args": List(_text),
    "worker": _name,
    "disabled": _disabled,
    "telemetry_timeout": _whole,
    "description": _text,
}
_INPUT = Keys({"source": _name}, {"stream_id": _stream, "disabled": _disabled})
_HOOK = Keys({"working_dir": _text, "cmd": _text}, {"init": _object, "disabled": _disabled})


def _hooks(value: Any, location: str) -> None:
    """A list of hooks, or a single one."""
    if isinstance(value, dict):
        _HOOK(value, location)
    else:
        List(_HOOK)(value, location)


_WRAPPER = Keys(
    {},
    {
        "log_level": _text,
        "ping_parent_timeout": _whole,
        "ping_parent_interval": _whole,
        "ping_child_timeout": _whole,
        "ping_child_interval": _whole,
    },
)
_GENERAL = Keys(
    {"heartbeat": _milliseconds},
    {
        "name": _name,
        "coordination_port": _whole,
        "description": _text,
        "weight": _whole,
        "worker_affinity": List(_text),
        "pass_binary_messages": _truth,
        "wrapper": _WRAPPER,
        "initialization": _hooks,
        "shutdown": _hooks,
        "shutdown_hard": _hooks,
    },
)
TOPOLOGY = Keys(
    {
        "general": _GENERAL,
        "spouts": List(Keys(_NODE, _NODE_TOO), "spout"),
        "bolts": List(
            Keys({**_NODE, "inputs": List(_INPUT)}, {**_NODE_TOO, "allow_parallel": _truth}),
            "bolt",
        ),
        "variables": _object,
    },
    {"workers": List(Keys({"name": _name}, {"description": _text}), "worker")},
)


_USE = re.compile(r"\$\{([^{}]*)\}")


class Variables:
    """Names, whose case does not count, and their values. A value may use other variables, in any order.

    (qtopology's TopologyCompiler replaces only the first of several equal uses, and leaves unknown ones as they are.)

    :param declared: ``variables`` of the file.
    :param overrides: values that replace those of the file. An undeclared name may be set, if the file uses it.
    """

    def __init__(self, file: str, declared: Mapping[str, Json], overrides: Mapping[str, str] | None = None) -> None:
        self._file = file
        self._values: dict[str, str] = {}
        for name, value in declared.items():
            if name.lower() in self._values:
                raise self._error(
                    f"the variable {name!r} is declared twice", "Give each a name of its own; case does not count."
                )
            self._values[name.lower()] = self._text(name, value)
        self._set = {name.lower(): name for name in overrides or {}}
        self._unknown = self._set.keys() - self._values.keys()
        self._values.update({name.lower(): value for name, value in (overrides or {}).items()})

    def resolve(self, value: Json, location: str) -> Json:
        """The value with every text in it resolved, at any depth. Numbers and keys stay as they are.

        :param location: for errors: ``bolt 'b', init``.
        :raises ConfigurationError: a variable is unknown, or its value uses the variable itself.
        """
        if isinstance(value, str):
            return self.text(value, location)
        if isinstance(value, list):
            return [self.resolve(member, location) for member in value]
        if isinstance(value, dict):
            return {key: self.resolve(member, location) for key, member in value.items()}
        return value

    def text(self, text: str, location: str, within: tuple[str, ...] = ()) -> str:
        """As :meth:`resolve`. :param within: the variables whose values are being resolved."""

        def value(use: re.Match[str]) -> str:
            name = use[1].strip().lower()
            if name in within:
                circle = " -> ".join((*within[within.index(name) :], name))
                raise self._error(
                    f"the variable {use[1]!r} stands in its own value ({circle})", "Take it out.", location
                )
            if name not in self._values:
                raise self._error(f"uses the unknown variable {use[0]}", f"{self._known(use[1])} Or set it.", location)
            self._unknown -= {name}
            return self.text(self._values[name], location, (*within, name))

        return _USE.sub(value, text)

    def require_used(self) -> None:
        """:raises ConfigurationError: an override is neither declared nor used in the file."""
        if self._unknown:
            name = self._set[min(self._unknown)]
            raise self._error(f"the variable {name!r} was set, and is not in the file", self._known(name))

    def _text(self, name: str, value: Json) -> str:
        if isinstance(value, dict | list) or value is None:
            raise self._error(f"the variable {name!r} is {json.dumps(value)[:80]}", "Give it a text.")
        return value if isinstance(value, str) else json.dumps(value)

    def _known(self, name: str) -> str:
        near = get_close_matches(name.lower(), self._values.keys() - self._unknown, 1)
        listed = ", ".join(sorted(self._values.keys() - self._unknown)) or "none"
        return f"Did you mean {near[0]!r}?" if near else f"There are: {listed}."

    def _error(self, problem: str, cure: str, location: str = "") -> ConfigurationError:
        return ConfigurationError(f"{self._file}: {f'{location} ' if location else ''}{problem}", cure)


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
    node_names = {node["name"] for kind in ("spouts", "bolts") for node in config[kind]}
    spouts: list[NodeDefinition] = []
    bolts: list[BoltDefinition] = []
    for kind in ("spout", "bolt"):
        for node in config[f"{kind}s"]:
            location = f"{kind} {node['name']!r}"
            # A disabled node is checked, too: one changed word would enable it.
            common = _node(file, node, location, variables, workers, seed)
            wires = _inputs(file, node, location, variables, node_names, notes) if kind == "bolt" else ()
            if _is_disabled(node, location, variables):
                notes.append(f"{location} is disabled")
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
    file: str, node: dict[str, Any], location: str, variables: Variables, workers: tuple[str, ...], seed: bool
) -> dict[str, Any]:
    worker = node.get("worker")
    if worker is not None and worker not in workers:
        raise _error(
            file,
            f"{location} is of the unknown worker {worker!r}",
            f"The workers are: {', '.join(workers)}." if workers else "The file has no workers: leave it out.",
        )
    if workers and worker is None:
        raise _error(file, f"{location} has no 'worker'", f"Give it one of {', '.join(workers)}.")
    subtype = node.get("subtype")
    return {
        "name": node["name"],
        "type": node.get("type", "subproc" if seed else "inproc"),
        "working_dir": variables.text(node["working_dir"], f"{location}, working_dir,"),
        "cmd": variables.text(node["cmd"], f"{location}, cmd,"),
        "args": tuple(variables.text(argument, f"{location}, args,") for argument in node.get("args", ())),
        "init": variables.resolve(node["init"], f"{location}, init,"),
        "subtype": None if subtype is None else variables.text(subtype, f"{location}, subtype,"),
        "worker": worker,
    }


def _inputs(
    file: str, bolt: dict[str, Any], location: str, variables: Variables, node_names: set[str], notes: list[str]
) -> tuple[Input, ...]:
    wires = []
    for wire in bolt["inputs"]:
        source, stream_id = wire["source"], wire.get("stream_id") or None
        if source not in node_names:
            raise _error(
                file,
                f"{location[0].upper()}{location[1:]} is using unknown input source {source!r}",
                f"The nodes are: {', '.join(sorted(node_names))}.",
            )
        if _is_disabled(wire, f"{location}, input {source!r},", variables):
            notes.append(f"{location}: its input {source!r} is disabled")
        else:
            wires.append(Input(source=source, stream_id=None if stream_id == "$default" else stream_id))
    return tuple(wires)


def _is_disabled(part: Mapping[str, Any], location: str, variables: Variables) -> bool:
    """Is `disabled` true, or a text whose resolved value is exactly ``true``?"""
    disabled = part.get("disabled", False)
    return (
        variables.text(disabled, f"{location} disabled").strip() == "true"
        if isinstance(disabled, str)
        else bool(disabled)
    )


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
            location = f"general.{key}" if hook is hooks else f"general.{key}[{index}]"
            if not _is_disabled(hook, location, variables):
                raise _error(
                    file,
                    f"{location} ({hook['cmd']}) cannot run: no process lives as long as the topology, each node of "
                    "each batch is a process of its own",
                    'Move it into the init of the nodes that need it, or set "disabled": true.',
                )


def _behind_sources(
    file: str, spouts: list[NodeDefinition], bolts: list[BoltDefinition], notes: list[str]
) -> tuple[BoltDefinition, ...]:
    """The bolts, each after its sources, without inputs from disabled nodes and without bolts that have no input."""
    live = {node.name for node in (*spouts, *bolts)}
    remaining = [replace(bolt, inputs=tuple(wire for wire in bolt.inputs if wire.source in live)) for bolt in bolts]
    while idle := [bolt.name for bolt in remaining if not bolt.inputs]:
        notes.extend(f"bolt {name!r} is left out: nothing comes into it" for name in idle)
        remaining = [
            replace(bolt, inputs=tuple(wire for wire in bolt.inputs if wire.source not in idle))
            for bolt in remaining
            if bolt.name not in idle
        ]
    placed, ordered = {spout.name for spout in spouts}, list[BoltDefinition]()
    while remaining:
        ready = [bolt for bolt in remaining if all(wire.source in placed for wire in bolt.inputs)]
        if not ready:
            raise _error(
                file,
                f"a circle of bolts: {_circle(remaining, placed)}",
                "A batch goes through every bolt once: put what is repeated into one bolt.",
            )
        ordered += ready
        placed |= {bolt.name for bolt in ready}
        remaining = [bolt for bolt in remaining if bolt.name not in placed]
    return tuple(ordered)


def _circle(remaining: list[BoltDefinition], placed: set[str]) -> str:
    """The path of a cycle. Every bolt of `remaining` waits for another, so following the sources reaches one twice."""
    waits = {bolt.name: next(wire.source for wire in bolt.inputs if wire.source not in placed) for bolt in remaining}
    way = [remaining[0].name]
    while way[-1] not in way[:-1]:
        way.append(waits[way[-1]])
    return " -> ".join(reversed(way[way.index(way[-1]) :]))


_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def without_comments(text: str) -> str:
    """The JSON with blanks for comments, so that lines and columns stay the same."""

    def kept(token: re.Match[str]) -> str:
        return token[0] if token[0].startswith('"') else re.sub(r"[^\n]", " ", token[0])

    return _TOKEN.sub(kept, text)


def _error(file: str, problem: str, cure: str) -> ConfigurationError:
    return ConfigurationError(f"{file}: {problem}", cure)
