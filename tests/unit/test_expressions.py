"""Column expressions: built, typed and evaluated in Python. That the JVM agrees is tested beside Spark."""

from __future__ import annotations

import datetime
import math
import pickle
from decimal import Decimal
from typing import Any

import pytest

from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import (
    Expression,
    cast,
    coalesce,
    col,
    concat,
    contains,
    dtype,
    explode,
    is_not_null,
    is_null,
    length,
    lit,
    lower,
    size,
    split,
    split_words,
    starts_with,
    substring,
    trim,
    upper,
    when,
)
from airflow_trident.types import Schema, parse_declared

SCHEMA: Schema = parse_declared(
    "a long, b long, i int, x double, f float, s string, t string, p boolean, q boolean, words array<string>, "
    "d decimal(6,2), day date, at timestamp, raw binary, big decimal(38,0), some decimal(34,0), "
    "prices map<string,decimal(6,2)>, ages map<byte,int>, part struct<a:int,b:array<struct<c:string>>>"
)
MAX, MIN = 2**63 - 1, -(2**63)


def value(expression: Expression, **row: Any) -> Any:
    return bind(expression, SCHEMA)(*(row.get(name) for name in expression.reads))


# ---- building --------------------------------------------------------------------------------------------------


def test_an_expression_reads_its_fields_once_in_the_order_of_first_use() -> None:
    assert (col("b") + col("a") * col("b")).reads == ("b", "a")
    assert lit(1).reads == ()


def test_the_text_is_readable_and_the_same_in_every_process() -> None:
    expression = when(lower(col("s")) == "x", (col("a") + 1) % 2).otherwise(cast(col("x"), "LONG"))
    assert str(expression) == "case((lower(s) == 'x'), ((a + 1) % 2), cast(x as long))"
    assert str(split(trim(col("s")), ",")) == "split(trim(s), ',')"
    assert str(~(col("p") & (col("a") >= -1))) == "not((p & (a >= -1)))"
    assert str(explode(split_words(col("s")))) == "explode(split_words(s))"
    assert repr(col("a")) == "<expression a>"


def test_an_expression_survives_pickling_and_can_be_a_key() -> None:
    expression = when(col("p"), col("a")).otherwise(0)
    assert str(pickle.loads(pickle.dumps(expression))) == str(expression)
    assert {expression: 1}[expression] == 1


def test_the_truth_of_an_expression_is_an_error_that_says_what_to_write() -> None:
    with pytest.raises(PlanError, match=r"\(a == 1\) has no truth.*Use & \| ~"):
        assert col("a") == 1 and col("b") == 2  # noqa: PT018 - the mistake that users make
    with pytest.raises(PlanError, match=r"& \| ~"):
        assert not col("p")
    with pytest.raises(PlanError, match=r"& \| ~"):
        assert col("a") in [lit(1)]


