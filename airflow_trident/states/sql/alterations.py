"""What somebody did to the tables of a state so that rows in them are others than those that were sent.

Triggers and rules change or drop rows, and no count of changed rows shows what they changed. Row security hides rows,
tables without transactions keep half a batch, unlogged ones lose all of it in a crash, and without its key a table has
rows twice. All of this is in the catalog of the database. It is asked when a state is opened, and again in each
transaction while nobody can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from airflow_trident.errors import ConfigurationError
from airflow_trident.io.database_limits import MYSQL

Ask: TypeAlias = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Executes a statement with parameters ``:name``."""
_ALLOWABLE = ("trigger", "rule")


@dataclass(frozen=True)
class Alteration:
    """`what` is for people: ``trigger``, ``rule``, ``row security``, ...; `name`: its own name, or ""."""

    what: str
    name: str
    table: str

    def __str__(self) -> str:
        return f"{self.what}{f' {self.name!r}' if self.name else ''} of table {self.table!r}"


def require_unaltered(who: str, place: str, alterations: Iterable[Alteration], allowed: Sequence[str]) -> None:
    """
    :param allowed: names of triggers and rules that a person allows.
    :raises ConfigurationError: there is one that is not allowed.
    """
    refused = [
        alteration for alteration in alterations if alteration.what not in _ALLOWABLE or alteration.name not in allowed
    ]
    if not refused:
        return
    names = ", ".join(sorted({repr(alteration.name) for alteration in refused if alteration.what in _ALLOWABLE}))
    cure = "Remove it. Nothing was applied."
    if names and all(alteration.what in _ALLOWABLE for alteration in refused):
        cure = (
            f"Remove it. If it changes no row of the state, allow it: allow_triggers=({names},). Nothing was applied."
        )
    raise ConfigurationError(
        f"{who} in {place}: {'; '.join(map(str, refused))}: rows there can be others than those that are sent", cure
    )


# ---- PostgreSQL ------------------------------------------------------------------------------------------------

_IN_POSTGRES = """
WITH RECURSIVE tables AS (
  SELECT CAST(to_regclass(name) AS oid) AS oid FROM unnest(CAST(:tables AS text[])) name
  WHERE to_regclass(name) IS NOT NULL
  UNION SELECT i.inhrelid FROM tables JOIN pg_inherits i ON i.inhparent = tables.oid
), named AS (
  SELECT c.oid, c.relname, c.relkind, c.relpersistence FROM tables JOIN pg_class c ON c.oid = tables.oid
)
SELECT 'trigger', t.tgname, c.relname FROM pg_trigger t JOIN named c ON t.tgrelid = c.oid
WHERE NOT t.tgisinternal AND t.tgenabled NOT IN ('D', 'R')
UNION ALL SELECT 'rule', r.rulename, c.relname FROM pg_rewrite r JOIN named c ON r.ev_class = c.oid
WHERE r.ev_enabled NOT IN ('D', 'R')
UNION ALL SELECT 'row security', '', c.relname FROM named c WHERE row_security_active(c.oid)
UNION ALL SELECT 'kind of relation', CAST(c.relkind AS text), c.relname FROM named c WHERE c.relkind NOT IN ('r', 'p')
UNION ALL SELECT 'unlogged storage', '', c.relname FROM named c WHERE c.relpersistence <> 'p'
UNION ALL SELECT 'inheriting table', CAST(CAST(i.inhrelid AS regclass) AS text), c.relname
FROM pg_inherits i JOIN named c ON i.inhparent = c.oid WHERE c.relkind = 'r'
UNION ALL SELECT 'foreign key that changes rows', k.conname, c.relname
FROM pg_constraint k JOIN named c ON k.conrelid = c.oid
WHERE k.contype = 'f' AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
UNION ALL SELECT 'generated column', a.attname, c.relname FROM pg_attribute a JOIN named c ON a.attrelid = c.oid
WHERE a.attgenerated <> '' AND a.attname = ANY (CAST(:columns AS text[]))
UNION ALL SELECT 'role of the session', current_setting('session_replication_role'), ''
WHERE current_setting('session_replication_role') <> 'origin'
"""
_COLUMN_TYPES = (
    "SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(l.collname, '') FROM pg_attribute a "
    "LEFT JOIN pg_collation l ON l.oid = a.attcollation "
    "WHERE a.attrelid = to_regclass(:name) AND a.attnum > 0 AND NOT a.attisdropped"
)
_UNIQUE = """
SELECT count(*) FROM pg_index i WHERE i.indrelid = to_regclass(:name)
AND i.indisunique AND i.indisvalid AND i.indnullsnotdistinct AND i.indpred IS NULL
AND ARRAY(SELECT unnest(CAST(:key AS text[])) ORDER BY 1) = ARRAY(
  SELECT CAST(a.attname AS text) FROM generate_series(0, i.indnkeyatts - 1) place
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[place] ORDER BY 1)
"""
_FULL_NAMES = {"timestamptz": "timestamp with time zone", "time": "time without time zone"}


