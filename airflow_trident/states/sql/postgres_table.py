"""A state as a PostgreSQL table: its columns and its statements.

Each field has a column. A unique index over the key columns treats null keys as equal to each other and different from
all others, so people find rows by their keys. A *batch* is a table with the same columns and `REMOVED`: true if the key
is to be removed, or, in the kept values, if the key was missing before the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.operations.api import MergeKind
from airflow_trident.states.sql.dialect import fields_of, merges_natively, quote
from airflow_trident.states.sql.postgres_copy import column_type
from airflow_trident.types import Field, Schema, is_nested, names_of

REMOVED = "trident_removed"
MARKERS = "trident_applied"
_LONGEST_NAME_BYTES = 63
_ADDABLE = ("long", "int", "double")


def require_name(what: str, name: str) -> None:
    """:raises ConfigurationError: PostgreSQL cannot have this name, or would cut it."""
    if not name or "\0" in name or len(name.encode()) > _LONGEST_NAME_BYTES:
        raise ConfigurationError(
            f"{name!r} cannot be the {what} of a state in PostgreSQL",
            f"Give it a name of 1 to {_LONGEST_NAME_BYTES} bytes.",
        )


@dataclass(frozen=True)
class Place:
    """A table; `schema` "" is the first one of the connection's search path."""

    schema: str
    table: str

    def __str__(self) -> str:
        return f"{quote(self.schema)}.{quote(self.table)}" if self.schema else quote(self.table)

    def beside(self, table: str) -> Place:
        return Place(self.schema, table)


