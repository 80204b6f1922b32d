"""Queries in Spark's SQL as transforms: which streams a text names, and whether it only reads. Pure.

Expressions in Spark's SQL: checks that a text is one and gives the same in every attempt. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from string import Formatter

from airflow_trident.errors import PlanError
from airflow_trident.operations.expressions import Expression, ExpressionOp
from airflow_trident.types import parse_type

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
    return _QUOTED_OR_SPACE.sub(lambda match: match[1] or " ", text).strip().rstrip(";").strip()


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


_WORD = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`|([A-Za-z_]\w*)\s*(\(\s*\)|\()?""", re.DOTALL)
_CHANGING = re.compile(
    "rand|random|randn|randstr|uniform|uuid|shuffle|now|curdate|current_(timestamp|date|time|timezone|user|catalog|database|"
    "schema)|localtimestamp|session_user|user|monotonically_increasing_id|spark_partition_id|input_file_name|"
    "input_file_block_(start|length)|reflect|java_method|try_reflect|version|aes_encrypt"
)
"""Words that may give another value in another attempt. Some are functions without parentheses."""
_READS_THE_CLOCK = "unix_timestamp"
"""Only without an argument."""
_TIMED = re.compile("date|timestamp(_ntz|_ltz)?")
_MOMENT = re.compile(r"""\s*r?['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
"""As in ``date 'today'``: Spark takes the time at which it reads the text."""
_OF_MANY_ROWS = re.compile("select|over|(explode|posexplode|inline|variant_explode)(_outer)?|stack|json_tuple")


def spark_sql(text: str, type_text: str) -> Expression:
    """An expression in Spark's SQL over the fields of a tuple, for `each` and `filter`. It runs on Spark only.

    The text is part of the topology's definition. `:transaction_time` is the time of the transaction.

    :param type_text: of its value. A narrower number from Spark is widened; any other type fails the attempt.
    :raises PlanError: the text is empty. The verb that gets the expression checks the rest.
    :raises FieldError: no such type.
    """
    if not isinstance(text, str) or not plain(text):
        raise PlanError(f"spark_sql got {text!r}", 'As in spark_sql("date_trunc(\'day\', at)", "timestamp").')
    return Expression(ExpressionOp.SPARK_SQL, (), (plain(text), parse_type(type_text)))


def require_expression(text: str, fields: Collection[str]) -> None:
    """:param fields: of the tuples; such a name is a function only if it is called.
    :raises PlanError: it may give another value in another attempt, or is no expression over one tuple.
    """
    for match in _WORD.finditer(text):
        word, call = (match[1] or "").lower(), (match[2] or "").replace(" ", "")
        moment = _MOMENT.match(text, match.end()) if _TIMED.fullmatch(word) and not call else None
        if match[1] in fields and not call and not moment:
            continue
        if moment:
            word = f"{word} '{moment[1]}'"
        if moment or _CHANGING.fullmatch(word) or (word == _READS_THE_CLOCK and call == "()"):
            raise PlanError(
                f"spark_sql: {text!r} has {word}, which may give something else in another attempt",
                "Take :transaction_time for the time, and a field or a hash of fields, as in xxhash64(id), for what is "
                "drawn by lot.",
            )
        if _OF_MANY_ROWS.fullmatch(word):
            raise PlanError(
                f"spark_sql: {text!r} has {word}, and an expression gives one value for one tuple",
                'Put explode() of this package around an array; for queries there is stream.sql("SELECT ...", fields).',
            )
