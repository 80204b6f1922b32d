"""Column expressions: small immutable trees that compute a value from the fields of one tuple.

Spark runs them in the JVM, without Python. `operations.expr.evaluate` runs the same tree in Python and defines its
meaning. Only operations that both do alike are offered.

Meaning, in short:

* Null: an operation on a null is null, except ``coalesce``, ``is_null``, ``when`` and the three-valued ``&`` and ``|``.
* Whole numbers (byte, short, int, long) are computed as long; an overflow is an error. With a double or float the
  result is a double.
* ``+``, ``-`` and ``*`` of decimals, also with whole numbers, are exact: the result type has all possible digits.
* ``/`` always gives a double; division and remainder by zero give null. A remainder has the sign of its left side.
* NaN equals NaN and is greater than every other number. Text is compared by code points.
* ``trim`` strips spaces only; ``split_words`` splits at runs of ASCII whitespace; positions count characters from 1.
  ``lower`` and ``upper`` use Unicode's full mappings (final sigma, SS for ß); Python and Java may differ in letters
  that are newer than Python's Unicode tables.
* ``cast`` fails if the type cannot hold the value. Timestamps are UTC.

Spark leaves out values that nothing uses, so an error in such a value may pass unseen.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeAlias

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.expr.literals import type_of_value
from airflow_trident.types import parse_type

Operand: TypeAlias = (
    "Expression | str | int | float | bool | bytes | Decimal | datetime.date | datetime.datetime | datetime.time | "
    "datetime.timedelta"
)
"""An expression, or a Python value that becomes a literal. A text is a literal too; a field is written ``col("x")``."""


class ExpressionOp(StrEnum):
    """What a node of the tree does. The value of an infix operation is its symbol."""

    COLUMN = "column"
    LITERAL = "literal"
    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"
    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    AND = "&"
    OR = "|"
    NOT = "not"
    NEGATE = "negate"
    ABS = "abs"
    LOWER = "lower"
    UPPER = "upper"
    TRIM = "trim"
    LENGTH = "length"
    CONCAT = "concat"
    SUBSTRING = "substring"
    SPLIT = "split"
    SPLIT_WORDS = "split_words"
    SIZE = "size"
    EXPLODE = "explode"
    COALESCE = "coalesce"
    IS_NULL = "is_null"
    CASE = "case"
    CAST = "cast"
    CONTAINS = "contains"
    STARTS_WITH = "starts_with"
    ENDS_WITH = "ends_with"
    GET_FIELD = "get_field"
    GET_ITEM = "get_item"
    SPARK_SQL = "spark_sql"


INFIX = frozenset(op for op in ExpressionOp if not op.isidentifier())


def _operator(op: ExpressionOp) -> Callable[[Expression, Operand], Expression]:
    return lambda left, right: _call(op, left, right)


def _reflected(op: ExpressionOp) -> Callable[[Expression, Operand], Expression]:
    """What Python calls if the left operand is a plain value."""
    return lambda right, left: _call(op, left, right)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression:
    """One node. `options`: its parts that are not expressions (a field's name, a literal's value and type, a cast's
    type).

    ``==`` and the other operators make new expressions, so Python can neither compare expressions nor test their truth.
    Equal expressions have equal texts.
    """

    op: ExpressionOp
    arguments: tuple[Expression, ...] = ()
    options: tuple[Any, ...] = ()

    # ---- what engines and plans ask ----------------------------------------------------------------------------

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields used, each once, in the order of their first use."""
        if self.op is ExpressionOp.COLUMN:
            return (str(self.options[0]),)
        return tuple(dict.fromkeys(name for argument in self.arguments for name in argument.reads))

    @property
    def is_explode(self) -> bool:
        """Does it give one tuple per element?"""
        return self.op is ExpressionOp.EXPLODE

    def __str__(self) -> str:
        if self.op is ExpressionOp.COLUMN:
            return str(self.options[0])
        if self.op is ExpressionOp.LITERAL:
            return repr(self.options[0])
        texts = [str(argument) for argument in self.arguments]
        if self.op in INFIX:
            return f"({texts[0]} {self.op} {texts[1]})"
        if self.op is ExpressionOp.CAST:
            return f"cast({texts[0]} as {self.options[0]})"
        return f"{self.op}({', '.join([*texts, *map(repr, self.options)])})"

    def __repr__(self) -> str:
        return f"<expression {self}>"

    def __bool__(self) -> bool:
        raise PlanError(
            f"the expression {self} has no truth while the DAG is built: it is evaluated per tuple",
            "Use & | ~ (with parentheses) instead of and, or, not, in, if.",
        )

    # ---- operators ---------------------------------------------------------------------------------------------

    __hash__ = object.__hash__

    __add__, __radd__ = _operator(ExpressionOp.ADD), _reflected(ExpressionOp.ADD)
    __sub__, __rsub__ = _operator(ExpressionOp.SUBTRACT), _reflected(ExpressionOp.SUBTRACT)
    __mul__, __rmul__ = _operator(ExpressionOp.MULTIPLY), _reflected(ExpressionOp.MULTIPLY)
    __truediv__, __rtruediv__ = _operator(ExpressionOp.DIVIDE), _reflected(ExpressionOp.DIVIDE)
    __mod__, __rmod__ = _operator(ExpressionOp.REMAINDER), _reflected(ExpressionOp.REMAINDER)
    __and__, __rand__ = _operator(ExpressionOp.AND), _reflected(ExpressionOp.AND)
    __or__, __ror__ = _operator(ExpressionOp.OR), _reflected(ExpressionOp.OR)
    __eq__ = _operator(ExpressionOp.EQUAL)  # type: ignore[assignment]
    __ne__ = _operator(ExpressionOp.NOT_EQUAL)  # type: ignore[assignment]
    __lt__ = _operator(ExpressionOp.LESS)
    __le__ = _operator(ExpressionOp.LESS_EQUAL)
    __gt__ = _operator(ExpressionOp.GREATER)
    __ge__ = _operator(ExpressionOp.GREATER_EQUAL)

    def __invert__(self) -> Expression:
        return _call(ExpressionOp.NOT, self)

    def __neg__(self) -> Expression:
        return _call(ExpressionOp.NEGATE, self)

    def __abs__(self) -> Expression:
        return _call(ExpressionOp.ABS, self)

    # ---- methods -----------------------------------------------------------------------------------------------

    def cast(self, type_text: str) -> Expression:
        """Convert to another type; a value that the type cannot hold is an error.

        :raises FieldError: no such type.
        """
        return Expression(ExpressionOp.CAST, (self,), (parse_type(type_text),))

    def get_field(self, name: str) -> Expression:
        """A member of a struct."""
        return _call(ExpressionOp.GET_FIELD, self, options=(name,))

    def get_item(self, key: Any) -> Expression:
        """An element of an array, counted from 0, or the value of a map's key; null if there is none.

        :raises FieldError: the key is no plain Python value, or no long.
        """
        known = lit(key)
        if known.op is not ExpressionOp.LITERAL or (known.options[1] == "long" and not -(2**63) <= key < 2**63):
            raise FieldError(f"get_item({key!r}) of {self}", "Give a Python value: the place, or the key.")
        return _call(ExpressionOp.GET_ITEM, self, options=known.options)

    def is_null(self) -> Expression:
        return _call(ExpressionOp.IS_NULL, self)

    def is_not_null(self) -> Expression:
        return ~_call(ExpressionOp.IS_NULL, self)

    def contains(self, text: Operand) -> Expression:
        return _call(ExpressionOp.CONTAINS, self, text)

    def starts_with(self, text: Operand) -> Expression:
        return _call(ExpressionOp.STARTS_WITH, self, text)

    def ends_with(self, text: Operand) -> Expression:
        return _call(ExpressionOp.ENDS_WITH, self, text)


