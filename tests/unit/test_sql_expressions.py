"""`spark_sql` when a topology is built: what becomes of it, and what is refused there."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_trident import Count, Stream
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FieldError, PlanError, UnknownNodeError
from airflow_trident.functions import col, concat, explode, lit, spark_sql, when
from airflow_trident.operations.evaluate import bind
from airflow_trident.operations.expressions import Expression
from airflow_trident.plan.graph import ordered
from airflow_trident.plan.nodes import TransformNode, recorded_transforms
from tests.fixtures.engine import JobOf, keep
from tests.fixtures.plan import PaperState
from tests.fixtures.transform import orders
from tests.unit.test_transform_verbs import topology


def o() -> Stream:
    return orders(topology())


def queries(stream: Stream) -> list[str]:
    return [node.function.text for node in ordered([stream.node]) if isinstance(node, TransformNode)]


def test_a_text_alone_is_one_query_with_the_field_at_its_end() -> None:
    stream = o().each(spark_sql("date_trunc('day',   at) -- why", "timestamp"), "cut")
    assert queries(stream) == ["SELECT `cust`, `cents`, `day`, (date_trunc('day', at)) AS `cut` FROM {rows}"]
    assert [str(field) for field in stream.schema][-1] == "cut timestamp"
    assert queries(o().filter(spark_sql("day LIKE '{%'", "boolean"))) == [
        "SELECT `cust`, `cents`, `day` FROM {rows} WHERE (day LIKE '{{%')"
    ]


def test_texts_inside_of_expressions_become_fields_which_nobody_sees_afterwards() -> None:
    cut = spark_sql("cents DIV 10", "long")
    stream = o().each(when(cut > 3, concat(col("day"), spark_sql("hex(cents)", "string"))).otherwise("none"), "told")
    stream = stream.filter((cut % 2 == 0) & (cut < 100))
    assert stream.fields == ("cust", "cents", "day", "told")
    assert [text.count(" AS ") for text in queries(stream)] == [1, 1, 1], "the same text is computed once"
    pieces = o().each(explode(spark_sql("sequence(1, cents)", "array<int>")), "one")
    assert [str(field) for field in pieces.schema][-1] == "one int"


CHANGING = [
    "rand()",
    "RAND (7)",
    "uuid()",
    "now()",
    "current_timestamp",
    "cents + unix_timestamp( )",
    "shuffle(array(1))",
    "current_user",
    "date_diff(CURRENT_DATE(), day)",
    "uniform(0, 1)",
    "input_file_name()",
    "reflect('java.util.UUID', 'randomUUID')",
    "day < date 'today'",
    "TIMESTAMP'now'",
    'timestamp_ntz "yesterday "',
    "datediff(date r'Tomorrow CET', day)",
    "hex(aes_encrypt(day, 'abcdefghijklmnop'))",
]


@pytest.mark.parametrize("text", CHANGING)
def test_what_may_give_something_else_in_another_attempt_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"may give something else in another attempt.*transaction_time"):
        o().each(spark_sql(text, "string"), "x")
    with pytest.raises(PlanError, match="may give something else"):
        o().filter(spark_sql(text, "string") == "x")


@pytest.mark.parametrize(
    "text",
    [
        "'rand()'",
        "unix_timestamp(day)",
        "random_words",
        "`uuid`",
        '"now()"',
        ":transaction_time",
        "transform(a, now -> 1)",
        "date '2026-01-01'",
        "concat(day, 'today')",
    ],
)
def test_what_only_looks_like_it_is_not(text: str) -> None:
    stream = o() if "now" not in text else o().each("cents", lambda cents: [cents], "now int")
    assert len(queries(stream.each(spark_sql(text, "string"), "x"))) == 1


@pytest.mark.parametrize(
    "text", ["(SELECT max(x) FROM t)", "sum(cents) OVER ()", "explode(array(1))", "stack(2, 1, 2)"]
)
def test_what_is_no_value_of_one_tuple_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match=r"one value for one tuple.*explode"):
        o().each(spark_sql(text, "int"), "x")


def test_mistakes_of_other_kinds() -> None:
    for text in ("", " -- nothing\n", None):
        with pytest.raises(PlanError, match="spark_sql got"):
            spark_sql(text, "int")  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="unknown type"):
        spark_sql("1", "number")
    with pytest.raises(FieldError, match="one field and 2 are named"):
        o().each(spark_sql("1", "int"), "a int, b int")
    with pytest.raises(FieldError, match="duplicate field"):
        o().each(spark_sql("1", "int"), "day")
    with pytest.raises(FieldError, match="filter needs a boolean"):
        o().filter(spark_sql("1", "int"))
    with pytest.raises(FieldError, match="runs on Spark only"):
        bind(spark_sql("1", "int"), ())


def test_the_text_is_part_of_the_definition_and_queries_and_commit_phases_refuse_it() -> None:
    stream = o().each(spark_sql("cents  * 2", "int"), "twice")
    assert recorded_transforms(stream.node) == (
        'SQL "SELECT `cust`, `cents`, `day`, (cents * 2) AS `twice` FROM {rows}"',
    )
    behind = o().group_by("cust").persistent_aggregate(PaperState(), Count(), "n").new_values_stream()
    with pytest.raises(PlanError, match="in the commit phase, which runs without Spark"):
        behind.each(spark_sql("n + 1", "long"), "more")


def test_an_engine_without_spark_refuses_it_with_the_cure(job_of: JobOf) -> None:
    job = job_of(lambda t: keep(orders(t).filter(spark_sql("cents > 3", "boolean"))))
    with pytest.raises(UnknownNodeError, match="engine='spark'"):
        LocalEngine().run(job)


def test_it_is_said_in_plans() -> None:
    expression: Any = lit(1) + spark_sql("cents + 1", "int")
    assert isinstance(expression, Expression)
    assert str(expression) == "(1 + spark_sql('cents + 1', 'int'))"
