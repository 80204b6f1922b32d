"""Expressions over whole columns give what they give tuple by tuple, or leave it to that."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident.engine.fused.arrow_expressions import ArrowExpression
from airflow_trident.engine.fused.frames import Frame
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import (
    Expression,
    col,
    concat,
    dtype,
    lit,
    lower,
    substring,
    trim,
    upper,
    when,
)
from airflow_trident.types import names_of
from tests.generated.expressions import DAY, LEAVES, ROWS, SCHEMA, Trees

Row = tuple[Any, ...]


def by_arrow(expression: Expression, rows: list[Row]) -> list[Any] | None:
    """None: it goes tuple by tuple."""
    found = ArrowExpression.of(expression, SCHEMA, dtype(expression, SCHEMA))
    (batch,) = rows_to_table(SCHEMA, rows).to_batches()
    values = None if found is None else found.values(Frame.of_batch(batch, frozenset(names_of(SCHEMA))))
    return None if values is None else values.to_pylist()


def by_tuples(expression: Expression, rows: list[Row]) -> list[Any] | None:
    """None: a tuple is an error."""
    names = names_of(SCHEMA)
    call = bind(expression, SCHEMA)
    try:
        return [call(*(row[names.index(name)] for name in expression.reads)) for row in rows]
    except (ValueError, ArithmeticError):
        return None


def seen(values: list[Any]) -> list[Any]:
    """NaN equals itself, and the zeros differ; a time in UTC is the same in any object for UTC."""
    return [repr(value) if isinstance(value, float) else value for value in values]


NUMBERS = st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1, -7, -1, 0, 1, 3, None])
REALS = st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 0.0, 0.5, 1e300, None])
TEXTS = st.none() | st.text(alphabet="aB \tßΣ,.e\u0301😀", max_size=6)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Those with every kind of trouble, and others with some values replaced."""
    given_rows = []
    for row in draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=4)):
        changes = {"a": draw(NUMBERS), "b": draw(NUMBERS), "x": draw(REALS), "s": draw(TEXTS), "t": draw(TEXTS)}
        given_rows.append(tuple(changes.get(field.name, value) for field, value in zip(SCHEMA, row, strict=True)))
    return given_rows


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(sorted(LEAVES)), rows())
def test_random_expressions_mean_the_same_by_arrow(seed: int, wanted: str, tuples: list[Row]) -> None:
    expression = Trees(seed).of(wanted)
    found = by_arrow(expression, tuples)
    if found is not None:
        meant = by_tuples(expression, tuples)
        assert meant is not None, f"{expression} is an error"
        assert seen(found) == seen(meant), str(expression)


SIMPLE = {
    "sum": col("a") + col("i") * 7,
    "quotient": col("x") / col("a"),
    "remainder": col("a") % col("b"),
    "sign": -abs(col("a")),
    "comparison": (col("a") > 5) & ~col("s").starts_with("a") | col("d").is_null(),
    "texts": concat(lower(col("s")), trim(col("t")), substring(col("s"), 2, 3), upper(col("t"))),
    "choice": when(col("a") > 3, "many").when(col("a") > 1, "some").otherwise(col("s")),
    "choice without a last one": when(col("p"), col("words")),
    "literal": lit(7),
    "cast": col("h").cast("long") + col("i").cast("short"),
    "text of a number": col("a").cast("string"),
    "contains": col("s").contains(" ") == col("t").ends_with("."),
    "dates": col("day") <= DAY,
}


@pytest.mark.parametrize("name", SIMPLE)
def test_what_is_common_goes_by_arrow(name: str) -> None:
    """Else the test above would see nothing."""
    plain = [row for row in ROWS if str(row[6] or "").isascii()]
    found = by_arrow(SIMPLE[name], plain)
    assert found is not None
    assert seen(found) == seen(by_tuples(SIMPLE[name], plain) or [])


@pytest.mark.parametrize(
    "expression",
    [col("a") * 2**62, -col("a"), abs(col("a")), col("a").cast("int"), col("a") % col("b")],
    ids=str,
)
def test_a_value_that_is_an_error_is_left_to_the_tuples(expression: Expression) -> None:
    row = dict(zip(names_of(SCHEMA), ROWS[0], strict=True)) | {"a": -(2**63), "b": -1}
    assert by_arrow(expression, [tuple(row.values())]) is None


def test_batches_of_no_columns_are_repeated() -> None:
    found = ArrowExpression.of(lit("x"), SCHEMA, "string")
    assert found is not None
    assert found.values(Frame(3, {})) == pa.array(["x"] * 3)
