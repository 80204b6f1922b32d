"""A state as an SQLite table that people can query: its columns, its statements, and values as SQLite keeps them.

``_key`` is the primary key: the key fields as canonical JSON text, because SQLite lets null keys be doubled. Beside it
each field has its own column. SQLite has fewer types than a topology: dates, times, timestamps (ISO 8601, UTC),
decimals, arrays, maps and structs (JSON) are text, an interval is its microseconds; NaN is the text ``NaN``, because
SQLite stores it as null otherwise.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.operations.api import MergeKind
from airflow_trident.operations.expr.conversions import interval_of, microseconds_of
from airflow_trident.states.core.merge import Key, Value, canonical_key
from airflow_trident.states.core.nested import Coder, json_coder, optional
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field, is_nested

KEY_COLUMN = "_key"
_AFFINITY = {
    **dict.fromkeys(WHOLE_TYPES, "INTEGER"),
    "boolean": "INTEGER",
    INTERVAL: "INTEGER",
    "double": "REAL",
    "float": "REAL",
    "binary": "BLOB",
}
_ADDABLE = ("long", "int", "double", "float")
_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def safe_name(text: str) -> str:
    """A table name without need of quotes."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Layout:
    """The table `table` of one state."""

    table: str
    spec: StateSpec

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """Key fields, then value fields."""
        return (*self.spec.keys, *self.spec.values)

    def require_columns(self) -> None:
        """:raises ConfigurationError: the fields cannot be columns beside each other."""
        seen = {KEY_COLUMN}
        for field in self.fields:
            if field.name.lower() in seen:
                raise ConfigurationError(
                    f"state {self.spec.name!r} has the field {field.name!r}, which SQLite cannot tell from another "
                    "column of its table (names of columns have no case)",
                    "Rename the field.",
                )
            seen.add(field.name.lower())

    @property
    def definition(self) -> str:
        """What the table was made for."""
        keys, values = ", ".join(map(str, self.spec.keys)), ", ".join(map(str, self.spec.values))
        return f"({keys}) -> ({values})"

    @property
    def merges_natively(self) -> bool:
        """Can SQLite do the arithmetic exactly? Not that of decimals, which it would do in floating point."""
        kinds = [combiner.merge_kind for combiner in self.spec.combiners]
        return bool(kinds) and all(
            _is_native(kind, field.type) for kind, field in zip(kinds, self.spec.values, strict=True)
        )

    # ---- statements --------------------------------------------------------------------------------------------

    @property
    def create(self) -> str:
        columns = [f"{KEY_COLUMN} TEXT NOT NULL PRIMARY KEY", *map(_column, self.fields)]
        return f"CREATE TABLE {quote(self.table)} ({', '.join(columns)}) WITHOUT ROWID"

    @property
    def upsert(self) -> str:
        """Insert, or replace the values by the new ones."""
        return self._insert([f"{quote(field.name)} = excluded.{quote(field.name)}" for field in self.spec.values])

    @property
    def merge(self) -> str:
        """Insert, or merge the new values into the stored ones, one expression per value column."""
        parts = zip(self.spec.combiners, self.spec.values, strict=True)
        return self._insert([f"{quote(field.name)} = {_merged(c.merge_kind, field, self.table)}" for c, field in parts])

    def _insert(self, updates: list[str]) -> str:
        columns = ", ".join([KEY_COLUMN, *(quote(field.name) for field in self.fields)])
        places = ", ".join("?" * (1 + len(self.fields)))
        return (
            f"INSERT INTO {quote(self.table)} ({columns}) VALUES ({places}) "
            f"ON CONFLICT ({KEY_COLUMN}) DO UPDATE SET {', '.join(updates)}"
        )

    @property
    def delete(self) -> str:
        return f"DELETE FROM {quote(self.table)} WHERE {KEY_COLUMN} = ?"

    @property
    def select_all(self) -> str:
        columns = ", ".join([KEY_COLUMN, *(quote(field.name) for field in self.fields)])
        return f"SELECT {columns} FROM {quote(self.table)}"

    def select(self, keys: int) -> str:
        return f"{self.select_all} WHERE {KEY_COLUMN} IN ({', '.join('?' * keys)})"

    # ---- values ------------------------------------------------------------------------------------------------

    def encode_key(self, key: Sequence[Any]) -> str:
        parts = zip(self.spec.keys, canonical_key(key), strict=True)
        return _json([_json_part(encoder(field.type)(part)) for field, part in parts])

    def encode_rows(self, columns: Sequence[Sequence[Any]], count: int) -> list[tuple[Any, ...]]:
        """Parameters of `upsert` and `merge`. `columns`: Python values, one sequence per field."""
        encoded = []
        for index, (field, column) in enumerate(zip(self.fields, columns, strict=True)):
            encode = encoder(field.type)
            # Columns of plain values, most of them, are taken as they are.
            plain = encode is _same or (encode is _float and index >= len(self.spec.keys) and not _has_nan(column))
            encoded.append(column if plain else [encode(part) for part in column])
        keys = _json_keys(encoded[: len(self.spec.keys)])
        rows = zip(keys or ["[]"] * count, *encoded, strict=True)
        # Neighbours in the table are written together: twice as fast for large states.
        return sorted(rows, key=itemgetter(0))

    def decode(self, row: Sequence[Any]) -> tuple[Key, Value]:
        """From a row of `select`."""
        parts = [decoder(field.type)(part) for field, part in zip(self.fields, row[1:], strict=True)]
        return tuple(parts[: len(self.spec.keys)]), tuple(parts[len(self.spec.keys) :])


