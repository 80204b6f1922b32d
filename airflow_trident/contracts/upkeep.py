"""What is done to a state from time to time, beside its transactions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_trident.errors import ConfigurationError


class Upkeep(StrEnum):
    """Each runs in its own commit, which changes no answer; it may be killed, or run beside a committer. An open state
    has a method of that name, ``(*, progress) -> bool``: was there anything to do?"""

    COMPACT = "compact"
    """Removes rows that no longer count, and joins small files into larger ones."""
    FOLD = "fold"
    """Joins the parts that batches have left into one."""
    PUBLISH = "publish"
    """Writes a table with one row for each key, which others can read as it is. For a table of upserts it is a view,
    which Spark makes in a catalogue (`View`)."""


class ViewDialect(StrEnum):
    """Whose SQL a query is for."""

    SPARK = "spark"
    DUCKDB = "duckdb"
    TRINO = "trino"

    def quoted(self, *parts: str) -> str:
        """Quoted names, joined by dots."""
        mark = "`" if self is ViewDialect.SPARK else '"'
        return ".".join(f"{mark}{one.replace(mark, 2 * mark)}{mark}" for one in parts)

    def text(self, value: str) -> str:
        """A literal."""
        if self is ViewDialect.SPARK:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return "'" + value.replace("'", "''") + "'"


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A view of the latest rows of a table of upserts.

    `name`: ``schema.name`` or ``catalog.schema.name``. `table`: how its readers name the table, if they have it in a
    catalogue; None: by its place.

    :raises ConfigurationError: a name has an empty part, or the view's has no schema.
    """

    name: str
    table: str | None = None

    def __post_init__(self) -> None:
        if len(_parts(self.name)) < 2:
            raise ConfigurationError(
                f"a view named {self.name!r}", "Give its schema, too, as in 'sales.customers_latest'."
            )
        if self.table is not None:
            _parts(self.table)

    @property
    def parts(self) -> tuple[str, ...]:
        return _parts(self.name)


def named_table(name: str, dialect: ViewDialect) -> str:
    """The table of that name in a query.

    :raises ConfigurationError: a part of the name is empty.
    """
    return dialect.quoted(*_parts(name))


def _parts(name: str) -> tuple[str, ...]:
    parts = tuple(name.split("."))
    if not all(one.strip() for one in parts):
        raise ConfigurationError(f"{name!r} is no name of a table or view", "Give schema and name, joined by a dot.")
    return parts
