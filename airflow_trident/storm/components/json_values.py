"""Converts a child's JSON to values. Times, bytes and decimals are texts in JSON (ISO 8601, base64, digits)."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Optional, TypeAlias, TypedDict

import msgspec

from airflow_trident.types import INTERVAL, WHOLE_TYPES, Schema, members

STRING = "string"
Reader: TypeAlias = Callable[[Any], tuple[Any, ...]]
"""Makes a tuple of a list of values, or of a dict of fields. Raises ValueError."""

_TEXTS: dict[str, Any] = {
    "binary": bytes,
    "date": datetime.date,
    "time": datetime.time,
    "timestamp": datetime.datetime,
    INTERVAL: datetime.timedelta,
}


def _needs(type_text: str) -> bool:
    """Is a value, or a part of it, a text in JSON and something else here?"""
    parts = members(type_text)
    if type_text.startswith("map<") and parts[0].type != STRING:
        return True
    if parts:
        return any(_needs(part.type) for part in parts)
    return type_text in _TEXTS or type_text.startswith("decimal")


def reader_of(schema: Schema) -> Reader:
    """A reader for these fields. Types are checked later, as for the outputs of a function."""
    names = tuple(field.name for field in schema)
    texts = [(place, field.type, _python(field.type)) for place, field in enumerate(schema) if _needs(field.type)]

    def read(given: Any) -> tuple[Any, ...]:
        if isinstance(given, dict):
            values: Any = tuple(map(given.get, names))
        elif isinstance(given, list) and len(given) == len(names):
            values = tuple(given)
        else:
            raise ValueError(f"{_short(given)}, where {len(names)} values ({', '.join(names)}) are declared")
        return _with_texts(values, texts) if texts else values

    return read


def _with_texts(values: tuple[Any, ...], texts: list[tuple[int, str, Any]]) -> tuple[Any, ...]:
    whole = list(values)
    for place, name, kind in texts:
        try:
            whole[place] = msgspec.convert(whole[place], kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"{_short(whole[place])}, where {name} is declared: {error}") from error
    return tuple(whole)


def _python(type_text: str) -> Any:
    """The type to which msgspec converts a JSON value."""
    if type_text in _TEXTS:
        return Optional[_TEXTS[type_text]]  # noqa: UP045 - of a value
    if type_text.startswith("decimal"):
        return Decimal | None
    if not _needs(type_text):
        return Optional[int] if type_text in WHOLE_TYPES else Any  # noqa: UP045 - of a value
    inner = [_python(member.type) for member in members(type_text)]
    if type_text.startswith("array<"):
        return Optional[list[inner[0]]]  # type: ignore[valid-type] # noqa: UP045
    if type_text.startswith("map<"):
        named_by = members(type_text)[0].type
        key = str if named_by == STRING else int if named_by in WHOLE_TYPES else inner[0]
        return Optional[dict[key, inner[1]]]  # type: ignore[valid-type] # noqa: UP045
    named = {member.name: one for member, one in zip(members(type_text), inner, strict=True)}
    return Optional[TypedDict("Members", named, total=False)]  # type: ignore[operator] # noqa: UP045


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
