"""Queries in Spark's SQL as transforms: which streams a text names, and whether it only reads. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from string import Formatter

from airflow_trident.errors import PlanError

_FIRST_WORDS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
_WRITES = re.compile(
    r"\b(INSERT\s+(INTO|OVERWRITE)|MERGE\s+(WITH\s+SCHEMA\s+EVOLUTION\s+)?INTO|DELETE\s+FROM|UPDATE\s+\S+\s+SET)\b",
    re.IGNORECASE,
)
_QUOTED_OR_SPACE = re.compile(
    r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)|(?:--[^\n]*|/\*.*?\*/|\s+)+""", re.DOTALL
)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_CURE = 'Write one query, as in "SELECT day, count(*) AS n FROM {orders} GROUP BY day".'


@dataclass(frozen=True)
class SqlQuery:
    """A query over DataFrames, whose names stand in braces in the text.

    :param names: of the DataFrames, that of the stream itself first.
    """

    text: str
    names: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The query in one line without comments; it changes only if the query does."""
        return f'SQL "{plain(self.text)}"'


def plain(text: str) -> str:
    """The text without comments and with single spaces; quoted parts stay as they are."""
    return _QUOTED_OR_SPACE.sub(lambda found: found[1] or " ", text).strip().rstrip(";").strip()


def query_names(text: str) -> tuple[str, ...]:
    """The names in braces, in the order of the text.

    :raises PlanError: the text is no query, or braces hold something else than a name.
    """
    if not isinstance(text, str) or not plain(text):
        raise PlanError(f"sql got {text!r}", _CURE)
    try:
        return tuple(dict.fromkeys(_names(text)))
    except ValueError as error:
        raise PlanError(f"sql got {text!r}: {error}", "A brace that is meant as such is written twice.") from error


def require_query(text: str) -> None:
    """:raises PlanError: its words show that it does more than read."""
    bare = _QUOTED_OR_SPACE.sub(" ", text).strip()
    words = plain(text).split(None, 1)
    first = words[0].upper() if words else ""
    if not first.startswith(_FIRST_WORDS) or _WRITES.search(bare):
        raise PlanError(
            f"{plain(text)[:80]!r} is no query: a transform only reads",
            "End the stream in a state, which writes exactly once; settings belong into spark_conf. " + _CURE,
        )


def _names(text: str) -> Iterator[str]:
    for _, name, form, conversion in Formatter().parse(text):
        if name is None:
            continue
        if not _NAME.match(name) or form or conversion:
            raise PlanError(
                f"sql has {{{name}{f':{form}' if form else ''}}} in its text",
                "Between braces stands the name of a stream; a brace that is meant as such is written twice.",
            )
        yield name