def test_python_values_on_either_side_become_literals() -> None:
    assert str(1 - col("a")) == "(1 - a)"
    assert dtype(lit(datetime.time(8)), ()) == "time"
    assert dtype(lit(datetime.timedelta(1)), ()) == "interval day to second"
    assert str(2 / col("x")) == "(2 / x)"
    assert str(1 < col("a")) == "(a > 1)"  # noqa: SIM300 - Python turns it round
    assert str(True & col("p")) == "(True & p)"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lit(None), "null literal has no type"),
        (lambda: lit(2**63), "does not fit a long"),
        (lambda: col("took") < datetime.timedelta(days=106_751_992), "106751992 days, .* at most 106751991 days"),
        (lambda: lit(datetime.time(8, tzinfo=datetime.UTC)), "cannot be a literal"),
        (lambda: lit({"a": 1}), "cannot be a literal"),
        (lambda: lit(Decimal("NaN")), "cannot be a literal"),
        (lambda: lit(Decimal(1).scaleb(-39)), "cannot be a literal"),
        (lambda: split(col("s"), ""), "needs a delimiter"),
        (lambda: substring(col("s"), 0, 1), "names no characters"),
        (concat, "without anything"),
        (lambda: col("s").cast("varchar"), "unknown type"),
    ],
)
def test_what_cannot_mean_anything_is_refused_when_it_is_written(make: Any, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        make()


# ---- types -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (col("a"), "long"),
        (col("i") + col("i"), "long"),
        (col("i") / col("a"), "double"),
        (col("f") * col("i"), "double"),
        (-col("f"), "double"),
        (abs(col("i")), "long"),
        (col("a") == col("x"), "boolean"),
        (col("d") < 3, "boolean"),
        (coalesce(col("i"), col("a")), "long"),
        (coalesce(col("a"), col("x")), "double"),
        (coalesce(col("d"), col("i")), "decimal(12,2)"),
        (when(col("p"), col("i")).otherwise(1.5), "double"),
        (when(col("p"), col("s")), "string"),
        (col("d") + 1, "decimal(7,2)"),
        (col("d") - col("i"), "decimal(13,2)"),
        (col("d") * col("d") * 10, "decimal(16,4)"),
        (-col("d"), "decimal(6,2)"),
        (col("prices").get_item("a"), "decimal(6,2)"),
        (col("ages").get_item(-128), "int"),
        (col("part").get_field("b").get_item(0).get_field("c"), "string"),
        (length(col("s")), "long"),
        (split(col("s"), ","), "array<string>"),
        (explode(split(col("s"), ",")), "string"),
        (size(col("words")), "long"),
        (col("at").cast("date"), "date"),
        (lit(None, "int"), "int"),
        (lit(Decimal("1.50")), "decimal(3,2)"),
        (lit(b"x"), "binary"),
        (lit(datetime.date(2026, 1, 2)), "date"),
    ],
)
def test_the_type_follows_from_the_fields(expression: Expression, expected: str) -> None:
    assert dtype(expression, SCHEMA) == expected


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (col("aa"), "no field 'aa'.*Did you mean 'a'"),
        (col("s") + 1, "cannot take \\(string, long\\)"),
        (col("d") / 2, "cannot take \\(decimal.*cast them to double"),
        (col("d") % col("d"), "cannot take \\(decimal"),
        (col("d") + col("x"), "cannot take \\(decimal"),
        (col("big") * col("d"), "at most 38 digits, and here may have 45"),
        (-col("big"), "at most 34 digits, and here may have 38"),
        (col("words").get_field("a"), "cannot take.*a struct"),
        (col("part").get_field("aa"), "no field 'aa'.*Did you mean 'a'"),
        (col("words").get_item(-1), "no place in an array.*Count from 0"),
        (col("words").get_item("a"), "no place in an array"),
        (col("prices").get_item(1), "keys are of type string"),
        (col("ages").get_item(128), "keys are of type byte"),
        (col("s").get_item(0), "an array or a map"),
        (lower(col("a")), "string values"),
        (col("s") == 1, "values of one type"),
        (col("d") == col("x"), "values of one type"),
        (col("words") == col("words"), "simple type"),
        (col("p") & col("a"), "boolean values"),
        (when(col("a"), 1), "a boolean before each value"),
        (when(col("p"), 1).otherwise("x"), "values of one type"),
        (explode(col("s")), "an array"),
        (length(explode(col("words"))), "explode inside another operation"),
        (size(col("s")), "array values"),
        (col("x").cast("string"), "double cannot be cast to string"),
        (col("words").cast("string"), "array<string> cannot be cast"),
        (col("raw").cast("string"), "binary cannot be cast"),
        (coalesce(lit(Decimal("1e37")), lit(Decimal("1e-37"))), "values of one type"),
    ],
)
def test_a_wrong_type_is_named_with_the_expression(expression: Expression, words: str) -> None:
    with pytest.raises(FieldError, match=words):
        dtype(expression, SCHEMA)


# ---- meaning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (True, True, True, True),
        (True, False, False, True),
        (True, None, None, True),
        (False, False, False, False),
        (False, None, False, None),
        (None, None, None, None),
    ],
)
def test_logic_has_three_values(left: Any, right: Any, both: Any, either: Any) -> None:
    for p, q in ((left, right), (right, left)):
        assert value(col("p") & col("q"), p=p, q=q) is both
        assert value(col("p") | col("q"), p=p, q=q) is either
    assert value(~col("p"), p=None) is None


