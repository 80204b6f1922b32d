"""Rules about the rows of a batch, which gate its publication: each row of an expectation, one number of a check.

A rule is declared, bound to the fields of a stream, measured by an engine, and judged when all numbers of the
transaction are there. Nothing of a batch is published before that. Pure: engines measure
(:mod:`airflow_trident.engine.fused.measuring`).
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any, TypeAlias

from airflow_trident.errors import FieldError, PlanError, cleaned
from airflow_trident.operations.expressions import Expression, decimal_parts, dtype
from airflow_trident.operations.user_functions import function_name
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, FieldSpec, Json, Schema, is_nested, select

MOST_RULES = 64
"""So many rules may a topology have: their numbers are in the record of each transaction."""
_NAME_CHARACTERS = 100
_DIGITS = 8


class Severity(StrEnum):
    """The effect of a broken rule on its transaction."""

    ERROR = "error"
    """It is FAILED, and nothing of it is published."""
    WARN = "warn"
    """It is published; the record has the number."""


class RuleVerdict(StrEnum):
    PASSED = "passed"
    WARNED = "warned"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    """There is nothing to judge, as a share of no rows."""


class Measure(StrEnum):
    """The number that a check measures: the catalogue of Airflow's data quality, and `sum`."""

    ROW_COUNT = "row_count"
    NULL_COUNT = "null_count"
    NULL_RATIO = "null_ratio"
    DISTINCT_COUNT = "distinct_count"
    UNIQUE_VIOLATIONS = "unique_violations"
    MIN = "min"
    MAX = "max"
    MEAN = "mean"
    SUM = "sum"

    @property
    def is_distinct(self) -> bool:
        """Does it need each different value?"""
        return self in (Measure.DISTINCT_COUNT, Measure.UNIQUE_VIOLATIONS)


Bound: TypeAlias = int | float | Decimal | datetime.date | datetime.datetime
_LIMITS = ("equal_to", "greater_than", "geq_to", "less_than", "leq_to")
_SIGNS = dict(zip(_LIMITS, ("==", ">", ">=", "<", "<="), strict=True))


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """`name`: unique in the topology; the record of a transaction has its number under it. `shown`: the text of the
    condition, if the rule reads a field with its value."""

    name: str
    severity: Severity = Severity.ERROR
    description: str = ""
    shown: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields that it reads."""
        raise NotImplementedError

    @property
    def measured(self) -> str:
        """The text of the number, without the limit."""
        raise NotImplementedError

    @property
    def limit(self) -> str:
        """The text of the limit, for people."""
        raise NotImplementedError

    @property
    def uid(self) -> str:
        """Equal for rules that measure the same: their numbers can be judged by each other's limits."""
        return hashlib.sha256(self.measured.encode()).hexdigest()[:_DIGITS]

    def holds(self, number: Mapping[str, Json]) -> bool | None:
        """Does the number keep the limit? None: there is nothing to judge."""
        raise NotImplementedError

    def judge(self, number: Mapping[str, Json]) -> RuleVerdict:
        """:param number: as :func:`number` makes it."""
        holds = self.holds(number)
        if holds is None:
            return RuleVerdict.NOT_APPLICABLE
        if holds:
            return RuleVerdict.PASSED
        return RuleVerdict.WARNED if self.severity is Severity.WARN else RuleVerdict.FAILED

    def __str__(self) -> str:
        mark = " (warn)" if self.severity is Severity.WARN else ""
        return f"{self.name}: {self.measured} {self.limit}{mark}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Expectation(Rule):
    """True for each row. Its number is that of rows for which `condition` is false or null.

    `condition`: an expression; before the rule is bound also a function of the fields `inputs`. `at_most`: the share of
    rows that may break it.
    """

    condition: Any
    inputs: FieldSpec | None = None
    at_most: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(self.condition.reads)

    @property
    def measured(self) -> str:
        return f"rows without {self.shown or self.condition}"

    @property
    def limit(self) -> str:
        return f"<= {self.at_most:.6g} of all" if self.at_most else "== 0"

    def holds(self, number: Mapping[str, Json]) -> bool | None:
        rows, broken = _whole(number, "rows"), _whole(number, "value")
        if not rows:
            return None
        return broken <= Decimal(repr(self.at_most)) * rows  # as it is written: 0.29 of 100 are 29


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchCheck(Rule):
    """One number of the batch. `only`: an expression; rows for which it is not true do not count."""

    what: Measure
    column: str | None = None
    limits: Mapping[str, Bound]
    tolerance: float | None = None
    only: Expression | None = None

    @property
    def reads(self) -> tuple[str, ...]:
        of_column = (self.column,) if self.column is not None else ()
        return tuple(dict.fromkeys((*of_column, *(self.only.reads if self.only is not None else ()))))

    @property
    def measured(self) -> str:
        only = f" where {self.shown or self.only}" if self.only is not None else ""
        return f"{self.what}{f' of {self.column}' if self.column is not None else ''}{only}"

    @property
    def limit(self) -> str:
        text = " and ".join(f"{_SIGNS[name]} {bound}" for name, bound in self.limits.items())
        return text if self.tolerance is None else f"{text}, tolerance {self.tolerance:.6g}"

    def holds(self, number: Mapping[str, Json]) -> bool | None:
        value = number["value"]
        if value is None:
            return None
        return all(self._keeps(value, name, bound) for name, bound in self.limits.items())

    def _keeps(self, written: Json, name: str, bound: Bound) -> bool:
        value: Any = _read(written, bound)
        match name:
            case "equal_to" if self.tolerance is not None:
                assert not isinstance(bound, datetime.date)
                return bool(
                    abs(Fraction(value) - Fraction(bound)) <= Fraction(repr(self.tolerance)) * abs(Fraction(bound))
                )
            case "equal_to":
                return bool(value == bound)
            case "greater_than":
                return bool(value > bound)
            case "geq_to":
                return bool(value >= bound)
            case "less_than":
                return bool(value < bound)
        return bool(value <= bound)


