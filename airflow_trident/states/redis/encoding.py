"""Keys and values of a state as bytes in Redis, readable for other programs.

A single field is its plain text: ``#redis``, ``12``, ``0.25``, ``2024-02-29``; an interval is its microseconds; bytes
stay as they are. In texts and bytes a backslash is doubled; null is ``\\N``. Several fields are a JSON array, with
bytes in hexadecimal; no field is ``[]``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_trident.states.core.text_values import compact, decoder, encoder, json_part
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field

NULL = b"\\N"
GONE = b"\\D"
"""Never the text of a value: marks a key that is to be removed, or was missing."""
SEPARATOR = b":"


@dataclass(frozen=True)
class Texts:
    """The codec of a tuple of fields."""

    fields: tuple[Field, ...]

    @cached_property
    def _encoders(self) -> list[Callable[[Any], Any]]:
        return [encoder(field.type) for field in self.fields]

    @cached_property
    def _decoders(self) -> list[Callable[[Any], Any]]:
        return [decoder(field.type) for field in self.fields]

    def encode(self, values: Sequence[Any]) -> bytes:
        parts = [encode(value) for encode, value in zip(self._encoders, values, strict=True)]
        if len(parts) == 1:
            return _plain(parts[0])
        return compact(list(map(json_part, parts))).encode()

    def decode(self, content: bytes) -> tuple[Any, ...]:
        """:raises ValueError: `encode` did not write it."""
        if len(self.fields) == 1:
            return (_read(content, self.fields[0].type, self._decoders[0]),)
        parts = json.loads(content)
        if not isinstance(parts, list) or len(parts) != len(self.fields):
            raise ValueError(f"not {len(self.fields)} fields")
        return tuple(
            bytes.fromhex(part) if field.type == "binary" and part is not None else decode(part)
            for field, decode, part in zip(self.fields, self._decoders, parts, strict=True)
        )


def _plain(part: Any) -> bytes:
    if part is None:
        return NULL
    if isinstance(part, bytes):
        return part.replace(b"\\", b"\\\\")
    return part.replace("\\", "\\\\").encode() if isinstance(part, str) else repr(part).encode()


def _read(content: bytes, type_text: str, decode: Callable[[Any], Any]) -> Any:
    if content == NULL:
        return None
    if type_text in (*WHOLE_TYPES, "boolean", INTERVAL):
        return decode(int(content))
    whole = content.replace(b"\\\\", b"\\")
    return whole if type_text == "binary" else decode(whole.decode())


@dataclass(frozen=True)
class Addresses:
    """Where a key is: its text, or, if `split`, the text of its first field, a colon, and the text of the others. A
    colon in the first field's text is ``\\c``."""

    keys: tuple[Field, ...]
    split: bool

    @cached_property
    def _parts(self) -> tuple[Texts, Texts]:
        cut = 1 if self.split else 0
        return Texts(self.keys[:cut]), Texts(self.keys[cut:])

    def encode(self, key: Sequence[Any]) -> bytes:
        first, rest = self._parts
        if not self.split:
            return rest.encode(key)
        return first.encode(key[:1]).replace(SEPARATOR, b"\\c") + SEPARATOR + rest.encode(key[1:])

    def decode(self, address: bytes) -> tuple[Any, ...]:
        """:raises ValueError: `encode` did not write it."""
        first, rest = self._parts
        if not self.split:
            return rest.decode(address)
        head, _, tail = address.partition(SEPARATOR)
        return (*first.decode(_with_colons(head)), *rest.decode(tail))


def _with_colons(text: bytes) -> bytes:
    """Replaces ``\\c`` by a colon, except for a c after a doubled backslash."""
    return b"\\\\".join(part.replace(b"\\c", SEPARATOR) for part in text.split(b"\\\\"))
