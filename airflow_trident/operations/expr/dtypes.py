"""Types of expressions: turns a tree as written into a tree in which every conversion is explicit.

The Python evaluator and the Spark compiler both walk this resolved tree, so both convert types in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from airflow_trident.errors import FieldError
from airflow_trident.operations.expr.literals import MAX_PRECISION
from airflow_trident.operations.expr.tree import Expression
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema, is_nested, members, select

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

    def typed(self, result: str, arguments: tuple[Typed, ...] | None = None) -> Typed:
        given = self.arguments if arguments is None else arguments
        return Typed(str(self.expression.op), result, given, self.expression.options)

    def wrong(self, wanted: str) -> FieldError:
        given = ", ".join(self.types)
        return FieldError(
            f"{self.expression}: {self.expression.op} cannot take ({given})", f"It takes {wanted}; a cast may help."
        )

    def common(self, arguments: tuple[Typed, ...]) -> str:
        types = [argument.type for argument in arguments]
        result = types[0]
        for other in types[1:]:
            wider = common_type(result, other)
            if wider is None:
                raise self.wrong("values of one type (numbers may differ; decimals do not mix with doubles)")
            result = wider
        return result


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
    if any(decimal_parts(given) for given in call.types):
        return _decimal_arithmetic(call)
    if not all(given in (*WHOLE_TYPES, *REAL_TYPES) for given in call.types):
        raise call.wrong("numbers that are no decimals")
    wanted = "long" if all(given in WHOLE_TYPES for given in call.types) else "double"
    if call.expression.op == "/":
        wanted = "double"
    return call.typed(wanted, tuple(to(argument, wanted) for argument in call.arguments))


def _decimal_arithmetic(call: _Call) -> Typed:
    """As in SQL: the result type has room for all digits, so nothing is rounded and nothing overflows."""
    arguments = tuple(map(_as_decimal, call.arguments))
    parts = [found for one in arguments if (found := decimal_parts(one.type)) is not None]
    op = str(call.expression.op)
    if len(parts) < len(arguments) or op in ("/", "%"):
        raise call.wrong("decimals and whole numbers in + - *; for / and % cast them to double")
    precision, scale = parts[0]
    if op == "*":
        precision, scale = sum(digits for digits, _ in parts) + 1, sum(behind for _, behind in parts)
    elif len(parts) > 1:
        scale = max(behind for _, behind in parts)
        precision = max(digits - behind for digits, behind in parts) + scale + 1
    most = MAX_PRECISION if len(parts) > 1 else JAVA_DIGITS
    if precision > most:
        raise call.wrong(f"decimals whose result has at most {most} digits, and here may have {precision}")
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
    (given,), (name,) = call.types, call.expression.options
    if kind(given) != "struct":
        raise call.wrong("a struct")
    (member,) = select(members(given), (name,), f"expression {call.expression}")
    return call.typed(member.type)


def _get_item(call: _Call) -> Typed:
    (given,), (key, key_type) = call.types, call.expression.options
    inner = members(given)
    if kind(given) == "array":
        if key_type != "long" or key < 0:
            raise FieldError(f"{call.expression}: {key!r} is no place in an array", "Count from 0.")
        return call.typed(inner[0].type)
    if kind(given) != "map":
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


def _one_kind(wanted: str, result: str) -> Callable[[_Call], Typed]:
    def rule(call: _Call) -> Typed:
        if not all(kind(given) == wanted for given in call.types):
            raise call.wrong(f"{wanted} values")
        return call.typed(result)

    return rule


def _explode(call: _Call) -> Typed:
    (given,) = call.types
    if kind(given) != "array":
        raise call.wrong("an array")
    return call.typed(given[len("array<") : -1])


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
    (given,), (wanted,) = call.types, call.expression.options
    if given == wanted:
        return call.arguments[0]
    if kind(wanted) not in CASTS.get(kind(given), frozenset()):
        allowed = ", ".join(sorted(CASTS.get(kind(given), frozenset()))) or "nothing"
        raise FieldError(
            f"{call.expression}: {given} cannot be cast to {wanted}",
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