# ---- what users write ------------------------------------------------------------------------------------------


def expect(
    name: str,
    condition: Any,
    *,
    inputs: FieldSpec | None = None,
    at_most: float = 0.0,
    severity: str = Severity.ERROR,
    description: str = "",
) -> Expectation:
    """A rule for each row: ``expect("paid", col("cents") > 0)``. False and null break it.

    :param condition: a boolean column expression, or a function, or a `Filter`, of the fields `inputs`.
    :param at_most: the share of rows that may break it, as in ``0.001``.
    :param severity: ``error``: the transaction is FAILED, and nothing of it is published; ``warn``: it is published.
    :raises PlanError: an argument is wrong.
    """
    _require_name("expect", name)
    if isinstance(at_most, bool) or not isinstance(at_most, int | float) or not 0 <= at_most < 1:
        raise PlanError(f"expect {name!r} got at_most={at_most!r}", "Give a share of rows: 0 or more, below 1.")
    is_filter = callable(getattr(condition, "is_keep", None))
    if not isinstance(condition, Expression) and not callable(condition) and not is_filter:
        raise PlanError(
            f"expect {name!r} got the condition {condition!r}",
            'Give an expression, as in col("cents") > 0, or a function with inputs="cents".',
        )
    if isinstance(condition, Expression) == (inputs is not None):
        raise PlanError(
            f"expect {name!r} got {'an expression and inputs' if inputs is not None else 'a function without inputs'}",
            "Name the fields that a function gets, as in inputs='cents'; an expression names its own.",
        )
    return Expectation(
        name=name,
        condition=condition,
        inputs=inputs,
        at_most=float(at_most),
        severity=_severity("expect", name, severity),
        description=description,
    )


def check(
    name: str,
    what: str,
    column: str | None = None,
    *,
    equal_to: Bound | None = None,
    greater_than: Bound | None = None,
    geq_to: Bound | None = None,
    less_than: Bound | None = None,
    leq_to: Bound | None = None,
    tolerance: float | None = None,
    where: Expression | None = None,
    severity: str = Severity.ERROR,
    description: str = "",
) -> BatchCheck:
    """A rule for one number of the batch: ``check("volume", "row_count", geq_to=1)``.

    :param what: ``row_count``, ``null_count``, ``null_ratio``, ``distinct_count``, ``unique_violations`` (values that
        are there again), ``min``, ``max``, ``mean`` or ``sum``. All but the first are of a `column`.
    :param tolerance: with `equal_to`: the number may differ by this share of it.
    :param where: only rows for which this expression is true count.
    :param severity: as for :func:`expect`.
    :raises PlanError: an argument is wrong.
    """
    _require_name("check", name)
    if what not in set(Measure):
        raise PlanError(f"check {name!r} got {what!r}", f"Use one of {', '.join(Measure)}.")
    if (column is None) != (what == Measure.ROW_COUNT):
        needs = f"is of the batch, and got the column {column!r}" if column is not None else "needs a column"
        raise PlanError(f"check {name!r}: {what} {needs}", 'As in check("ids", "unique_violations", "id", equal_to=0).')
    if where is not None and not isinstance(where, Expression):
        raise PlanError(f"check {name!r} got where={where!r}", 'Give an expression, as in where=col("kind") == "new".')
    given = zip(_LIMITS, (equal_to, greater_than, geq_to, less_than, leq_to), strict=True)
    limits = {limit: bound for limit, bound in given if bound is not None}
    _require_limits(name, limits, tolerance)
    return BatchCheck(
        name=name,
        what=Measure(what),
        column=column,
        limits=limits,
        tolerance=tolerance,
        only=where,
        severity=_severity("check", name, severity),
        description=description,
    )


