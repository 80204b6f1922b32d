"""A state as an SQLite table that people can query: its columns, its statements, and the stored form of values.

The primary key ``_key`` is the key fields as canonical JSON text, because SQLite allows duplicate null keys. Each field
also has its own column. SQLite has fewer types than a topology: dates, times, timestamps (ISO 8601, UTC), decimals,
arrays, maps and structs (JSON) are text, an interval is its microseconds. NaN is the text ``NaN``, because SQLite would
store it as null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.io.arrow import columns_of
from airflow_trident.operations.interfaces import MergeKind
from airflow_trident.states.core.checks import require_columns
from airflow_trident.states.core.merge import Key, Value
from airflow_trident.states.core.text_values import (
    Coder,
    compact,
    decoder,
    encoder,
    json_part,
    key_encoder,
    key_text,
    real,
    same,
)
from airflow_trident.states.sql.dialect import KEY_COLUMN, fields_of, merges_natively, own_values, quote
from airflow_trident.types import INTERVAL, WHOLE_TYPES, Field, is_nested

_AFFINITY = {
    **dict.fromkeys(WHOLE_TYPES, "INTEGER"),
    "boolean": "INTEGER",
    INTERVAL: "INTEGER",
    "double": "REAL",
    "float": "REAL",
    "binary": "BLOB",
}
_ADDABLE = ("long", "int", "double", "float")


@dataclass(frozen=True)
class SqliteLayout:
    """The table `table` of one state."""

    table: str
    spec: StateSpec

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return fields_of(self.spec)

    @cached_property
    def _encoders(self) -> list[Coder]:
        keys, values = self.spec.keys, self.spec.values
        return [*(key_encoder(field.type) for field in keys), *(encoder(field.type) for field in values)]

    @cached_property
    def _value_decoders(self) -> list[Coder]:
        return [decoder(field.type) for field in self.spec.values]

    def require_columns(self) -> None:
        require_columns(self.spec, {KEY_COLUMN}, "SQLite cannot tell from another column of its table")

    @property
    def merges_natively(self) -> bool:
        """Can SQLite do the arithmetic exactly? Not for decimals, which it would add in floating point."""
        return merges_natively(self.spec, _is_exact)

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
    def select(self) -> str:
        columns = ", ".join([KEY_COLUMN, *(quote(field.name) for field in self.fields)])
        return f"SELECT {columns} FROM {quote(self.table)}"

    # ---- values ------------------------------------------------------------------------------------------------

    def encode_key(self, key: Sequence[Any]) -> str:
        return key_text(self.spec.keys, key)

    def encode_keys(self, keys: Sequence[Key]) -> list[str]:
        """As `encode_key` for many keys, column by column."""
        columns = columns_of(keys, len(self.spec.keys))
        encoded = [list(map(encode, column)) for encode, column in zip(self._encoders, columns, strict=False)]
        return _json_keys(encoded) or ["[]"] * len(keys)

    def encode_rows(self, columns: Sequence[Sequence[Any]], count: int) -> list[tuple[Any, ...]]:
        """Parameters of `upsert` and `merge`. `columns`: Python values, one sequence per field."""
        encoded = []
        for encode, column in zip(self._encoders, columns, strict=True):
            # Columns of plain values, the usual case, need no conversion.
            plain = encode is same or (encode is real and not _has_nan(column))
            encoded.append(column if plain else [encode(part) for part in column])
        keys = _json_keys(encoded[: len(self.spec.keys)])
        rows = zip(keys or ["[]"] * count, *encoded, strict=True)
        # Writes neighbours in the table together: twice as fast for large states.
        return sorted(rows, key=itemgetter(0))

    def decode(self, row: Sequence[Any]) -> tuple[Key, Value]:
        """Decodes a row of `select`."""
        fields = self.spec.keys
        decoders = [decoder(field.type) for field in fields]
        return own_values(fields, decoders, row[1 : 1 + len(fields)], self.table), self.decode_value(row)

    def decode_value(self, row: Sequence[Any]) -> Value:
        return own_values(self.spec.values, self._value_decoders, row[1 + len(self.spec.keys) :], self.table)


# ---- columns ---------------------------------------------------------------------------------------------------


def _column(field: Field) -> str:
    affinity = _AFFINITY.get(field.type, "TEXT")
    # An integer sum that overflows silently becomes floating point: refuse it.
    check = f" CONSTRAINT {quote(field.name)} CHECK (typeof({quote(field.name)}) <> 'real')"
    return f"{quote(field.name)} {affinity}{check if affinity == 'INTEGER' else ''}"


def _is_exact(kind: MergeKind, type_text: str) -> bool:
    if type_text.startswith("decimal") or is_nested(type_text):
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
    # A text plus a number would be the number: what another program wrote fails by the column's check.
    return f"{head} WHEN typeof({old}) <> 'integer' THEN 0.5 ELSE {old} + {new} END"


# ---- values ---------------------------------------------------------------------------------------------------


def _json_keys(columns: Sequence[Sequence[Any]]) -> list[str]:
    """The key of each row as JSON text."""
    if len(columns) == 1 and set(map(type, columns[0])) == {str}:
        return [f"[{encode_basestring(text)}]" for text in columns[0]]  # the most frequent kind, six times faster
    return [compact(list(map(json_part, key))) for key in zip(*columns, strict=True)]


def _has_nan(column: Sequence[Any]) -> bool:
    return any(value is not None and value != value for value in column)
