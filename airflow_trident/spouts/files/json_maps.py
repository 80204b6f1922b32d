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


class Doubled(dict[str, Any]):
    """An object in which names are there twice."""

    twice: tuple[str, ...] = ()


def for_arrow(lines: bytes, schema: Schema, *, ignore_extra: bool = False) -> bytes:
    """The lines as Arrow's parser takes them for what they are: all of them rewritten if a field has a map, else those
    with a number that it would change as a decimal.

    :param ignore_extra: leave out what is not declared, whatever it is: the parser does so in the other lines.
    :raises ValueError, ArithmeticError: see :func:`_rewritten`.
    """
    if any("map<" in field.type for field in schema):
        return _rewritten(lines, schema, ignore_extra)
    if not any("decimal(" in field.type for field in schema):
        return lines
    parts, done = list[bytes](), 0
    for at in _doubtful_numbers(lines):
        if at < done:
            continue
        begin, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        end = len(lines) if end < 0 else end
        parts += [lines[done:begin], _rewritten(lines[begin:end], schema, ignore_extra)]
        done = end
    return b"".join([*parts, lines[done:]]) if parts else lines


def _doubtful_numbers(lines: bytes) -> list[int]:
    """Where there are numbers with an exponent, or with many digits; in rising order. Numbers in texts count, too."""
    shapes = lines.translate(_SHAPES)
    with_exponent = _EXPONENT.finditer(shapes) if b"0e0" in shapes or b"0e+" in shapes else ()
    long = _LONG.finditer(shapes) if _MANY in shapes else ()
    return sorted(match.start() + 1 for match in (*with_exponent, *long))


def _rewritten(lines: bytes, schema: Schema, ignore_extra: bool) -> bytes:
    """The lines, with ``{"key": [..], "value": [..]}`` instead of each object that is a map in the schema, and with
    texts of plain digits instead of decimals.

    :raises ValueError, ArithmeticError: a line is not JSON, an object has a name twice, or a decimal does not fit.
    """
    decode = decoder()
    types = {field.name: field.type for field in schema}
    rewrites = {name: rewrite for name, of in types.items() if (rewrite := _rewrite(of, ignore_extra)) is not _same}
    written = []
    for line in lines.decode("utf-8-sig", "surrogateescape").split("\n"):
        if not line.strip(" \t\r"):
            continue
        record = decode(line)
        if isinstance(record, dict):
            if why := doubled(record, schema):
                raise ValueError(why)
            if ignore_extra:
                record = {name: record[name] for name in types if name in record}
            for name, rewrite in rewrites.items():
                if name in record:
                    record[name] = rewrite(record[name])
        written.append(_encode(record))
    return "\n".join(written).encode()


def decoder() -> Callable[[str], Any]:
    """It decodes a line: numbers have their texts, and objects know what is in them twice."""
    return json.JSONDecoder(object_pairs_hook=_object, parse_float=Real).decode


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names, object_ = [name for name, _ in pairs], Doubled(made)
    object_.twice = tuple(name for name in made if names.count(name) > 1)
    return object_


def doubled(record: dict[str, Any], schema: Schema) -> str:
    """What is wrong with a record in which a declared name is there twice, at any depth; empty: nothing."""
    twice = next((field.name for field in schema if field.name in getattr(record, "twice", ())), None)
    if twice is not None:
        return f"{twice!r} is there twice"
    return next((why for field in schema if (why := _doubled(record.get(field.name), field.type))), "")


def _doubled(value: Any, type_text: str) -> str:
    parts, shape = members(type_text), kind(type_text)
    if shape == "struct" and isinstance(value, dict):
        return doubled(value, parts)
    if shape == "map" and isinstance(value, Doubled):
        return f"{value.twice[0]!r} is there twice"
    if shape in ("map", "array") and isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return next((why for part in inner if (why := _doubled(part, parts[-1].type))), "")
    return ""


def _rewrite(type_text: str, ignore_extra: bool) -> _Rewrite:
    """The function that rewrites values of the type. A value of another shape stays: the parser refuses it."""
    inner = {member.name: _rewrite(member.type, ignore_extra) for member in members(type_text)}
    shape = kind(type_text)
    if shape == "decimal":
        return lambda value: _plain_decimal(value, type_text)
    if shape == "map":
        part = inner["value"]
        return lambda value: _lists(value, part) if isinstance(value, dict) else value
    if shape == "struct" and ignore_extra:
        return lambda value: _declared(value, inner) if isinstance(value, dict) else value
    if all(rewrite is _same for rewrite in inner.values()):
        return _same
    if shape == "array":
        element = inner["element"]
        return lambda value: [element(part) for part in value] if isinstance(value, list) else value
    return lambda value: _members(value, inner) if isinstance(value, dict) else value


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


def _declared(value: dict[str, Any], inner: dict[str, _Rewrite]) -> dict[str, Any]:
    return {name: rewrite(value[name]) for name, rewrite in inner.items() if name in value}


def _same(value: Any) -> Any:
    return value