def _require_name(verb: str, name: object) -> None:
    is_line = isinstance(name, str) and name.splitlines() == [name] == [name.strip()] and cleaned(name) == name
    if not is_line or len(str(name)) > _NAME_CHARACTERS:
        raise PlanError(f"{verb} got the name {name!r}", f"Give a text of one line, at most {_NAME_CHARACTERS}.")


def _severity(verb: str, name: str, severity: str) -> Severity:
    if severity not in set(Severity):
        raise PlanError(f"{verb} {name!r} got severity={severity!r}", 'Use severity="error" or "warn".')
    return Severity(severity)


def _require_some_number(name: str, limits: Mapping[str, Bound]) -> None:
    """:raises PlanError: two limits that no number is within."""
    lows = [limits[limit] for limit in ("greater_than", "geq_to") if limit in limits]
    highs = [limits[limit] for limit in ("less_than", "leq_to") if limit in limits]
    is_open = "greater_than" in limits or "less_than" in limits
    for low, high in itertools.product(lows, highs):
        try:
            is_empty = low > high or (is_open and low == high)  # type: ignore[operator]
        except TypeError:
            raise PlanError(f"check {name!r} has limits of two types: {low!r} and {high!r}", "Give one type.") from None
        if is_empty:
            raise PlanError(f"check {name!r} never passes: nothing is between {low!r} and {high!r}", "Exchange them.")


def _require_limits(name: str, limits: Mapping[str, Bound], tolerance: float | None) -> None:
    if not limits:
        raise PlanError(f"check {name!r} has no condition", f"Give one of {', '.join(_LIMITS)}.")
    if "equal_to" in limits and len(limits) > 1:
        raise PlanError(f"check {name!r} has equal_to and others", "Give equal_to alone, or a range without it.")
    for limit, bound in limits.items():
        if isinstance(bound, bool) or not isinstance(bound, int | float | Decimal | datetime.date):
            raise PlanError(f"check {name!r} got {limit}={bound!r}", "Give a number, a date or a time with a zone.")
        if isinstance(bound, float | Decimal) and not math.isfinite(bound):
            raise PlanError(f"check {name!r} got {limit}={bound!r}", "Give a finite number.")
        if isinstance(bound, datetime.datetime) and bound.tzinfo is None:
            raise PlanError(f"check {name!r} got {limit}={bound!r} without a zone", "Give a time with tzinfo=UTC.")
    _require_some_number(name, limits)
    if tolerance is None:
        return
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
        raise PlanError(f"check {name!r} got tolerance={tolerance!r}", "Give a share, 0 or more, as in 0.1.")
    if not isinstance(limits.get("equal_to"), int | float | Decimal):
        raise PlanError(f"check {name!r} has a tolerance without equal_to", "Give equal_to, or a range.")


# ---- binding ---------------------------------------------------------------------------------------------------


