"""Values as numbers, texts and bytes, for stores with fewer types than a topology.

Dates, times and timestamps (UTC) are ISO 8601, decimals are text, an interval is its microseconds, NaN is the text
``NaN``. Arrays, maps and structs are JSON: an array is a list, a struct an object, a map an object if its keys are
strings, else a list of pairs. Bytes inside JSON are hexadecimal.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, TypeAlias

from airflow_trident.operations.equality import canonical_key, canonical_real
from airflow_trident.operations.evaluate import interval_of, microseconds_of
from airflow_trident.types import INTERVAL, REAL_TYPES, Field, is_nested, members

Coder: TypeAlias = Callable[[Any], Any]
compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""JSON text without spaces."""


def key_text(fields: Sequence[Field], key: Sequence[Any]) -> str:
    """The key as canonical JSON text: equal keys have equal texts."""
    parts = zip(fields, canonical_key(key), strict=True)
    return compact([json_part(encoder(field.type)(part)) for field, part in parts])


# ---- one value -------------------------------------------------------------------------------------------------


@cache
def encoder(type_text: str) -> Coder:
    """Converts from Python to numbers, texts and bytes. Timestamps without a zone are UTC."""
    if type_text.startswith("decimal"):
        return optional(lambda value: format(value, "f"))
    if is_nested(type_text):
        code = json_coder(type_text, _json_encoder)
        return optional(lambda value: compact(code(value)))
    kinds: dict[str, Coder] = {
        "double": real,
        "float": real,
        "boolean": optional(int),
        "date": optional(lambda value: value.isoformat()),
        "time": optional(lambda value: value.isoformat(timespec="microseconds")),
        "timestamp": optional(_timestamp),
        INTERVAL: optional(microseconds_of),
    }
    return kinds.get(type_text, same)


@cache
def key_encoder(type_text: str) -> Coder:
    """As :func:`encoder`, for a field of a key: equal keys become equal values."""
    return optional(lambda value: real(canonical_real(value))) if type_text in REAL_TYPES else encoder(type_text)


@cache
def decoder(type_text: str) -> Coder:
    """Converts back to Python: the values that Arrow gives for the type."""
    if type_text.startswith("decimal"):
        return optional(Decimal)
    if is_nested(type_text):
        code = json_coder(type_text, json_decoder, decodes=True)
        return optional(lambda value: code(json.loads(value)))
    kinds: dict[str, Coder] = {
        "double": optional(float),
        "float": optional(float),
        "boolean": optional(bool),
        "date": optional(datetime.date.fromisoformat),
        "time": optional(datetime.time.fromisoformat),
        "timestamp": optional(datetime.datetime.fromisoformat),
        INTERVAL: optional(interval_of),
    }
    return kinds.get(type_text, same)


def _json_encoder(type_text: str) -> Coder:
    code = encoder(type_text)
    return lambda value: json_part(code(value))


def json_decoder(type_text: str) -> Coder:
    """Converts a value inside JSON text back."""
    return optional(bytes.fromhex) if type_text == "binary" else decoder(type_text)


def json_part(value: Any) -> Any:
    """An encoded value in the form for JSON text."""
    return value.hex() if isinstance(value, bytes) else value


def same(value: Any) -> Any:
    return value


def real(value: Any) -> Any:
    if value is None:
        return None
    return "NaN" if math.isnan(value) else value


def _timestamp(value: datetime.datetime) -> str:
    zoned = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    return zoned.isoformat(timespec="microseconds")


# ---- values with parts -----------------------------------------------------------------------------------------


def json_coder(type_text: str, leaf: Callable[[str], Coder], *, decodes: bool = False) -> Coder:
    """Converts values that are not None to what ``json.dumps`` accepts, or back.

    :param leaf: gives the same conversion for a simple type.
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
        return lambda value: {key(name): part(content) for name, content in value.items()}
    if decodes:
        return lambda value: {key(name): part(content) for name, content in value}
    return lambda value: [[key(name), part(content)] for name, content in value.items()]


def optional(code: Coder) -> Coder:
    return lambda value: None if value is None else code(value)