class Case(Expression):
    """``when(a, x).when(b, y)``: null where no condition holds, until ``otherwise`` ends it."""

    __slots__ = ()

    def when(self, condition: Expression, value: Operand) -> Case:
        return Case(ExpressionOp.CASE, (*self.arguments, lit(condition), lit(value)))

    def otherwise(self, value: Operand) -> Expression:
        return Expression(ExpressionOp.CASE, (*self.arguments, lit(value)))


def _call(op: ExpressionOp, *operands: Operand, options: tuple[Any, ...] = ()) -> Expression:
    return Expression(op, tuple(lit(operand) for operand in operands), options)


# ---- leaves ----------------------------------------------------------------------------------------------------


def col(name: str) -> Expression:
    """A field of the tuple."""
    return Expression(ExpressionOp.COLUMN, (), (name,))


def lit(value: Any, type_text: str | None = None) -> Expression:
    """A constant. An expression is returned unchanged.

    :param type_text: the type; required for None; default: that of the Python value (int is long, float is double).
    :raises FieldError: no type can hold the value.
    """
    if isinstance(value, Expression):
        return value if type_text is None else value.cast(type_text)
    if value is None and type_text is None:
        raise FieldError("a null literal has no type", 'Say which, as in lit(None, "long").')
    known = type_of_value(value) if value is not None else parse_type(str(type_text))
    if isinstance(value, datetime.datetime):
        zone = datetime.UTC
        value = value.replace(tzinfo=zone) if value.tzinfo is None else value.astimezone(zone)
    literal = Expression(ExpressionOp.LITERAL, (), (value, known))
    return literal if type_text is None or parse_type(type_text) == known else literal.cast(type_text)


