"""Column expressions: small immutable trees that compute a value from the fields of one tuple.

Spark runs them in the JVM, without Python. `operations.evaluate` runs the same tree in Python and defines its
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

The type of a Python value as a literal of an expression.

Types of expressions: turns a tree as written into a tree in which every conversion is explicit.

The Python evaluator and the Spark compiler both walk this resolved tree, so both convert types in the same way.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, TypeAlias

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.types import (
    INTERVAL,
    LONGEST_INTERVAL,
    REAL_TYPES,
    WHOLE_TYPES,
    Schema,
    is_nested,
    members,
    parse_type,
    select,
)

MAX_PRECISION = 38


def type_of_value(value: Any) -> str:
    """The type of a Python value as a literal.

    :raises FieldError: no type holds such values.
    """
    simple: dict[type, str] = {
        bool: "boolean",
        int: "long",
        float: "double",
        str: "string",
        bytes: "binary",
        datetime.datetime: "timestamp",
        datetime.date: "date",
        datetime.timedelta: INTERVAL,
    }
    limit = WHOLE_TYPES["long"]
    if isinstance(value, int) and not -limit <= value < limit:
        raise FieldError(f"{value} does not fit a long", "Use lit(Decimal(...)) or a double.")
    if isinstance(value, datetime.timedelta) and abs(value) > LONGEST_INTERVAL:
        raise FieldError(f"{value} does not fit an {INTERVAL}", f"It has at most {LONGEST_INTERVAL.days} days.")
    if type(value) in simple:
        return simple[type(value)]
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return "time"
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale, 1)
        if precision <= MAX_PRECISION:
            return f"decimal({precision},{scale})"
    raise FieldError(
        f"{value!r} ({type(value).__name__}) cannot be a literal",
        "Use a str, int, float, bool, bytes, Decimal of at most 38 digits, date, time without a zone, datetime or "
        "timedelta.",
    )


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
        literal = lit(key)
        if literal.op is not ExpressionOp.LITERAL or (literal.options[1] == "long" and not -(2**63) <= key < 2**63):
            raise FieldError(f"get_item({key!r}) of {self}", "Give a Python value: the place, or the key.")
        return _call(ExpressionOp.GET_ITEM, self, options=literal.options)

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
    value_type = type_of_value(value) if value is not None else parse_type(str(type_text))
    if isinstance(value, datetime.datetime):
        zone = datetime.UTC
        value = value.replace(tzinfo=zone) if value.tzinfo is None else value.astimezone(zone)
    literal = Expression(ExpressionOp.LITERAL, (), (value, value_type))
    return literal if type_text is None or parse_type(type_text) == value_type else literal.cast(type_text)


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


_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_DIGITS = {name: len(str(limit)) for name, limit in WHOLE_TYPES.items()}

JAVA_DIGITS = 34
"""Spark rounds a negated decimal to this many digits."""
_OF_WHOLE = ("double", "boolean", "string", "decimal")
# Casts that give the same in Python and the JVM. Not double to string: Java prints doubles differently.
CASTS: dict[str, frozenset[str]] = {
    **dict.fromkeys(("byte", "short", "int"), frozenset({*WHOLE_TYPES, *_OF_WHOLE, "float"})),
    "long": frozenset({*WHOLE_TYPES, *_OF_WHOLE}),
    "float": frozenset({*WHOLE_TYPES, "double"}),
    "double": frozenset({*WHOLE_TYPES, "float"}),
    "decimal": frozenset({"double", "decimal"}),
    "boolean": frozenset({*WHOLE_TYPES, "string"}),
    "string": frozenset({*WHOLE_TYPES, "double", "boolean", "date", "time", "timestamp"}),
    "date": frozenset({"string", "timestamp"}),
    "time": frozenset({"string"}),
    "timestamp": frozenset({"string", "date"}),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A resolved node. `type`: of its value (for ``explode``: of the elements); `op` and `options` as in `Expression`.
    Operands of arithmetic and comparison, and branches of ``case`` and ``coalesce``, have one common type."""

    op: str
    type: str
    arguments: tuple[Typed, ...] = ()
    options: tuple[Any, ...] = ()


def dtype(expression: Expression, schema: Schema) -> str:
    """The normalised DDL type of an expression's value; for an ``explode``, of the elements.

    :raises FieldError: an unknown field, or an operand of a type that the operation cannot take.
    """
    return resolve(expression, schema).type


def resolve(expression: Expression, schema: Schema) -> Typed:
    """Check the types of an expression over a schema and make every conversion explicit.

    :raises FieldError: an unknown field; an operand of a wrong type; an ``explode`` below another operation.
    """
    return _resolve(expression, schema, expression)


