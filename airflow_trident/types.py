"""Fields and their types, in the words of Spark's DDL. Pure: neither Arrow nor Spark is imported here.

A *schema* is a tuple of :class:`Field`. Users write it as text (``"word string, n long"``), as names alone if the types
can be inferred, or as a list of either.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

from airflow_trident.errors import FieldError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Values allowed in metadata: they must survive ``json.dumps``/``json.loads`` unchanged."""

WHOLE_TYPES = {"byte": 2**7, "short": 2**15, "int": 2**31, "long": 2**63}
"""Type -> limit of its whole numbers: they go from -limit to below limit."""
REAL_TYPES = ("float", "double")
INTERVAL = "interval day to second"
LONGEST_INTERVAL = datetime.timedelta(days=2**63 // 86_400_000_000)
"""The most days that a long of microseconds can hold."""
SIMPLE_TYPES = ("string", *WHOLE_TYPES, *REAL_TYPES, "boolean", "binary", "date", "time", "timestamp", INTERVAL)
_ALIASES = {
    "tinyint": "byte",
    "smallint": "short",
    "integer": "int",
    "bigint": "long",
    "str": "string",
    "bool": "boolean",
    "bytes": "binary",
    "time(6)": "time",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TIME = re.compile(r"(?:\A|[<,:])time(?:\Z|[>,])")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)\Z")
_NESTED = re.compile(r"(array|map|struct)\s*<(.*)>\Z", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column. `type` is normalised Spark DDL: ``long``, ``decimal(10,2)``, ``array<string>``,
    ``map<string,long>``, ``struct<name:string,tags:array<string>>``."""

    name: str
    type: str

    def __str__(self) -> str:
        return f"{self.name} {self.type}"


Schema: TypeAlias = tuple[Field, ...]
FieldSpec: TypeAlias = "str | Sequence[str]"
"""How users name fields: ``"a"``, ``"a, b"``, ``["a", "b"]``; new fields with types, as in ``"a string"``."""


def parse_type(text: str) -> str:
    """Normalise a DDL type.

    :raises FieldError: the type is not one of string, byte, short, int, long, float, double, boolean, binary, date,
        time, timestamp, interval day to second, decimal(p,s), array<type>, map<type,type> (keys of a simple type, but
        not of real numbers: NaN and -0.0 cannot be keys), struct<name:type,...>.
    """
    if match := _NESTED.match(text.strip()):
        return _parse_nested(match[1].lower(), match[2], text.strip())
    plain = " ".join(text.lower().split())
    plain = _ALIASES.get(plain, plain)
    if plain in SIMPLE_TYPES:
        return plain
    if match := _DECIMAL.match(plain):
        return f"decimal({match[1]},{match[2]})"
    raise FieldError(
        f"unknown type {text.strip()!r}",
        f"Use one of {', '.join(SIMPLE_TYPES)}, decimal(p,s), array<type>, map<type,type>, struct<name:type,...>.",
    )


def _parse_nested(kind: str, inside: str, text: str) -> str:
    parts = _split(inside)
    if kind == "array" and len(parts) == 1:
        return f"array<{parse_type(inside)}>"
    if kind == "map" and len(parts) == 2:
        key, value = map(parse_type, parts)
        if is_nested(key) or key in REAL_TYPES:
            raise FieldError(f"{text!r} has keys of type {key}", "Use a simple type that is no real number.")
        return f"map<{key},{value}>"
    if kind == "struct" and any(parts):
        require_distinct(_member(part)[0].lower() for part in parts)
        return f"struct<{','.join(map(_parse_member, parts))}>"
    raise FieldError(f"unknown type {text!r}", "Write array<type>, map<type,type>, struct<name:type,...>.")


def _parse_member(text: str) -> str:
    name, written = _member(text)
    if not _NAME.match(name) or not written:
        raise FieldError(f"{text!r} is no member of a struct", "Write it as name:type.")
    return f"{name}:{parse_type(written)}"


def _member(text: str) -> tuple[str, str]:
    """A member's name and type: ``name:type`` or, as in Spark, ``name type``."""
    name, _, written = re.sub(r"^(\w+)\s*:\s*", r"\1 ", text.strip()).partition(" ")
    return name, written.strip()


def _split(text: str) -> list[str]:
    """The parts between the commas that are outside of all brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def is_nested(type_text: str) -> bool:
    """Does a value of this type have parts: is it an array, a map or a struct?"""
    return type_text.endswith(">")


def has_members(type_text: str) -> bool:
    """Is the type a map or a struct, or does it contain one?"""
    return "map<" in type_text or "struct<" in type_text


def has_times(type_text: str) -> bool:
    """Is the type a time of day, or does it contain one?"""
    return bool(_TIME.search(type_text))


def has_reals(type_text: str) -> bool:
    """Is the type a real number, or does it contain one?"""
    return any(real in type_text for real in REAL_TYPES)


def members(type_text: str) -> Schema:
    """The parts of a nested type: ``element`` of an array, ``key`` and ``value`` of a map, the members of a struct;
    empty for other types."""
    match = _NESTED.match(type_text)
    if match is None:
        return ()
    kind, inside = match[1], _split(match[2])
    if kind == "struct":
        return tuple(Field(*_member(part)) for part in inside)
    return tuple(map(Field, ("element",) if kind == "array" else ("key", "value"), inside))


def paths_of(schema: Schema) -> list[str]:
    """The fields and all their parts: ``s``, ``s.a``, ``xs.element``, ``m.key``, ``m.value``."""
    paths: list[str] = []
    for field in schema:
        paths.append(field.name)
        paths.extend(f"{field.name}.{path}" for path in paths_of(members(field.type)))
    return paths


def split_spec(spec: FieldSpec) -> tuple[str, ...]:
    """Split ``"a, b decimal(3,1)"`` or a sequence of such texts into single declarations.

    :raises FieldError: it is neither. A mapping would lose its types, and a set has no order.
    """
    has_order = isinstance(spec, Iterable) and not isinstance(spec, bytes | Mapping | set | frozenset)
    texts: list[str] = [spec] if isinstance(spec, str) or not has_order else list(spec)  # type: ignore[list-item]
    if not all(isinstance(text, str) for text in texts):
        raise FieldError(f"fields were given as {spec!r}", 'Write them as a text, as in "word string, n long".')
    parts: list[str] = []
    for text in texts:
        parts.extend(_split(text))
    return tuple(part for part in parts if part)


def joined_specs(*specs: FieldSpec) -> FieldSpec:
    """One specification of several, as in ``group_by("day", "sku")``."""
    return specs[0] if len(specs) == 1 else [part for spec in specs for part in split_spec(spec)]


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
    """New fields: ``"word string"``, or ``"word"`` if `inferred` has the type at that position.

    :raises FieldError: a name is no identifier or occurs twice, or its type is neither written nor inferred.
    """
    fields: list[Field] = []
    for index, part in enumerate(split_spec(spec)):
        name, _, written = part.partition(" ")
        name = name.removesuffix(":")
        if not _NAME.match(name):
            raise FieldError(f"{name!r} is not a field name", "A name has letters, digits and underscores.")
        inferred_type = inferred[index] if index < len(inferred) else None
        if not written and inferred_type is None:
            raise FieldError(
                f"the type of the new field {name!r} is not known",
                f'Write it, as in "{name} string", or annotate what the function returns.',
            )
        fields.append(Field(name, parse_type(written) if written else str(inferred_type)))
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


def select(schema: Schema, names: Sequence[str], subject: str) -> Schema:
    """The named fields in the order given.

    :param subject: the operation, for the error text.
    :raises FieldError: a name is not in `schema`; the text suggests a similar name.
    """
    by_name = {field.name: field for field in schema}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else "Use one of these."
            raise FieldError(
                f"{subject}: no field {name!r} in the stream, which has ({', '.join(by_name)})",
                hint,
            )
    return tuple(by_name[name] for name in names)