# ---- columns ---------------------------------------------------------------------------------------------------


def _column(field: Field) -> str:
    affinity = _AFFINITY.get(field.type, "TEXT")
    # An integer sum that overflows silently becomes floating point: refuse it.
    check = f" CONSTRAINT {quote(field.name)} CHECK (typeof({quote(field.name)}) <> 'real')"
    return f"{quote(field.name)} {affinity}{check if affinity == 'INTEGER' else ''}"


def _is_native(kind: MergeKind | None, type_text: str) -> bool:
    if kind is None or type_text.startswith("decimal") or is_nested(type_text):
        return False
    return kind is not MergeKind.ADD or type_text in _ADDABLE


def _merged(kind: MergeKind | None, field: Field, table: str) -> str:
    """Nulls count as nothing, as in `operations.aggregators`."""
    old, new = f"{quote(table)}.{quote(field.name)}", f"excluded.{quote(field.name)}"
    head = f"CASE WHEN {old} IS NULL THEN {new} WHEN {new} IS NULL THEN {old}"
    if kind is not MergeKind.ADD:
        # Text sorts above numbers: NaN is the largest number, as in Spark.
        return f"{head} ELSE {'min' if kind is MergeKind.MIN else 'max'}({old}, {new}) END"
    if _AFFINITY[field.type] == "REAL":
        nan = f" WHEN typeof({old}) = 'text' OR typeof({new}) = 'text' THEN 'NaN'"
        return f"{head}{nan} ELSE coalesce({old} + {new}, 'NaN') END"
    return f"{head} ELSE {old} + {new} END"


# ---- one value -------------------------------------------------------------------------------------------------


def encoder(type_text: str) -> Coder:
    """From Python to SQLite. Timestamps without a zone are UTC."""
    if type_text.startswith("decimal"):
        return optional(lambda value: format(value, "f"))
    if is_nested(type_text):
        code = json_coder(type_text, _json_encoder)
        return optional(lambda value: _json(code(value)))
    kinds: dict[str, Coder] = {
        "double": _float,
        "float": _float,
        "boolean": optional(int),
        "date": optional(lambda value: value.isoformat()),
        "time": optional(lambda value: value.isoformat(timespec="microseconds")),
        "timestamp": optional(_timestamp),
        INTERVAL: optional(microseconds_of),
    }
    return kinds.get(type_text, _same)


def decoder(type_text: str) -> Coder:
    """From SQLite to Python: the values that Arrow gives for the type."""
    if type_text.startswith("decimal"):
        return optional(Decimal)
    if is_nested(type_text):
        code = json_coder(type_text, _json_decoder, decodes=True)
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
    return kinds.get(type_text, _same)


def _json_keys(columns: Sequence[Sequence[Any]]) -> list[str]:
    """The key of each row as JSON text."""
    if len(columns) == 1 and set(map(type, columns[0])) == {str}:
        return [f"[{encode_basestring(text)}]" for text in columns[0]]  # the most frequent kind, six times faster
    return [_json(list(map(_json_part, key))) for key in zip(*columns, strict=True)]


def _json_encoder(type_text: str) -> Coder:
    code = encoder(type_text)
    return lambda value: _json_part(code(value))


def _json_decoder(type_text: str) -> Coder:
    return optional(bytes.fromhex) if type_text == "binary" else decoder(type_text)


def _json_part(value: Any) -> Any:
    """An encoded value inside JSON text."""
    return value.hex() if isinstance(value, bytes) else value


def _same(value: Any) -> Any:
    return value


def _float(value: Any) -> Any:
    if value is None:
        return None
    return "NaN" if math.isnan(value) else value + 0.0


def _has_nan(column: Sequence[Any]) -> bool:
    return any(value is not None and value != value for value in column)


def _timestamp(value: datetime.datetime) -> str:
    zoned = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    return zoned.isoformat(timespec="microseconds")
