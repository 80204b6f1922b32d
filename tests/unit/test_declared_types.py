"""A type that is written for what an expression or an aggregate gives may hold more, and nothing less."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident.errors import FieldError
from airflow_trident.operations.aggregators import Count, Max, MaxBy, Sum
from airflow_trident.operations.expressions import col
from airflow_trident.spouts.memory import FixedBatchSpout
from airflow_trident.topology.topology import Topology

FIELDS = "a int, b int, x double, f float, d decimal(10,2), n long, s string, m array<int>"


def stream() -> Any:
    return Topology("t").new_stream("in", FixedBatchSpout(FIELDS, [(1, 1, 1.0, 1.0, None, 1, "x", [1])]))


@pytest.mark.parametrize(
    ("expression", "written"),
    [
        (col("a") / col("b"), "long"), (col("d"), "decimal(10,0)"), (col("n"), "string"), (col("x"), "float"),
        (col("s"), "int"), (col("n"), "float"), (col("m"), "array<string>"),
    ],
)  # fmt: skip
def test_a_type_that_holds_less_than_an_expression_gives_is_refused(expression: Any, written: str) -> None:
    with pytest.raises(FieldError, match=r"gives .*, and 'r' is declared .*\.cast\("):
        stream().each(expression, f"r {written}")
    assert stream().each(expression, "r").fields[-1] == "r"


@pytest.mark.parametrize(
    ("what", "output"),
    [(("x", Sum()), "t long"), (("n", Max()), "t string"), (("d", Sum()), "t decimal(20,1)"), ((Count(),), "t float")],
)
def test_a_type_that_holds_less_than_an_aggregate_gives_is_refused(what: tuple[Any, ...], output: str) -> None:
    for grouped in (stream(), stream().group_by("s")):
        with pytest.raises(FieldError, match=r"gives .*, and 't' is declared .*Leave the type away"):
            grouped.aggregate(*what, output)


def test_so_it_is_for_a_field_of_an_aggregator_of_tuples() -> None:
    with pytest.raises(FieldError, match=r"MaxBy gives double, and 'y' is declared long"):
        stream().aggregate("x, n", MaxBy(), "y long")


@pytest.mark.parametrize(
    ("what", "output"),
    [
        (("a", Sum()), "t long"), (("a", Sum()), "t int"), ((Count(),), "t int"), ((Count(),), "t decimal(20,0)"),
        (("f", Max()), "t double"), (("d", Sum()), "t decimal(38,4)"), (("a", Max()), "t double"),
    ],
)  # fmt: skip
def test_what_holds_as_much_or_says_when_it_does_not_is_taken(what: tuple[Any, ...], output: str) -> None:
    assert str(stream().aggregate(*what, output).schema[0]) == output