def _resolve(expression: Expression, schema: Schema, whole: Expression) -> Typed:
    if expression.op == "column":
        (field,) = select(schema, expression.options, f"expression {whole}")
        return Typed("column", field.type, (), expression.options)
    if expression.op == "literal":
        return Typed("literal", expression.options[1], (), expression.options[:1])
    arguments = tuple(_resolve(argument, schema, whole) for argument in expression.arguments)
    if any(argument.op == "explode" for argument in arguments):
        raise FieldError(f"{whole}: explode inside another operation", "Make it an `each` of its own.")
    return _RULES[expression.op](_Call(expression, arguments))


def decimal_parts(type_text: str) -> tuple[int, int] | None:
    """(precision, scale) of a decimal type, else None."""
    match = _DECIMAL.match(type_text)
    return (int(match[1]), int(match[2])) if match else None


def kind(type_text: str) -> str:
    """The type without its parameters: ``decimal``, ``array``, or the type itself."""
    return re.split(r"[(<]", type_text, maxsplit=1)[0]


def to(typed: Typed, wanted: str) -> Typed:
    """The node with an explicit cast, or the node itself if it has the type."""
    return typed if typed.type == wanted else Typed("cast", wanted, (typed,), (wanted,))


# ---- rules -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Call:
    expression: Expression
    arguments: tuple[Typed, ...]

    @property
    def types(self) -> tuple[str, ...]:
        return tuple(argument.type for argument in self.arguments)

    def typed(self, result_type: str, arguments: tuple[Typed, ...] | None = None) -> Typed:
        operands = self.arguments if arguments is None else arguments
        return Typed(str(self.expression.op), result_type, operands, self.expression.options)

    def wrong(self, wanted: str) -> FieldError:
        type_texts = ", ".join(self.types)
        return FieldError(
            f"{self.expression}: {self.expression.op} cannot take ({type_texts})",
            f"It takes {wanted}; a cast may help.",
        )

    def common(self, arguments: tuple[Typed, ...]) -> str:
        types = [argument.type for argument in arguments]
        widest = types[0]
        for other in types[1:]:
            wider = common_type(widest, other)
            if wider is None:
                raise self.wrong("values of one type (numbers may differ; decimals do not mix with doubles)")
            widest = wider
        return widest


def common_type(left: str, right: str) -> str | None:
    """The type that can hold the values of both; None if there is none."""
    if left == right:
        return left
    numbers = {*WHOLE_TYPES, *REAL_TYPES}
    if left in numbers and right in numbers:
        return "long" if left in WHOLE_TYPES and right in WHOLE_TYPES else "double"
    wide = [decimal_parts(part) or ((_DIGITS[part], 0) if part in _DIGITS else None) for part in (left, right)]
    if wide[0] is None or wide[1] is None:
        return None
    scale = max(wide[0][1], wide[1][1])
    precision = max(wide[0][0] - wide[0][1], wide[1][0] - wide[1][1]) + scale
    return f"decimal({precision},{scale})" if precision <= MAX_PRECISION else None


def _arithmetic(call: _Call) -> Typed:
    if any(decimal_parts(type_text) for type_text in call.types):
        return _decimal_arithmetic(call)
    if not all(type_text in (*WHOLE_TYPES, *REAL_TYPES) for type_text in call.types):
        raise call.wrong("numbers that are no decimals")
    wanted = "long" if all(type_text in WHOLE_TYPES for type_text in call.types) else "double"
    if call.expression.op == "/":
        wanted = "double"
    return call.typed(wanted, tuple(to(argument, wanted) for argument in call.arguments))


def _decimal_arithmetic(call: _Call) -> Typed:
    """As in SQL: the result type has room for all digits, so nothing is rounded and nothing overflows."""
    arguments = tuple(map(_as_decimal, call.arguments))
    parts = [digits for argument in arguments if (digits := decimal_parts(argument.type)) is not None]
    op = str(call.expression.op)
    if len(parts) < len(arguments) or op in ("/", "%"):
        raise call.wrong("decimals and whole numbers in + - *; for / and % cast them to double")
    precision, scale = parts[0]
    if op == "*":
        precision, scale = sum(digits for digits, _ in parts) + 1, sum(behind for _, behind in parts)
    elif len(parts) > 1:
        scale = max(behind for _, behind in parts)
        precision = max(digits - behind for digits, behind in parts) + scale + 1
    max_digits = MAX_PRECISION if len(parts) > 1 else JAVA_DIGITS
    if precision > max_digits:
        raise call.wrong(f"decimals whose result has at most {max_digits} digits, and here may have {precision}")
    return call.typed(f"decimal({precision},{scale})", arguments)