@pytest.mark.parametrize(
    "expression",
    [
        col("a") + 1,
        col("a") == col("b"),
        lower(col("s")),
        concat(col("s"), "x"),
        size(col("words")),
        col("a").cast("string"),
        split_words(col("s")),
        contains(col("s"), "x"),
    ],
)
def test_an_operation_on_null_is_null(expression: Expression) -> None:
    assert value(expression, b=1) is None


def test_what_asks_for_null_answers() -> None:
    assert value(is_null(col("a"))) is True
    assert value(is_not_null(col("a"))) is False
    assert value(coalesce(col("a"), col("b"), 7), b=None) == 7
    assert value(when(col("p"), 1).when(~col("p"), 2).otherwise(3)) == 3
    assert value(when(col("p"), 1), p=False) is None


def test_whole_numbers_overflow_loudly() -> None:
    for expression, row in (
        (col("a") + 1, {"a": MAX}),
        (col("a") * 2, {"a": MAX}),
        (-col("a"), {"a": MIN}),
        (abs(col("a")), {"a": MIN}),
        (col("a").cast("int"), {"a": 2**31}),
        (col("x").cast("long"), {"x": 2.0**63}),
        (col("x").cast("long"), {"x": math.nan}),
        (col("a").cast("decimal(3,0)"), {"a": 1000}),
    ):
        with pytest.raises(OverflowError, match=r"fit|cast"):
            value(expression, **row)
    assert value(col("i") * col("i"), i=2**31 - 1) == (2**31 - 1) ** 2


def test_division_is_real_and_by_zero_gives_null() -> None:
    assert value(col("a") / col("b"), a=7, b=2) == 3.5
    assert value(col("a") / col("b"), a=7, b=0) is None
    assert value(col("x") / 0.0, x=1.0) is None
    assert value(col("a") % col("b"), a=7, b=0) is None
    assert value(col("a") % col("b"), a=-7, b=3) == -1
    assert value(col("a") % col("b"), a=7, b=-3) == 1
    assert value(col("a") % col("b"), a=MIN, b=-1) == 0
    assert value(col("x") % 2.5, x=-6.0) == -1.0
    assert math.isnan(value(col("x") % 2, x=math.inf))


def test_nan_equals_itself_and_is_the_greatest() -> None:
    assert value(col("x") == col("x"), x=math.nan) is True
    assert value(col("x") > math.inf, x=math.nan) is True
    assert value(col("x") < lit(math.nan), x=math.nan) is False
    assert value(col("x") <= 1.0, x=math.nan) is False


def test_a_long_is_compared_with_a_double_as_a_double() -> None:
    assert value(col("a") == col("x"), a=2**53 + 1, x=2.0**53) is True
    assert value(coalesce(col("a"), col("x")) + 1, a=MAX) == 2.0**63


def test_texts() -> None:
    assert value(length(col("s")), s="猫😀") == 2
    assert value(upper(col("s")), s="größe") == "GRÖSSE"
    assert value(trim(col("s")), s=" \tx \n ") == "\tx \n"
    assert value(substring(col("s"), 2, 3), s="a😀猫de") == "😀猫d"
    assert value(substring(col("s"), 9, 3), s="abc") == ""
    assert value(concat(col("s"), "-", col("t")), s="a", t="b") == "a-b"
    assert value(starts_with(col("s"), col("t")), s="abc", t="") is True
    assert value(col("s").contains("."), s="abc") is False
    assert value(col("s").ends_with("c"), s="abc") is True
    assert value(col("s") < col("t"), s="\uffff", t="😀") is True  # by code points, not by UTF-16 units


def test_split_takes_the_delimiter_as_it_is() -> None:
    assert value(split(col("s"), "."), s="a.b..c.") == ["a", "b", "", "c", ""]
    assert value(split(col("s"), ","), s="") == [""]
    assert value(split(col("s"), "\\E|"), s="a\\E|b") == ["a", "b"]


