"""Rewrites lines of JSON for Arrow's parser, which knows structs and lists, but no maps. It also changes decimals with
an exponent or with many digits, and ends the process for some."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from math import isinf
from typing import Any, TypeAlias

from airflow_trident.io.values import exact_decimal
from airflow_trident.operations.expressions import decimal_parts, kind
from airflow_trident.types import Schema, members

_Rewrite: TypeAlias = Callable[[Any], Any]


class Real(float):
    """A number with its text: a decimal may have more digits than a float."""

    text: str

    def __new__(cls, text: str) -> Real:
        made = super().__new__(cls, text)
        if isinf(made) and text.lstrip("-") != "Infinity":
            raise ValueError(f"the number {text} is too big")
        made.text = text
        return made


_SHAPES = bytes.maketrans(b'123456789.E-:[,{}]"\t\r ', b"0000000000e+||||||||||")
"""Digits become 0, signs +, and what is beside numbers |."""
_EXPONENT = re.compile(rb"[|+]0+e\+?0+(?=\|)")
_MANY = b"0" * 39
_LONG = re.compile(rb"[^0]0{39}")
_encode = json.JSONEncoder(check_circular=False).encode


def for_arrow(lines: bytes, schema: Schema) -> bytes:
    """The lines as Arrow's parser takes them for what they are: all of them rewritten if a field has a map, else those
    with a number that it would change as a decimal.

    :raises ValueError, ArithmeticError: see :func:`_rewritten`.
    """
    if any("map<" in field.type for field in schema):
        return _rewritten(lines, schema)
    if not any("decimal(" in field.type for field in schema):
        return lines
    parts, done = list[bytes](), 0
    for at in _doubtful_numbers(lines):
        if at < done:
            continue
        begin, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        parts += [lines[done:begin], _rewritten(lines[begin:end], schema)]
        done = end
    return b"".join([*parts, lines[done:]]) if parts else lines


def _doubtful_numbers(lines: bytes) -> list[int]:
    """Where there are numbers with an exponent, or with many digits; in rising order. Numbers in texts count, too."""
    shapes = lines.translate(_SHAPES)
    with_exponent = _EXPONENT.finditer(shapes) if b"0e0" in shapes or b"0e+" in shapes else ()
    long = _LONG.finditer(shapes) if _MANY in shapes else ()
    return sorted(match.start() + 1 for match in (*with_exponent, *long))


def _rewritten(lines: bytes, schema: Schema) -> bytes:
    """The lines, with ``{"key": [..], "value": [..]}`` instead of each object that is a map in the schema, and with
    texts of plain digits instead of decimals.

    :raises ValueError, ArithmeticError: a line is not JSON, an object has a name twice, or a decimal does not fit.
    """
    decode = json.JSONDecoder(object_pairs_hook=distinct, parse_float=Real).decode
    rewrites = {field.name: rewrite for field in schema if (rewrite := _rewrite(field.type)) is not _same}
    written = []
    for line in lines.decode("utf-8-sig").split("\n"):
        if not line.strip(" \t\r"):
            continue
        record = decode(line)
        if isinstance(record, dict):
            for name, rewrite in rewrites.items():
                if name in record:
                    record[name] = rewrite(record[name])
        written.append(_encode(record))
    return "\n".join(written).encode()


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """:raises ValueError: a name is there twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return made


def _rewrite(type_text: str) -> _Rewrite:
    """The function that rewrites values of the type. A value of another shape stays: the parser refuses it."""
    inner = {member.name: _rewrite(member.type) for member in members(type_text)}
    shape = kind(type_text)
    if shape == "decimal":
        return lambda value: _plain_decimal(value, type_text)
    if shape == "array":
        element = inner["element"]
        return lambda value: [element(part) for part in value] if isinstance(value, list) else value
    if shape == "map":
        part = inner["value"]
        return lambda value: _lists(value, part) if isinstance(value, dict) else value
    if shape == "struct":
        return lambda value: _members(value, inner) if isinstance(value, dict) else value
    return _same


def _plain_decimal(value: Any, type_text: str) -> Any:
    """
    :raises ValueError, ArithmeticError: it is no such decimal.
    """
    return value if value is None or isinstance(value, bool) else format(decimal_in_json(value, type_text), "f")


def decimal_in_json(value: Any, type_text: str) -> Decimal:
    """The decimal that a number or text of JSON is.

    :raises ValueError, ArithmeticError: it is no such decimal.
    """
    parts = decimal_parts(type_text)
    if parts is None or type(value) not in (int, str, Real):
        raise ValueError(f"it is no {type_text}")
    return exact_decimal(value.text if isinstance(value, Real) else value, *parts)


def _lists(value: dict[str, Any], inner: _Rewrite) -> dict[str, list[Any]]:
    return {"key": list(value), "value": list(value.values() if inner is _same else map(inner, value.values()))}


def _members(value: dict[str, Any], inner: dict[str, _Rewrite]) -> dict[str, Any]:
    return {name: inner.get(name, _same)(part) for name, part in value.items()}


def _same(value: Any) -> Any:
    return value
