"""Column expressions as Spark columns, with the meaning of `operations.evaluate`. Spark's own rules (coercions,
lenient casts, division) are avoided: types are made explicit before, and the same patterns check texts. Needs ANSI
mode, UTC as session time zone and case-sensitive names."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark.errors import CANNOT_BE_CAST
from airflow_trident.engine.spark.versions import try_mod
from airflow_trident.operations.evaluate import TEXT_PATTERNS
from airflow_trident.operations.expressions import Expression, Typed, resolve
from airflow_trident.types import REAL_TYPES, Schema, members

if TYPE_CHECKING:
    from pyspark.sql import Column

_INT_MAX = 2**31 - 1
_LONG_LIMIT = float(2**63)


def compile_expression(expression: Expression, schema: Schema, functions: ModuleType) -> Column:
    """The expression over a DataFrame of this schema.

    :param functions: `pyspark.sql.functions`, or Spark Connect's: that of the session.
    :raises FieldError: the expression does not fit the schema.
    """
    column: Column = _Compiler(functions).column(resolve(expression, schema))
    return column


class _Compiler:
    def __init__(self, functions: ModuleType) -> None:
        self._f: Any = functions
        self._direct: dict[str, Callable[..., Any]] = self._operators() | self._functions()

    def column(self, typed: Typed) -> Any:
        if typed.op == "column":
            return self._f.col(f"`{typed.options[0]}`")
        if typed.op == "literal":
            return self._literal(typed.options[0], typed.type)
        arguments = [self.column(argument) for argument in typed.arguments]
        if typed.op == "case":
            return self._case(arguments)
        if typed.op == "cast":
            return self._cast(arguments[0], typed.arguments[0].type, typed.type)
        if typed.op == "get_item":
            return self._item(arguments[0], typed.arguments[0].type, typed.options[0])
        return self._direct[typed.op](*arguments, *typed.options)

    def _operators(self) -> dict[str, Callable[..., Any]]:
        return {
            "+": lambda left, right: left + right,
            "-": lambda left, right: left - right,
            "*": lambda left, right: left * right,
            "/": self._f.try_divide,
            "%": lambda left, right: try_mod(self._f, left, right),
            "==": lambda left, right: left == right,
            "!=": lambda left, right: left != right,
            "<": lambda left, right: left < right,
            "<=": lambda left, right: left <= right,
            ">": lambda left, right: left > right,
            ">=": lambda left, right: left >= right,
            "&": lambda left, right: left & right,
            "|": lambda left, right: left | right,
            "not": lambda value: ~value,
            "negate": lambda value: -value,
            "get_field": lambda struct, name: struct.getField(name),
        }

    def _functions(self) -> dict[str, Callable[..., Any]]:
        f = self._f
        return {
            "abs": f.abs,
            "lower": f.lower,
            "upper": f.upper,
            "trim": f.trim,
            "length": lambda text: f.length(text).cast("long"),
            "concat": f.concat,
            "substring": lambda text, start, count: f.substring(text, min(start, _INT_MAX), min(count, _INT_MAX)),
            "split": lambda text, delimiter: f.split(text, _quoted(delimiter), -1),
            "split_words": lambda text: f.array_remove(f.split(text, r"[ \t\n\x0B\f\r]+", -1), ""),
            "size": lambda array: f.array_size(array).cast("long"),
            "explode": f.explode,
            "coalesce": f.coalesce,
            "is_null": lambda value: value.isNull(),
            "contains": lambda text, part: text.contains(part),
            "starts_with": lambda text, part: text.startswith(part),
            "ends_with": lambda text, part: text.endswith(part),
        }

    def _literal(self, value: Any, type_text: str) -> Any:
        if isinstance(value, datetime.datetime):
            value = value.isoformat(" ")
        elif isinstance(value, datetime.date | datetime.time):
            value = value.isoformat()
        return self._f.lit(value).cast(type_text)

    def _item(self, column: Any, container_type: str, key: Any) -> Any:
        if container_type.startswith("array"):
            return self._f.get(column, self._f.lit(min(key, _INT_MAX)).cast("int"))
        return self._f.try_element_at(column, self._literal(key, members(container_type)[0].type))

    def _case(self, arguments: list[Any]) -> Any:
        chain = self._f.when(arguments[0], arguments[1])
        for place in range(2, len(arguments) - 1, 2):
            chain = chain.when(arguments[place], arguments[place + 1])
        return chain.otherwise(arguments[-1]) if len(arguments) % 2 else chain

    def _cast(self, column: Any, source_type: str, wanted: str) -> Any:
        if source_type == "string":
            plain = self._f.trim(column)
            fits = plain.rlike(rf"\A(?:{TEXT_PATTERNS[wanted]})\z")
            return self._or_error(fits, plain.cast(wanted), column, wanted)
        if source_type in REAL_TYPES and wanted == "long":
            # Spark saturates 2**63 instead of refusing it
            fits = (column >= -_LONG_LIMIT) & (column < _LONG_LIMIT)
            return self._or_error(fits, column.cast(wanted), column, wanted)
        return column.cast(wanted)

    def _or_error(self, fits: Any, value: Any, column: Any, wanted: str) -> Any:
        text = self._f.concat(column.cast("string"), self._f.lit(f"{CANNOT_BE_CAST}{wanted}"))
        return self._f.when(column.isNull() | fits, value).otherwise(self._f.raise_error(text))


_SPECIAL = ".$|()[{^?*+\\"


def _quoted(text: str) -> str:
    """A literal for Java's regular expressions. For a single character, plain or after a backslash, Java splits without
    compiling an expression for each text."""
    if len(text) == 1 and text.isascii() and text != "\0":
        return f"\\{text}" if text in _SPECIAL else text
    return "\\Q" + text.replace("\\E", "\\E\\\\E\\Q") + "\\E"