def in_postgres(ask: Ask, tables: Sequence[str], columns: Sequence[str]) -> list[Alteration]:
    """:param tables: as in statements; those that are missing do not count. :param columns: of the state."""
    rows = ask(_IN_POSTGRES, {"tables": list(tables), "columns": list(columns)})
    return [Alteration(*map(str, row)) for row in rows]


def of_columns(ask: Ask, table: str, made: Mapping[str, str]) -> list[Alteration]:
    """Columns of PostgreSQL that have another type or collation now: they round, or order texts otherwise.

    :param made: the type of each column as in CREATE TABLE.
    """
    types_by_name = {name: (kind, collation) for name, kind, collation in ask(_COLUMN_TYPES, {"name": table})}
    altered = []
    for name, text in made.items():
        kind, _, collation = text.partition(" COLLATE ")
        wanted = (_FULL_NAMES.get(kind, kind), collation.strip('"'))
        if name in types_by_name and types_by_name[name] != wanted:
            now = " ".join(filter(None, types_by_name[name]))
            altered.append(Alteration(f"column of type {now}, which was made as {text},", name, table))
    return altered


def of_key(ask: Ask, table: str, key: Sequence[str]) -> list[Alteration]:
    """Without its unique index, or with one that takes nulls for different, a table of PostgreSQL has a key twice."""
    if not key or ask(_UNIQUE, {"name": table, "key": list(key)})[0][0]:
        return []
    return [Alteration(f"missing unique index NULLS NOT DISTINCT on ({', '.join(key)})", "", table)]


# ---- MySQL and MariaDB -----------------------------------------------------------------------------------------

_OF_TABLE = "{0}_SCHEMA = coalesce(:schema, database()) AND {0}_TABLE IN :tables"
_PLAIN_OF_TABLE = "TABLE_SCHEMA = coalesce(:schema, database()) AND TABLE_NAME IN :tables"
_IN_MYSQL = f"""
SELECT 'trigger', TRIGGER_NAME, EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS
WHERE {_OF_TABLE.format("EVENT_OBJECT")}
UNION ALL SELECT CONCAT(coalesce(ENGINE, 'no'), ' as the engine, which has no transactions,'), '', TABLE_NAME
FROM information_schema.TABLES WHERE {_PLAIN_OF_TABLE}
AND coalesce(ENGINE, '') NOT IN (SELECT ENGINE FROM information_schema.ENGINES WHERE TRANSACTIONS = 'YES')
UNION ALL SELECT 'foreign key that changes rows', CONSTRAINT_NAME, TABLE_NAME
FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = coalesce(:schema, database()) AND TABLE_NAME IN :tables
AND (DELETE_RULE IN ('CASCADE', 'SET NULL') OR UPDATE_RULE IN ('CASCADE', 'SET NULL'))
UNION ALL SELECT 'generated column', COLUMN_NAME, TABLE_NAME FROM information_schema.COLUMNS
WHERE {_PLAIN_OF_TABLE} AND COLUMN_NAME IN :columns AND EXTRA LIKE '%GENERATED%' AND EXTRA NOT LIKE '%DEFAULT%'
UNION ALL SELECT 'missing primary key', :key, t.TABLE_NAME FROM information_schema.TABLES t
WHERE t.TABLE_SCHEMA = coalesce(:schema, database()) AND t.TABLE_NAME IN :keyed AND :key <> coalesce((
  SELECT GROUP_CONCAT(s.COLUMN_NAME, coalesce(s.SUB_PART, '')) FROM information_schema.STATISTICS s
  WHERE s.TABLE_SCHEMA = t.TABLE_SCHEMA AND s.TABLE_NAME = t.TABLE_NAME AND s.INDEX_NAME = 'PRIMARY'), '')
"""


def in_sqlalchemy(database: str) -> str:
    """The statement for a database that SQLAlchemy names so; "": its catalog is not known."""
    if database in MYSQL:
        return _IN_MYSQL
    return {"sqlite": _IN_SQLITE}.get(database, "")


# ---- SQLite ----------------------------------------------------------------------------------------------------

_IN_SQLITE = "SELECT 'trigger', name, tbl_name FROM sqlite_master WHERE type = 'trigger' AND lower(tbl_name) IN :tables"


def in_sqlite(ask: Ask, tables: Sequence[str]) -> list[Alteration]:
    names = {f"t{number}": table.lower() for number, table in enumerate(tables)}
    statement = _IN_SQLITE.replace(":tables", f"({', '.join(f':{name}' for name in names)})")
    return [Alteration(*map(str, row)) for row in ask(statement, names)]
