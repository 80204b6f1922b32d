"""`spark_sql` on classic and Connect sessions: the value that Spark's SQL gives, beside expressions of this package."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest

from airflow_trident import Count, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.errors import UserCodeError
from airflow_trident.functions import col, explode, spark_sql, when
from tests.fixtures.engine import JobOf, keep, rows_as_text, run
from tests.fixtures.plan import PaperState
from tests.fixtures.transform import ORDERS, orders

pytestmark = pytest.mark.spark


@pytest.fixture(params=["spark_engine", "connect_engine"])
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.getfixturevalue(request.param)
    return found


def mixed(topology: Topology) -> None:
    rows = orders(topology).each(spark_sql("format_string('%03d {}', cents)", "string"), "shown")
    rows = rows.filter((col("cust") > 0) & spark_sql("shown NOT LIKE '00_ %'", "boolean"))
    rows = rows.each(when(spark_sql("bit_count(cents)", "long") > 2, "many").otherwise(col("day")), "told")
    keep(rows.project("cust, shown, told"), "mixed")
    counted = rows.each(explode(spark_sql("sequence(1, cust)", "array<int>")), "step").filter(col("step") != 2)
    counted.group_by("step").persistent_aggregate(PaperState(), Count(), "n", name="counted")
    keep(orders(topology, "b").each(spark_sql(":transaction_time", "timestamp"), "at").project("at"), "at")


def test_values_are_those_of_spark_beside_all_else(engine: Engine, job_of: JobOf) -> None:
    moment = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
    job = replace(job_of(mixed), time_ms=int(moment.timestamp() * 1000))
    kept = [(cust, f"{cents:03d} {{}}", cents, day) for cust, cents, day in ORDERS if cust > 0 and cents > 9]
    steps = [step for cust, *_ in kept for step in range(1, cust + 1) if step != 2]
    given = run(engine, job)
    assert given["mixed"] == rows_as_text(
        (cust, shown, "many" if cents.bit_count() > 2 else day) for cust, shown, cents, day in kept
    )
    assert given["counted"] == rows_as_text((step, steps.count(step)) for step in set(steps))
    assert given["at"] == rows_as_text([(moment,)] * len(ORDERS))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("cents * 1.5D", "long", "gave the column x as double, declared is long"),
        ("no_such_field", "long", "no_such_field"),
        ("1 +", "long", "PARSE_SYNTAX_ERROR"),
        ("sum(cents)", "long", "MISSING_GROUP_BY"),
        ("1 / (cents - cents)", "double", "DIVIDE_BY_ZERO"),
    ],
)
def test_a_text_that_gives_something_else_or_nothing_is_an_error_of_the_attempt(
    spark_engine: Engine, job_of: JobOf, text: str, kind: str, said: str
) -> None:
    def build(topology: Topology) -> None:
        keep(orders(topology).each(spark_sql(text, kind), "x"))

    with pytest.raises(UserCodeError, match=f"sql-.*{said}"):
        spark_engine.run(job_of(build))