def require_fits(rule: Rule, schema: Schema) -> None:
    """Checks a rule whose conditions are expressions.

    :raises FieldError: a field is unknown, or of a type that the rule cannot take.
    """
    if isinstance(rule, Expectation):
        _require_boolean(f"expect {rule.name!r}", rule.condition, schema)
    if not isinstance(rule, BatchCheck):
        return
    subject = f"check {rule.name!r}"
    if rule.only is not None:
        _require_boolean(subject, rule.only, schema)
    if rule.column is None:
        type_text = "long"
    else:
        (field,) = select(schema, [rule.column], subject)
        type_text = field.type
        if not _takes(rule.what, type_text):
            raise FieldError(
                f"{subject}: {rule.what} of the field {rule.column!r}, which is {type_text}",
                "min and max take numbers, dates and timestamps; mean and sum take numbers; no check of values takes "
                "arrays, maps or structs.",
            )
    for limit, bound in rule.limits.items():
        if not _is_comparable(rule.what, type_text, bound):
            raise FieldError(
                f"{subject}: {rule.measured} cannot be compared with {limit}={bound!r}",
                "Give a date for a date, a datetime for a timestamp, and a number for all others.",
            )


def _require_boolean(subject: str, expression: Expression, schema: Schema) -> None:
    select(schema, expression.reads, subject)
    expression_type = dtype(expression, schema)
    if expression_type != "boolean" or expression.is_explode:
        raise FieldError(f"{subject} needs a boolean and {expression} is {expression_type}", "Compare it.")


def is_number(type_text: str) -> bool:
    return type_text in WHOLE_TYPES or type_text in REAL_TYPES or decimal_parts(type_text) is not None


def _takes(what: Measure, type_text: str) -> bool:
    match what:
        case Measure.NULL_COUNT | Measure.NULL_RATIO:
            return True
        case Measure.MIN | Measure.MAX:  # of a text it would be a value of a row, and no statistic
            return is_number(type_text) or type_text in ("date", "timestamp")
        case Measure.MEAN | Measure.SUM:
            return is_number(type_text)
    return not is_nested(type_text)


def _is_comparable(what: Measure, type_text: str, bound: Bound) -> bool:
    wanted = type_text if what in (Measure.MIN, Measure.MAX) else "long"
    if wanted == "timestamp":
        return isinstance(bound, datetime.datetime)
    if wanted == "date":
        return isinstance(bound, datetime.date) and not isinstance(bound, datetime.datetime)
    return not isinstance(bound, datetime.date)


def with_condition(rule: Rule, condition: Expression, inputs: Sequence[str] = ()) -> Rule:
    """The rule with another expression in place of its condition, or of its `where`.

    :param inputs: the fields that its function gets.
    """
    if isinstance(rule, Expectation):
        is_text = isinstance(rule.condition, Expression)
        shown = str(rule.condition) if is_text else f"{function_name(rule.condition)}({', '.join(inputs)})"
        return replace(rule, condition=condition, inputs=None, shown=shown)
    return replace(rule, only=condition, shown=str(rule.only)) if isinstance(rule, BatchCheck) else rule


# ---- numbers ---------------------------------------------------------------------------------------------------


def written(value: Any) -> Json:
    """A measured value as JSON: texts for what JSON has no numbers for."""
    if isinstance(value, datetime.date | Decimal):
        return value.isoformat() if isinstance(value, datetime.date) else str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    result: Json = value
    return result


def _read(value: Json, bound: Bound) -> Any:
    if not isinstance(value, str):
        return value
    if isinstance(bound, datetime.datetime):
        return datetime.datetime.fromisoformat(value)
    if isinstance(bound, datetime.date):
        return datetime.date.fromisoformat(value)
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return Decimal(value) if not isinstance(bound, float) else float(Decimal(value))


def _whole(number: Mapping[str, Json], name: str) -> int:
    value = number[name]
    assert isinstance(value, int), f"{name} is {value!r}"
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdicts about one transaction, as the ledger keeps them. `failed`: one line for each broken rule of
    severity error."""

    checks: dict[str, Json]
    failed: tuple[str, ...]

    @classmethod
    def of(cls, rules: Sequence[Rule], numbers: Mapping[str, Any]) -> Judged:
        """
        :param numbers: rule -> its number. One at least is there for each rule.
        :raises KeyError: the number of a rule is missing: it must not pass.
        """
        checks: dict[str, Json] = {}
        failed = []
        for rule in rules:
            number = numbers[rule.name]
            verdict = rule.judge(number)
            checks[rule.name] = {
                "value": number["value"],
                "rows": number["rows"],
                "verdict": str(verdict),
                "rule": rule.uid,
                "limit": rule.limit,
            }
            if verdict is RuleVerdict.FAILED:
                value, rows = number["value"], number["rows"]
                failed.append(f"{rule.name}: {rule.measured} is {value} and must be {rule.limit} ({rows} rows)")
        return cls(checks=checks, failed=tuple(failed))
