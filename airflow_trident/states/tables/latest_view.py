"""The query for the latest rows of a table of changes, as text for other engines: what a view is made of."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from airflow_trident.contracts.state import TXID
from airflow_trident.contracts.upkeep import ViewDialect
from airflow_trident.errors import ConfigurationError
from airflow_trident.states.tables.new_files import OldFile
from airflow_trident.states.tables.upserts import place_beside
from airflow_trident.types import Schema

_MOST_FILES = 64
"""A view of more would be too long for the catalogues of some metastores."""
_PATTERN = re.compile(r"[][{}*?\\]")
"""Spark takes a path with one of these for a pattern."""
_PATTERN_OF_DUCKDB = re.compile(r"[*?[]")
"""And DuckDB; a class of this one character is the character."""
_OPTIONS = "'ignoreMissingFiles' = 'false', 'ignoreCorruptFiles' = 'false', 'mergeSchema' = 'false'"
"""With other settings of the reader's session Spark might leave out rows."""


def latest_query(
    relation: str, columns: Sequence[str], keys: Sequence[str], deleted: str | None, dialect: ViewDialect
) -> str:
    """The rows that count, without ``_txid``: as :func:`latest_rows` finds them.

    :param relation: the table, as the query names it.
    :param columns: all of the table's.
    """
    place = place_beside(columns)
    by = ", ".join(map(dialect.quoted, keys))
    shown = ", ".join(dialect.quoted(name) for name in columns if name != TXID)
    lines = [
        f"SELECT {shown}",
        "FROM (",
        f"    SELECT *, row_number() OVER (PARTITION BY {by} ORDER BY {dialect.quoted(TXID)} DESC NULLS LAST) AS "
        f"{dialect.quoted(place)}",
        f"    FROM {relation}",
        f") AS {dialect.quoted('changes')}",
        f"WHERE {dialect.quoted(place)} = 1",
    ]
    if deleted is not None:
        lines[-1] += f" AND NOT coalesce({dialect.quoted(deleted)}, false)"
    return "\n".join(lines)


def delta_relation(uri: str, dialect: ViewDialect) -> str:
    """
    :raises ConfigurationError: the engine knows no Delta table by its place.
    """
    if dialect is ViewDialect.SPARK:
        return f"`delta`.{dialect.quoted(_place_for_spark(uri))}"
    if dialect is ViewDialect.DUCKDB:
        return f"delta_scan({dialect.text(uri)})"
    raise _needs_name(f"the Delta table {uri!r}", dialect)


def parquet_relation(
    what: str,
    files: Sequence[tuple[str, OldFile, Collection[str]]],
    schema: Schema,
    partition_by: Sequence[str],
    dialect: ViewDialect,
) -> str:
    """The rows of these very files: a folder has others, too.

    :param files: path or URI, entry, and names of the columns that are in the file.
    :param schema: all columns of the table. Those that a file lacks are null, or the value of its partition.
    :raises ConfigurationError: the engine cannot read them so.
    """
    if dialect is ViewDialect.TRINO:
        raise _needs_name(what, dialect)
    if not files:
        if dialect is not ViewDialect.SPARK:
            raise ConfigurationError(f"{what} has no files", "Ask again after the first commit.")
        nothing = ", ".join(f"CAST(NULL AS {one.type}) AS {dialect.quoted(one.name)}" for one in schema)
        return f"(SELECT {nothing} WHERE false)"
    selects = []
    for path, file, found in files:
        values = dict(zip(partition_by, file.values or (), strict=True))
        selects.append(f"SELECT {', '.join(_columns(schema, found, values, dialect))} FROM {_file(path, dialect)}")
    return f"({' UNION ALL '.join(selects)})"


def require_few(what: str, many: int) -> None:
    """:raises ConfigurationError: a view of so many files would be too long."""
    if many > _MOST_FILES:
        raise ConfigurationError(
            f"{what} has {many:,} files, and a view names each of them: {_MOST_FILES} at most",
            "Compact it first; a Delta or Iceberg table has no such limit.",
        )


def _columns(schema: Schema, found: Collection[str], values: dict[str, Any], dialect: ViewDialect) -> Iterator[str]:
    for one in schema:
        name = dialect.quoted(one.name)
        if one.name in found:
            yield f"CAST({name} AS {one.type}) AS {name}" if dialect is ViewDialect.SPARK else name
        elif (value := values.get(one.name)) is not None:
            yield f"CAST({dialect.text(str(value))} AS {one.type}) AS {name}"
        else:
            yield f"{f'CAST(NULL AS {one.type})' if dialect is ViewDialect.SPARK else 'NULL'} AS {name}"


def _file(path: str, dialect: ViewDialect) -> str:
    if dialect is ViewDialect.DUCKDB:
        only_it = _PATTERN_OF_DUCKDB.sub(r"[\g<0>]", path)
        return f"read_parquet({dialect.text(only_it)})"
    escaped = _PATTERN.sub(r"\\\g<0>", _place_for_spark(path))
    return f"`parquet`.{dialect.quoted(escaped)} WITH ({_OPTIONS})"


def _place_for_spark(uri: str) -> str:
    """
    :raises ConfigurationError: Spark names it otherwise, and nobody said how.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file", "gs", "hdfs"):
        return uri
    if scheme in ("s3", "s3a"):
        return f"s3a{uri[len(scheme) :]}"
    raise _needs_name(f"what is at {uri!r}", ViewDialect.SPARK)


def _needs_name(what: str, dialect: ViewDialect) -> ConfigurationError:
    return ConfigurationError(
        f"{dialect.value} cannot name {what} by its place in a query",
        "Make it known to a catalogue, and give its name there: --table schema.name, or table= of the task.",
    )
