"""The names that a state in a database has or takes: its table, the column of its key, and the triggers it allows."""

from __future__ import annotations

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.names import Composed

KEY_COLUMN = "_key"
"""The primary key, if the key fields cannot be it: databases differ in what they index and what they call equal."""
LONGEST_TABLE = 47
"""Bytes of a table's name: with a beginning such as ``trident_before_`` it has the 63 of PostgreSQL."""
TABLES = Composed(
    joint="_", characters="A-Za-z0-9_", longest=LONGEST_TABLE, has_case=False, reserved=("trident_", "sqlite_")
)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def default_table(spec: StateSpec) -> str:
    """``<topology>_<state>``, see :class:`Composed`."""
    return TABLES.of(spec.topology, spec.name)


def require_table(table: str, *, longest: int = LONGEST_TABLE) -> None:
    """:raises ConfigurationError: the table cannot be that of a state, or not together with the tables beside it."""
    if (
        not isinstance(table, str)
        or not table
        or "\0" in table
        or len(table.encode()) > longest
        or TABLES.is_reserved(table)
    ):
        raise ConfigurationError(
            f"{table!r} cannot be the table of a state",
            f"Give it a name of 1 to {longest} bytes that does not begin with {' or '.join(TABLES.reserved)}.",
        )


def require_names(who: str, allowed: object) -> None:
    """:raises ConfigurationError: `allow_triggers` is no tuple of names; a text would be one name for each letter."""
    if not isinstance(allowed, tuple) or not all(isinstance(name, str) and name for name in allowed):
        raise ConfigurationError(f"{who} with allow_triggers={allowed!r}", 'Give a tuple of names, such as ("audit",).')