@dataclass(frozen=True)
class PostgresLayout:
    """The table `place` of one state."""

    place: Place
    spec: StateSpec

    @cached_property
    def fields(self) -> Schema:
        return fields_of(self.spec)

    @property
    def batch_fields(self) -> Schema:
        return (*self.fields, Field(REMOVED, "boolean"))

    def require_columns(self) -> None:
        """:raises ConfigurationError: the fields cannot be columns."""
        for field in self.fields:
            require_name("column", field.name)
            if field.name == REMOVED:
                raise ConfigurationError(
                    f"state {self.spec.name!r} has the field {REMOVED!r}, which is a column of its own",
                    "Rename the field.",
                )

    @property
    def before(self) -> Place:
        """The values before the highest txid (T9)."""
        return self.place.beside(f"trident_before_{self.place.table}")

    @property
    def merges_natively(self) -> bool:
        """Can PostgreSQL do the arithmetic exactly?"""
        return merges_natively(self.spec, _is_exact)

    # ---- making tables -----------------------------------------------------------------------------------------

    def create(self) -> list[str]:
        return [f"CREATE TABLE {self.place} ({self._columns(self.fields)})", self._index("trident_key_", self.place)]

    def create_before(self) -> list[str]:
        index = self._index("trident_old_key_", self.before)
        return [f"CREATE TABLE {self.before} ({self._columns(self.batch_fields)})", index]

    def create_batch(self, batch: str) -> str:
        """A table that only this transaction sees."""
        return f"CREATE TEMP TABLE {quote(batch)} ({self._columns(self.batch_fields)}) ON COMMIT DROP"

    @staticmethod
    def _columns(fields: Schema) -> str:
        kinds = {REMOVED: "boolean NOT NULL DEFAULT false"}
        return ", ".join(f"{quote(field.name)} {kinds.get(field.name) or column_type(field.type)}" for field in fields)

    def _index(self, beginning: str, place: Place) -> str:
        """No beginning of a name beside the table's begins another one: two tables have no such name in common."""
        nulls = " NULLS NOT DISTINCT" if self.spec.keys else ""
        return f"CREATE UNIQUE INDEX {quote(beginning + self.place.table)} ON {place} ({self._key}){nulls}"

    @property
    def _key(self) -> str:
        """The unique columns; a state without key has one row."""
        return ", ".join(map(quote, self.spec.key_names)) or "(true)"

    # ---- writing -----------------------------------------------------------------------------------------------

    def copy(self, batch: str, fields: Schema) -> str:
        return f"COPY {quote(batch)} ({_list(names_of(fields))}) FROM STDIN"

    def merge(self, batch: str) -> str:
        """Insert the batch, or merge its values into the stored ones, one expression per value column."""
        parts = zip(self.spec.combiners, self.spec.values, strict=True)
        updates = [f"{quote(field.name)} = {_merged(combiner.merge_kind, field)}" for combiner, field in parts]
        rows = f"SELECT {_list(names_of(self.fields))} FROM {quote(batch)}"
        return f"{self._insert(self.place, rows, self.fields)} DO UPDATE SET {', '.join(updates)}"

    def write(self, source: Place | str, target: Place, patterns: Sequence[Sequence[bool]]) -> list[str]:
        """Remove the keys that `source` marks and put its other rows. `patterns`: those of `source`."""
        found = " UNION ALL ".join(
            f"SELECT s.row FROM {_name(source)} b CROSS JOIN LATERAL ({self._stored(target, 'ctid AS row', nulls)}) s "
            f"WHERE b.{REMOVED} AND {self._has(nulls)}"
            for nulls in patterns
        )
        remove = [f"DELETE FROM {target} WHERE ctid = ANY (ARRAY({found}))"] if found else []
        rows = f"SELECT {_list(names_of(self.fields))} FROM {_name(source)} WHERE NOT {REMOVED}"
        updates = [f"{quote(name)} = excluded.{quote(name)}" for name in self.spec.value_names]
        updates += [f"{REMOVED} = false"] if target == self.before else []
        return [*remove, f"{self._insert(target, rows, self.fields)} DO UPDATE SET {', '.join(updates)}"]

    def count(self, source: Place | str) -> str:
        """The number of rows of `source` that are not removed."""
        return f"SELECT count(*) FROM {_name(source)} WHERE NOT {REMOVED}"

    def keep(self, batch: str, nulls: Sequence[bool]) -> str:
        """Copy the values stored under the keys of a batch into `before`."""
        keys, values = self.spec.key_names, self.spec.value_names
        shown = ", ".join([*(f"b.{quote(name)}" for name in keys), *(f"s.{quote(name)}" for name in values)])
        stored = self._stored(self.place, ", ".join(["true AS found", *map(quote, values)]), nulls)
        rows = (
            f"SELECT {shown}, s.found IS NULL FROM {quote(batch)} b LEFT JOIN LATERAL ({stored}) s ON true "
            f"WHERE {self._has(nulls)}"
        )
        return f"{self._insert(self.before, rows, self.batch_fields)} DO NOTHING"

    def patterns(self, source: Place | str) -> str:
        """The combinations of null key columns: an index finds nulls only if the statement names them."""
        shown = ", ".join(f"{quote(name)} IS NULL" for name in self.spec.key_names)
        return f"SELECT DISTINCT {shown or 'true'} FROM {_name(source)}"

    def _insert(self, target: Place, rows: str, fields: Schema) -> str:
        return f"INSERT INTO {target} AS t ({_list(names_of(fields))}) {rows} ON CONFLICT ({self._key})"

    # ---- reading -----------------------------------------------------------------------------------------------

    def select(self, source: Place, nulls: Sequence[bool]) -> str:
        """(number of the key, is it REMOVED, its values...). Parameters: one list per key column that is not null in
        `nulls`; all other key columns are null."""
        given = [place for place, is_null in enumerate(nulls) if not is_null]
        arrays = ", ".join(f"%s::{_array_type(self.spec.keys[place])}[]" for place in given)
        keys = "".join(f"{quote(self.spec.keys[place].name)}, " for place in given) or "nothing, "
        removed = REMOVED if source == self.before else "false"
        values = ", ".join([f"{removed} AS removed", *map(_shown, self.spec.values)])
        named = f"AS b({keys}trident_number) CROSS JOIN LATERAL ({self._stored(source, values, nulls)}) s"
        # Names may have percent signs, which begin a parameter.
        return (
            f"SELECT b.trident_number, s.* FROM unnest({arrays or 'ARRAY[true]'}) WITH ORDINALITY "
            f"{named.replace('%', '%%')}"
        )

    def select_all(self) -> str:
        return f"SELECT {', '.join(map(_shown, self.fields))} FROM {self.place}"

    def _stored(self, source: Place, what: str, nulls: Sequence[bool]) -> str:
        """The stored row of key `b`, whose null columns are in `nulls`. The limit forces an index look-up in every plan
        (T6)."""
        pairs = [
            f"t.{quote(name)} {'IS NULL' if is_null else f'= b.{quote(name)}'}"
            for name, is_null in zip(self.spec.key_names, nulls, strict=False)
        ]
        return f"SELECT {what} FROM {source} t WHERE {' AND '.join(pairs) or 'true'} LIMIT 1"

    def _has(self, nulls: Sequence[bool]) -> str:
        """Does key `b` have exactly the null columns of `nulls`?"""
        pairs = [
            f"b.{quote(name)} IS {'' if is_null else 'NOT '}NULL"
            for name, is_null in zip(self.spec.key_names, nulls, strict=False)
        ]
        return " AND ".join(pairs) or "true"


def _name(source: Place | str) -> str:
    return quote(source) if isinstance(source, str) else str(source)


def _list(names: Iterable[str]) -> str:
    return ", ".join(map(quote, names))


def _array_type(field: Field) -> str:
    return column_type(field.type).partition(" COLLATE")[0]


def _shown(field: Field) -> str:
    # A real as text has fewer digits than its value.
    return f"{quote(field.name)}::float8" if field.type == "float" else quote(field.name)


def _is_exact(kind: MergeKind, type_text: str) -> bool:
    if is_nested(type_text):
        return False
    return kind is not MergeKind.ADD or type_text in _ADDABLE or type_text.startswith("decimal")


def _merged(kind: MergeKind | None, field: Field) -> str:
    """Nulls count as nothing, as in `operations.aggregators`; NaN is the largest number, as in Spark."""
    old, new = f"t.{quote(field.name)}", f"excluded.{quote(field.name)}"
    if kind is MergeKind.ADD:
        return f"coalesce({old} + {new}, {old}, {new})"
    return f"{'least' if kind is MergeKind.MIN else 'greatest'}({old}, {new})"
