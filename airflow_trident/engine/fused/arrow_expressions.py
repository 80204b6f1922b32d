"""Expressions over whole columns in Arrow, where the result is the same as tuple by tuple.

Operations without a rule here, and batches with a faulty value, are evaluated tuple by tuple
(`airflow_trident.operations.evaluate`): that defines the meaning and finds the faulty tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_trident.engine.fused.frames import Frame
from airflow_trident.io.arrow import arrow_type
from airflow_trident.operations.expressions import Expression, Typed, resolve
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_Columns: TypeAlias = "Mapping[str, pa.Array]"
_Run: TypeAlias = Callable[[_Columns], Any]
_Function: TypeAlias = Callable[..., Any]


class _OtherwiseError(Exception):
    """Arrow has other rules for these values."""


@dataclass(frozen=True)
class ArrowExpression:
    """`types`: of the fields that it reads; `type`: of its value."""

    run: _Run
    types: dict[str, str]
    type: str

    @classmethod
    def of(cls, expression: Expression, before: Schema, wanted: str) -> ArrowExpression | None:
        """None: it must be evaluated tuple by tuple.

        :param wanted: the type of the value.
        """
        typed = resolve(expression, before)
        run = _build(typed) if typed.type == wanted else None
        types = {field.name: field.type for field in before if field.name in expression.reads}
        return None if run is None else cls(run, types, wanted)

    def values(self, frame: Frame) -> pa.Array | None:
        """The value of each tuple; None: these must be evaluated tuple by tuple."""
        import pyarrow as pa

        try:
            computed = self.run({name: frame.arrow(name, type_text) for name, type_text in self.types.items()})
        except (pa.ArrowException, _OtherwiseError):
            return None
        return pa.repeat(computed, frame.rows) if isinstance(computed, pa.Scalar) else computed


def _build(typed: Typed) -> _Run | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    if typed.op == "column":
        name = typed.options[0]
        return lambda columns: columns[name]
    if typed.op == "literal":
        scalar = pa.scalar(typed.options[0], arrow_type(typed.type))
        return lambda _: scalar
    function = _RULES[typed.op](pc, typed) if typed.op in _RULES else None
    arguments = [run for run in map(_build, typed.arguments) if run is not None]
    if function is None or len(arguments) < len(typed.arguments):
        return None
    return lambda columns: function(*(argument(columns) for argument in arguments))


# ---- rules -----------------------------------------------------------------------------------------------------


def _divide(pc: Any, _: Typed) -> _Function:
    return lambda left, right: pc.divide(left, pc.if_else(pc.equal(right, 0.0), None, right))


def _remainder(pc: Any, typed: Typed) -> _Function | None:
    """With the sign of the left number."""
    if typed.type != "long":
        return None

    def run(left: Any, right: Any) -> Any:
        by = pc.if_else(pc.equal(right, 0), None, right)
        return pc.subtract(left, pc.multiply(pc.divide_checked(left, by), by))

    return run


def _compare(name: str) -> _Rule:
    def rule(pc: Any, typed: Typed) -> _Function:
        compare: _Function = getattr(pc, name)
        if typed.arguments[0].type not in REAL_TYPES:
            return compare

        def run(left: Any, right: Any) -> Any:
            if any(pc.any(pc.is_nan(side)).as_py() for side in (left, right)):
                raise _OtherwiseError  # NaN equals itself and is greater than every other number
            return compare(left, right)

        return run

    return rule


def _cast(pc: Any, typed: Typed) -> _Function | None:
    source_type, wanted = typed.arguments[0].type, arrow_type(typed.type)
    if source_type in WHOLE_TYPES and typed.type in (*WHOLE_TYPES, "string"):
        return lambda values: pc.cast(values, wanted)
    if source_type in (*WHOLE_TYPES, "float") and typed.type == "double":
        return lambda values: pc.cast(values, wanted, safe=False)
    return None


def _letters(name: str) -> _Rule:
    def rule(pc: Any, _: Typed) -> _Function:
        def run(texts: Any) -> Any:
            if pc.all(pc.string_is_ascii(texts)).as_py() is False:
                raise _OtherwiseError
            return getattr(pc, name)(texts)

        return run

    return rule


def _pattern(name: str) -> _Rule:
    """A test with one literal text for all tuples."""

    def rule(pc: Any, typed: Typed) -> _Function | None:
        other = typed.arguments[1]
        if other.op != "literal" or other.options[0] is None:
            return None
        return lambda texts, _: getattr(pc, name)(texts, other.options[0])

    return rule


def _substring(pc: Any, typed: Typed) -> _Function:
    start, count = typed.options
    return lambda texts: pc.utf8_slice_codeunits(texts, start - 1, start - 1 + count)


def _case(pc: Any, _: Typed) -> _Function:
    def run(*arguments: Any) -> Any:
        *pairs, last = arguments if len(arguments) % 2 else (*arguments, None)
        chosen = last
        for condition, value in reversed(list(zip(pairs[::2], pairs[1::2], strict=True))):
            chosen = pc.if_else(pc.fill_null(condition, False), value, chosen)
        return chosen

    return run


def _count(name: str) -> _Rule:
    return lambda pc, _: lambda values: getattr(pc, name)(values).cast("int64")


def _whole_or_real(whole: str, real: str) -> _Rule:
    """Arrow's functions. That of whole numbers refuses an overflow; those of decimals have other result types."""
    names = {"long": whole, "double": real}
    return lambda pc, typed: getattr(pc, names[typed.type]) if typed.type in names else None


_Rule: TypeAlias = Callable[[Any, Typed], _Function | None]
_RULES: dict[str, _Rule] = {
    "+": _whole_or_real("add_checked", "add"),
    "-": _whole_or_real("subtract_checked", "subtract"),
    "*": _whole_or_real("multiply_checked", "multiply"),
    "negate": _whole_or_real("negate_checked", "negate"),
    "abs": _whole_or_real("abs_checked", "abs"),
    "/": _divide,
    "%": _remainder,
    "==": _compare("equal"),
    "!=": _compare("not_equal"),
    "<": _compare("less"),
    "<=": _compare("less_equal"),
    ">": _compare("greater"),
    ">=": _compare("greater_equal"),
    "&": lambda pc, _: pc.and_kleene,
    "|": lambda pc, _: pc.or_kleene,
    "not": lambda pc, _: pc.invert,
    "is_null": lambda pc, _: pc.is_null,
    "coalesce": lambda pc, _: pc.coalesce,
    "case": _case,
    "cast": _cast,
    "lower": _letters("ascii_lower"),
    "upper": _letters("ascii_upper"),
    "trim": lambda pc, _: lambda texts: pc.utf8_trim(texts, " "),
    "length": _count("utf8_length"),
    "size": _count("list_value_length"),
    "concat": lambda pc, _: lambda *texts: pc.binary_join_element_wise(*texts, ""),
    "substring": _substring,
    "split": lambda pc, typed: lambda texts: pc.split_pattern(texts, typed.options[0]),
    "contains": _pattern("match_substring"),
    "starts_with": _pattern("starts_with"),
    "ends_with": _pattern("ends_with"),
}
"""Operation -> a function that gets `pyarrow.compute` and the node and returns a function of columns; None: no rule."""