# ---- functions -------------------------------------------------------------------------------------------------


def lower(text: Operand) -> Expression:
    return _call(ExpressionOp.LOWER, text)


def upper(text: Operand) -> Expression:
    return _call(ExpressionOp.UPPER, text)


def trim(text: Operand) -> Expression:
    """Removes spaces (U+0020 only) at both ends."""
    return _call(ExpressionOp.TRIM, text)


def length(text: Operand) -> Expression:
    """Number of characters (code points) of a text, as a long."""
    return _call(ExpressionOp.LENGTH, text)


def concat(*texts: Operand) -> Expression:
    """:raises FieldError: nothing to join."""
    return _call(ExpressionOp.CONCAT, *_some("concat", texts))


def substring(text: Operand, start: int, count: int) -> Expression:
    """At most `count` characters from position `start` on, counted from 1.

    :raises FieldError: a start below 1 or a negative count.
    """
    if start < 1 or count < 0:
        raise FieldError(f"substring({start}, {count}) names no characters", "Begin at 1 or later, count from 0 up.")
    return _call(ExpressionOp.SUBSTRING, text, options=(start, count))


def split(text: Operand, delimiter: str) -> Expression:
    """The parts between the literal delimiters, empty ones included.

    :raises FieldError: an empty delimiter.
    """
    if not delimiter:
        raise FieldError("split needs a delimiter", "Give a text of one or more characters, or use split_words.")
    return _call(ExpressionOp.SPLIT, text, options=(delimiter,))


def split_words(text: Operand) -> Expression:
    """The parts between runs of ASCII whitespace (space, tab, line feed, vertical tab, form feed, return), without
    empty ones."""
    return _call(ExpressionOp.SPLIT_WORDS, text)


def size(array: Expression) -> Expression:
    """Number of elements of an array, as a long."""
    return _call(ExpressionOp.SIZE, array)


def explode(array: Expression) -> Expression:
    """One tuple per element; none for a null or an empty array. Only as the outermost expression of an ``each``."""
    return _call(ExpressionOp.EXPLODE, array)


def coalesce(*values: Operand) -> Expression:
    """The first value that is not null.

    :raises FieldError: nothing to choose from.
    """
    return _call(ExpressionOp.COALESCE, *_some("coalesce", values))


def when(condition: Expression, value: Operand) -> Case:
    """`value` where `condition` is true; continue with ``.when(...)``, end with ``.otherwise(...)``."""
    return Case(ExpressionOp.CASE, (lit(condition), lit(value)))


def cast(value: Operand, type_text: str) -> Expression:
    return lit(value).cast(type_text)


def is_null(value: Expression) -> Expression:
    return value.is_null()


def is_not_null(value: Expression) -> Expression:
    return value.is_not_null()


def contains(text: Operand, part: Operand) -> Expression:
    return lit(text).contains(part)


def starts_with(text: Operand, part: Operand) -> Expression:
    return lit(text).starts_with(part)


def ends_with(text: Operand, part: Operand) -> Expression:
    return lit(text).ends_with(part)


def _some(name: str, operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
    if not operands:
        raise FieldError(f"{name} without anything", "Give it one or more values.")
    return operands
