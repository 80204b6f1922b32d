"""Arrays, maps and structs as JSON, for stores without such types: an array is a list, a struct an object, a map an
object if its keys are strings, else a list of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from airflow_trident.types import members

Coder: TypeAlias = Callable[[Any], Any]


def json_coder(type_text: str, leaf: Callable[[str], Coder], *, decodes: bool = False) -> Coder:
    """From values that are not None to what ``json.dumps`` takes, or back from it.

    :param leaf: for a simple type the function that does the same for its values.
    """
    inner = {member.name: optional(json_coder(member.type, leaf, decodes=decodes)) for member in members(type_text)}
    if not inner:
        return leaf(type_text)
    if type_text.startswith("array"):
        return lambda value: [inner["element"](part) for part in value]
    if type_text.startswith("struct"):
        return lambda value: {name: code(value[name]) for name, code in inner.items()}
    key, part = inner["key"], inner["value"]
    if type_text.startswith("map<string,"):
        return lambda value: {key(name): part(one) for name, one in value.items()}
    if decodes:
        return lambda value: {key(name): part(one) for name, one in value}
    return lambda value: [[key(name), part(one)] for name, one in value.items()]


def optional(code: Coder) -> Coder:
    return lambda value: None if value is None else code(value)
