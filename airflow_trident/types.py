"""Fields and their types, in the words of Spark's DDL. Pure: neither Arrow nor Spark is imported here.

A *schema* is a tuple of :class:`Field`. Users write it as text (``"word string, n long"``), as names only where the
types can be inferred, or as a list of either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

from airflow_trident.errors import FieldError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What may be put into metadata: it must survive ``json.dumps``/``json.loads`` unchanged."""

SIMPLE_TYPES = ("string", "long", "int", "double", "float", "boolean", "binary", "date", "timestamp")
_ALIASES = {"bigint": "long", "integer": "int", "str": "string", "bool": "boolean", "bytes": "binary"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)\Z")
_ARRAY = re.compile(r"array<(.+)>\Z")


@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column. `type` is normalised Spark DDL: ``long``, ``array<string>``, ``decimal(10,2)``."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


Schema: TypeAlias = tuple[Field, ...]
FieldSpec: TypeAlias = "str | Sequence[str]"
"""How users name fields: ``"a"``, ``"a, b"``, ``["a", "b"]``; with types, ``"a string"``, where fields are new."""


def parse_type(text: str) -> str:
    """Normalise a DDL type.

    :raises FieldError: the type is not one of string, long, int, double, float, boolean, binary, date, timestamp,
        decimal(p,s), array<...>.
    """
    plain = text.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain in SIMPLE_TYPES:
        return plain
    if match := _DECIMAL.match(plain):
        return f"decimal({match[1]},{match[2]})"
    if match := _ARRAY.match(plain):
        return f"array<{parse_type(match[1])}>"
    raise FieldError(
        f"unknown type {text.strip()!r}",
        f"Use one of {', '.join(SIMPLE_TYPES)}, decimal(p,s), array<type>.",
    )


def split_spec(spec: FieldSpec) -> tuple[str, ...]:
    """Split ``"a, b decimal(3,1)"`` or a sequence of such texts into single declarations."""
    texts = [spec] if isinstance(spec, str) else list(spec)
    parts: list[str] = []
    for text in texts:
        parts.extend(part.strip() for part in re.split(r",(?![^(<]*[)>])", text))
    return tuple(part for part in parts if part)


def parse_names(spec: FieldSpec) -> tuple[str, ...]:
    """Field names without types.

    :raises FieldError: a part is not an identifier.
    """
    names = split_spec(spec)
    for name in names:
        if not _NAME.match(name):
            raise FieldError(f"{name!r} is not a field name", "A name has letters, digits and underscores.")
    return names


def parse_declared(spec: FieldSpec, inferred: Sequence[str | None] = ()) -> Schema:
    """New fields: ``"word string"``, or ``"word"`` where `inferred` holds the type at that position.

    :raises FieldError: a name is no identifier, is doubled, or its type is neither written nor inferred.
    """
    fields: list[Field] = []
    for index, part in enumerate(split_spec(spec)):
        name, _, written = part.partition(" ")
        name = name.removesuffix(":")
        if not _NAME.match(name):
            raise FieldError(f"{name!r} is not a field name", "A name has letters, digits and underscores.")
        known = inferred[index] if index < len(inferred) else None
        if not written and known is None:
            raise FieldError(
                f"the type of the new field {name!r} is not known",
                f'Write it, as in "{name} string", or annotate what the function returns.',
            )
        fields.append(Field(name, parse_type(written) if written else str(known)))
    require_distinct(field.name for field in fields)
    return tuple(fields)


def require_distinct(names: Iterable[str]) -> None:
    """:raises FieldError: a name occurs twice (Trident: "duplicate field")."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FieldError(f"duplicate field {name!r}", "Give the new field another name.")
        seen.add(name)


def names_of(schema: Schema) -> tuple[str, ...]:
    return tuple(field.name for field in schema)


def ddl(schema: Schema) -> str:
    """Spark DDL text of a schema."""
    return ", ".join(str(field) for field in schema)


def select(schema: Schema, names: Sequence[str], where: str) -> Schema:
    """The named fields in the order given.

    :param where: the operation, for the error text.
    :raises FieldError: a name is not in `schema`; near misses are suggested.
    """
    by_name = {field.name: field for field in schema}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Use one of these."
            raise FieldError(
                f"{where}: no field {name!r} in the stream, which has ({', '.join(by_name)})",
                hint,
            )
    return tuple(by_name[name] for name in names)