def test_words_are_what_stands_between_ascii_whitespace() -> None:
    assert value(split_words(col("s")), s=" a\tb\n\x0b\x0c\rc\u00a0d \x1ce ") == ["a", "b", "c\u00a0d", "\x1ce"]
    assert value(split_words(col("s")), s=" \n ") == []


def test_explode_gives_a_list_that_is_empty_for_null() -> None:
    of_row = bind(explode(col("words")), SCHEMA)
    assert of_row(["a", None]) == ["a", None]
    assert of_row(None) == []


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        (" +12 ", "long", 12),
        ("-0", "int", 0),
        (".5e1", "double", 5.0),
        ("-Infinity", "double", -math.inf),
        ("true", "boolean", True),
        ("2024-02-29", "date", datetime.date(2024, 2, 29)),
        ("2024-02-29 23:59:59.5", "timestamp", datetime.datetime(2024, 2, 29, 23, 59, 59, 500_000, datetime.UTC)),
        ("2024-03-01T00:00:00+01:30", "timestamp", datetime.datetime(2024, 2, 29, 22, 30, tzinfo=datetime.UTC)),
        ("2024-03-01 00:00:00Z", "timestamp", datetime.datetime(2024, 3, 1, tzinfo=datetime.UTC)),
    ],
)
def test_a_text_is_cast_by_a_plain_grammar(text: str, wanted: str, expected: Any) -> None:
    assert value(col("s").cast(wanted), s=text) == expected


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1_000", "long"),
        ("٣", "long"),
        ("1.0", "long"),
        ("", "long"),
        ("9223372036854775808", "long"),
        ("1d", "double"),
        ("0x1p3", "double"),
        ("yes", "boolean"),
        ("2023-02-29", "date"),
        ("2023-2-9", "date"),
        ("2023-02-09 24:00:00", "timestamp"),
        ("2023-02-09", "timestamp"),
    ],
)
def test_any_other_text_is_an_error(text: str, wanted: str) -> None:
    with pytest.raises((ValueError, OverflowError)):
        value(col("s").cast(wanted), s=text)


def test_other_casts() -> None:
    at = datetime.datetime(999, 12, 31, 23, 59, 59, 120_000, datetime.UTC)
    assert value(col("at").cast("string"), at=at) == "0999-12-31 23:59:59.12"
    assert value(col("at").cast("date"), at=at) == datetime.date(999, 12, 31)
    assert value(col("day").cast("timestamp"), day=at.date()).isoformat() == "0999-12-31T00:00:00+00:00"
    assert value(col("x").cast("int"), x=-2.9) == -2
    assert value(col("x").cast("float"), x=0.1) != 0.1
    assert value(col("d").cast("decimal(4,1)"), d=Decimal("-1.25")) == Decimal("-1.3")
    assert value(col("p").cast("string"), p=True) == "true"
    assert value(col("a").cast("boolean"), a=2) is True


def test_decimals_are_exact_to_the_last_digit() -> None:
    most = Decimal(10**34 - 1)
    assert value(0 - col("some"), some=most) == Decimal(1 - 10**34)
    assert value(-col("some"), some=most) == Decimal(1 - 10**34)
    assert value(abs(col("some")), some=Decimal(1 - 10**34)) == most
    assert value(col("d") * col("d") + col("a"), d=Decimal("9999.99"), a=MAX) == Decimal("99999800.0001") + MAX
    assert value(col("d") - 1, d=None) is None


def test_members_elements_and_values_of_keys() -> None:
    part = {"a": None, "b": [None, {"c": "x"}]}
    assert value(col("part").get_field("b").get_item(1).get_field("c"), part=part) == "x"
    assert value(col("part").get_field("b").get_item(0).get_field("c"), part=part) is None
    assert value(col("part").get_field("b").get_item(2), part=part) is None
    assert value(col("part").get_field("a"), part=None) is None
    assert value(col("prices").get_item("a"), prices={"a": Decimal("1.00")}) == Decimal("1.00")
    assert value(col("ages").get_item(-3), ages={3: 1}) is None


def test_a_key_is_a_value_not_an_expression() -> None:
    for key in (col("i"), 2**63):
        with pytest.raises(FieldError):
            col("words").get_item(key)
