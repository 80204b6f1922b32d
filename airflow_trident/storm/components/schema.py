"""The keys of a qtopology file, of both generations, and the type of each.

The first generation (0.1 to 0.5) has workers, a coordinator's port and programs with arguments; the second (0.6 to 2.3)
has modules, weights and telemetry. A file may have keys of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from airflow_trident.errors import ConfigurationError

TYPES = ("inproc", "module_class", "module_method", "sys", "subproc")
"""The kinds of nodes: a file with ``create()``, a class or function of a module, a standard node, a program."""

Requirement = Callable[[Any, str], None]
"""Takes a value and its place, ``bolt 'b'.inputs[0]``; raises Misfit."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one object."""

    required: Mapping[str, Requirement]
    optional: Mapping[str, Requirement]

    def __call__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise Misfit(where, f"is {shown(value)}", "Make it an object, {...}.")
        known = {**self.required, **self.optional}
        for key in value:
            if key not in known:
                near = get_close_matches(key, known, 1)
                listed = f"Did you mean {near[0]!r}?" if near else f"The keys are: {', '.join(sorted(known))}."
                raise Misfit(where, f"has an unknown key {key!r}", listed)
        for key in self.required:
            if key not in value:
                raise Misfit(where, f"has no {key!r}", "Add it.")
        for key, one in value.items():
            known[key](one, f"{where}.{key}" if where else key)


@dataclass(frozen=True, slots=True)
class List:
    """A list whose items all meet one requirement. `called`: the word for an item that has a name."""

    each: Requirement
    called: str = ""

    def __call__(self, value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise Misfit(where, f"is {shown(value)}", "Make it a list, [...].")
        for index, one in enumerate(value):
            name = one.get("name") if isinstance(one, dict) and self.called else None
            self.each(one, f"{self.called} {name!r}" if isinstance(name, str) else f"{where}[{index}]")


class Misfit(Exception):
    """A value is not what it must be. :param cure: one sentence."""

    def __init__(self, where: str, what: str, cure: str) -> None:
        super().__init__(f"{where} {what}. {cure}")
        self.where, self.what, self.cure = where, what, cure


def require_fit(file: str, value: Any) -> None:
    """:raises ConfigurationError: a key is unknown or missing, or its value is wrong."""
    try:
        TOPOLOGY(value, "")
    except Misfit as misfit:
        raise ConfigurationError(f"{file}: {misfit.where or 'the file'} {misfit.what}", misfit.cure) from None


def shown(value: Any) -> str:
    return json.dumps(value)[:80]


def _text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise Misfit(where, f"is {shown(value)}", "Make it a text.")


def _name(value: Any, where: str) -> None:
    _text(value, where)
    if not value.strip():
        raise Misfit(where, "is empty", "Give it a name.")


def _stream(value: Any, where: str) -> None:
    if value is not None:
        _text(value, where)


def _whole(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(where, f"is {shown(value)}", "Make it a whole number.")


def _milliseconds(value: Any, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise Misfit(where, f"is {shown(value)}", "Make it a whole number of milliseconds, above 0.")


def _truth(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise Misfit(where, f"is {shown(value)}", "Make it true or false.")


def _disabled(value: Any, where: str) -> None:
    if not isinstance(value, bool | str):
        raise Misfit(where, f"is {shown(value)}", 'Make it true, false, or a text such as "${FLAG}".')


def _type(value: Any, where: str) -> None:
    if value not in TYPES:
        raise Misfit(where, f"is {shown(value)}", f"Use one of {', '.join(TYPES)}.")


def _object(value: Any, where: str) -> None:
    if not isinstance(value, dict):
        raise Misfit(where, f"is {shown(value)}", "Make it an object, {...}.")


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


def _hooks(value: Any, where: str) -> None:
    """A list of hooks, or a single one."""
    if isinstance(value, dict):
        _HOOK(value, where)
    else:
        List(_HOOK)(value, where)


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
