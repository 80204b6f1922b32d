"""Lines of JSON whose fields are maps, as Arrow's parser reads them: it knows no maps, but lists of structs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from airflow_trident.operations.expression_types import kind
from airflow_trident.types import Schema, members

_Rewrite: TypeAlias = Callable[[Any], Any]


class _Real(float):
    """A number as it was written: a decimal may have more digits than a float."""

    text: str

    def __new__(cls, text: str) -> _Real:
        made = super().__new__(cls, text)
        made.text = text
        return made


def with_pairs(lines: bytes, schema: Schema) -> bytes:
    """The lines, with a list of ``{"key": .., "value": ..}`` in the place of each object that is a map in the schema.

    :raises ValueError: a line is no JSON, or an object has a name twice.
    """
    rewrites = {field.name: _rewrite(field.type) for field in schema}
    written = []
    for line in lines.decode().split("\n"):
        if not line.strip():
            continue
        record = json.loads(line, object_pairs_hook=_object, parse_float=_Real)
        if isinstance(record, dict):
            record = {name: rewrites.get(name, _same)(value) for name, value in record.items()}
        written.append(json.dumps(record))
    return "".join(f"{line}\n" for line in written).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return made


def _rewrite(type_text: str) -> _Rewrite:
    """For values of the type. What is not of its shape is left to the parser, which refuses it."""
    inner = {member.name: _rewrite(member.type) for member in members(type_text)}
    shape = kind(type_text)
    if shape == "decimal":
        return lambda value: value.text if isinstance(value, _Real) else value
    if shape == "array":
        element = inner["element"]
        return lambda value: [element(part) for part in value] if isinstance(value, list) else value
    if shape == "map":
        return lambda value: _pairs(value, inner["value"]) if isinstance(value, dict) else value
    if shape == "struct":
        return lambda value: _members(value, inner) if isinstance(value, dict) else value
    return _same


def _pairs(value: dict[str, Any], inner: _Rewrite) -> list[dict[str, Any]]:
    return [{"key": name, "value": inner(part)} for name, part in value.items()]


def _members(value: dict[str, Any], inner: dict[str, _Rewrite]) -> dict[str, Any]:
    return {name: inner.get(name, _same)(part) for name, part in value.items()}


def _same(value: Any) -> Any:
    return value