def _as_decimal(typed: Typed) -> Typed:
    """A whole number as a decimal; a literal gets only as many digits as it has."""
    if typed.type not in _DIGITS:
        return typed
    if typed.op == "literal" and typed.options[0] is not None:
        value = Decimal(typed.options[0])
        return Typed("literal", f"decimal({len(value.as_tuple().digits)},0)", (), (value,))
    return to(typed, f"decimal({_DIGITS[typed.type]},0)")


def _get_field(call: _Call) -> Typed:
    (struct_type,), (name,) = call.types, call.expression.options
    if kind(struct_type) != "struct":
        raise call.wrong("a struct")
    (member,) = select(members(struct_type), (name,), f"expression {call.expression}")
    return call.typed(member.type)


def _get_item(call: _Call) -> Typed:
    (container_type,), (key, key_type) = call.types, call.expression.options
    inner = members(container_type)
    if kind(container_type) == "array":
        if key_type != "long" or key < 0:
            raise FieldError(f"{call.expression}: {key!r} is no place in an array", "Count from 0.")
        return call.typed(inner[0].type)
    if kind(container_type) != "map":
        raise call.wrong("an array or a map")
    whole = WHOLE_TYPES.get(inner[0].type)
    if inner[0].type != key_type and not (whole and key_type == "long" and -whole <= key < whole):
        raise FieldError(f"{call.expression}: the keys are of type {inner[0].type}", "Give a key of this type.")
    return call.typed(inner[1].type)


def _comparison(call: _Call) -> Typed:
    wanted = call.common(call.arguments)
    if is_nested(wanted):
        raise call.wrong("values of a simple type")
    return call.typed("boolean", tuple(to(argument, wanted) for argument in call.arguments))


def _one_kind(wanted: str, result_type: str) -> Callable[[_Call], Typed]:
    def rule(call: _Call) -> Typed:
        if not all(kind(type_text) == wanted for type_text in call.types):
            raise call.wrong(f"{wanted} values")
        return call.typed(result_type)

    return rule


def _explode(call: _Call) -> Typed:
    (array_type,) = call.types
    if kind(array_type) != "array":
        raise call.wrong("an array")
    return call.typed(array_type[len("array<") : -1])


def _coalesce(call: _Call) -> Typed:
    wanted = call.common(call.arguments)
    return call.typed(wanted, tuple(to(argument, wanted) for argument in call.arguments))


def _case(call: _Call) -> Typed:
    """Arguments are condition, value, condition, value ... and perhaps a last value."""
    pairs = len(call.arguments) // 2 * 2
    conditions, values = call.arguments[0:pairs:2], (*call.arguments[1:pairs:2], *call.arguments[pairs:])
    if any(condition.type != "boolean" for condition in conditions):
        raise call.wrong("a boolean before each value")
    wanted = call.common(values)
    cast = [to(value, wanted) for value in values]
    arguments: list[Typed] = []
    for condition, value in zip(conditions, cast, strict=False):
        arguments += [condition, value]
    return call.typed(wanted, (*arguments, *cast[len(conditions) :]))


def _cast(call: _Call) -> Typed:
    (source_type,), (wanted,) = call.types, call.expression.options
    if source_type == wanted:
        return call.arguments[0]
    if kind(wanted) not in CASTS.get(kind(source_type), frozenset()):
        allowed = ", ".join(sorted(CASTS.get(kind(source_type), frozenset()))) or "nothing"
        raise FieldError(
            f"{call.expression}: {source_type} cannot be cast to {wanted}",
            f"It can be cast to {allowed}; for anything else use a function.",
        )
    return call.typed(wanted)


def _spark_sql(call: _Call) -> Typed:
    raise FieldError(
        f"{call.expression} runs on Spark only", "It stands in each() and filter() of a stream, not in other places."
    )


def _is_null(call: _Call) -> Typed:
    return call.typed("boolean")


_text = _one_kind("string", "string")
_text_test = _one_kind("string", "boolean")
_logic = _one_kind("boolean", "boolean")
_words = _one_kind("string", "array<string>")

_RULES: dict[str, Callable[[_Call], Typed]] = {
    **dict.fromkeys(("+", "-", "*", "/", "%", "negate", "abs"), _arithmetic),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _comparison),
    **dict.fromkeys(("&", "|", "not"), _logic),
    **dict.fromkeys(("lower", "upper", "trim", "concat", "substring"), _text),
    **dict.fromkeys(("contains", "starts_with", "ends_with"), _text_test),
    **dict.fromkeys(("split", "split_words"), _words),
    "length": _one_kind("string", "long"),
    "size": _one_kind("array", "long"),
    "explode": _explode,
    "coalesce": _coalesce,
    "case": _case,
    "cast": _cast,
    "is_null": _is_null,
    "get_field": _get_field,
    "get_item": _get_item,
    "spark_sql": _spark_sql,
}
