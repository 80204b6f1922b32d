"""Vectorised functions on the local engine and in the fused pass: what they give, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from airflow_trident import Filter, Topology, VectorFilter, VectorFunction
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FieldError, PlanError, UserCodeError
from airflow_trident.functions import Negate
from tests.fixtures.engine import JobOf, keep, run, sales
from tests.fixtures.plan import PaperSpout
from tests.fixtures.vector import Length, Many, vectors
from tests.unit.test_fused import first_stage, rows_of


class Gives(VectorFunction):
    def __init__(self, give: Callable[[int], Any]) -> None:
        self._give = give

    def execute(self, *columns: pa.Array) -> Any:
        return self._give(len(columns[0]))


def test_they_give_what_functions_of_single_tuples_would(job_of: JobOf) -> None:
    for engine in (LocalEngine(1), LocalEngine(3)):
        found = run(engine, job_of(vectors))
        assert found["sizes"] == ["(3, 12)", "(5, 1)"]
        assert found["halves"] == ["(0, 1.5, ['appl', ''])", "(2, 3.5, ['appl', ''])", "(4, 2.0, None)"]
        assert found["upper"] == sorted(["('BERLIN',)"] * 3 + ["('PARIS',)"] * 2 + ["(None,)"] * 2)
        assert found["none"] == []


GIVEN: dict[str, tuple[str, Callable[[int], Any], Any]] = {
    "a smaller number": ("long", lambda n: pa.array([7] * n, pa.int8()), 7),
    "a whole number for a real": ("double", lambda n: np.full(n, 7), 7.0),
    "nothing": ("string", pa.nulls, None),
    "NaN is no null": ("double", lambda n: np.full(n, np.nan), pytest.approx(np.nan, nan_ok=True)),
    "a decimal": ("decimal(9,2)", lambda n: pa.array([Decimal("1.5")] * n), Decimal("1.50")),
    "large lists of large texts": (
        "array<string>",
        lambda n: pa.array([["a"]] * n, pa.large_list(pa.large_string())),
        ["a"],
    ),
    "NumPy's text": ("string", lambda n: np.full(n, "text"), "text"),
}


@pytest.mark.parametrize("case", GIVEN)
def test_a_column_is_brought_to_the_declared_type_where_values_would_be(case: str, job_of: JobOf) -> None:
    type_text, give, expected = GIVEN[case]

    def build(topology: Topology) -> None:
        keep(sales(topology).each("id", Gives(give), f"x {type_text}").project("x"))

    ((first, *_), *_) = rows_of(first_stage(build))
    assert first == expected
    assert len(run(LocalEngine(), job_of(build))["rows"]) == 7


REFUSED: dict[str, tuple[str, Callable[[int], Any], str]] = {
    "a real for a whole number": ("long", lambda n: np.full(n, 7.0), "gave a column of double, where long is declared"),
    "a number for a text": ("string", lambda n: np.full(n, 7), "gave a column of int64, where string is declared"),
    "too large": ("int", lambda n: np.full(n, 2**40), "gave 1099511627776, where int is declared"),
    "a value": ("long", lambda n: 7, r"gave 7, where a column \(a pyarrow or NumPy array\) is expected"),
    "a list": ("long", lambda n: [7] * n, r"gave \[7.*, where a column"),
    "too few": ("long", lambda n: pa.nulls(n - 1), r"gave a column of \d values for \d tuples"),
    "too many columns": ("long", lambda n: (pa.nulls(n),) * 2, "gave 2 columns, where 1 are declared"),
    "an error": ("long", lambda n: n // 0, "raised ZeroDivisionError"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_an_error_of_the_user_in_the_same_words(case: str, job_of: JobOf) -> None:
    type_text, give, text = REFUSED[case]

    def build(topology: Topology) -> None:
        keep(sales(topology).each("id", Gives(give), f"x {type_text}"))

    with pytest.raises(UserCodeError, match=rf"Gives in each-1 {text}.*transaction 1") as meant:
        LocalEngine(1).run(job_of(build))
    with pytest.raises(UserCodeError) as caught:
        rows_of(first_stage(build), 100)
    assert str(caught.value) == str(meant.value)


def test_what_cannot_be_is_refused_on_the_users_line() -> None:
    stream = Topology("t").new_stream("s", PaperSpout("word string, n long"))
    with pytest.raises(PlanError, match="vectorised Length, which gives one output"):
        stream.flat_map(Length(), "size long")
    with pytest.raises(PlanError, match="is_keep"):
        stream.filter("word", Length())
    with pytest.raises(PlanError, match="execute"):
        stream.each("n", Many(), "x boolean")
    with pytest.raises(PlanError, match="vectorised Many"):
        Negate(Many())
    with pytest.raises(FieldError, match="type of the new field 'x' is not known"):
        stream.each("n", Gives(pa.nulls), "x")
    assert not issubclass(VectorFilter, Filter)
