"""DataFrame functions and queries when a topology is built: what is refused there, and what is recorded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident import Count, Stream, Topology
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.functions import FirstN, MapGet
from airflow_trident.operations.sql import plain, query_names, require_query
from airflow_trident.plan.nodes import FilterNode, SourceNode
from tests.fixtures.engine import keep
from tests.fixtures.plan import PaperState
from tests.fixtures.transform import names, orders

FIELDS = "cust int, cents int, day string"
QUERY = "SELECT cust FROM {o}"


def same(frame: Any) -> Any:
    return frame


def two(frame: Any, users: Any) -> Any:
    return frame.join(users)


class Doubled:
    def __call__(self, frame: Any) -> Any:
        return frame


def topology() -> Topology:
    return Topology("shop")


def o() -> Stream:
    return orders(topology())


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no function": (lambda: o().transform("SELECT 1", FIELDS), "transform got 'SELECT 1'"),  # type: ignore[arg-type]
    "a class": (lambda: o().transform(Doubled, FIELDS), "transform got Doubled"),
    "a generator": (lambda: o().transform(lambda frame: (yield frame), FIELDS), "awaits or yields"),
    "too many arguments": (lambda: o().transform(two, FIELDS), "cannot be called with (a DataFrame)"),
    "an argument that it has not": (
        lambda: (lambda t: orders(t).transform(same, FIELDS, others={"users": names(t)}))(topology()),
        "cannot be called with (a DataFrame, users=...)",
    ),
    "no fields": (lambda: o().transform(same, ""), "transform has no fields"),
    "no types": (lambda: o().transform(same, "cust"), "cust"),
    "a table for a stream": (
        lambda: o().transform(two, FIELDS, others={"users": "db.users"}),  # type: ignore[dict-item]
        "got 'db.users' for 'users'",
    ),
    "a stream of another topology": (
        lambda: o().transform(two, FIELDS, others={"users": names(Topology("elsewhere"))}),
        "'users' belongs to topology 'elsewhere', not to 'shop'",
    ),
    "rows of two streams": (
        lambda: (lambda t: orders(t).transform(two, FIELDS, others={"users": names(t)}, rowwise=True))(topology()),
        "of 2 streams is said to be row by row",
    ),
    "a version of nothing": (lambda: o().transform(same, FIELDS, version=""), "version=''"),
    "no query": (lambda: o().sql("", "cust int"), "sql got ''"),
    "an insert": (lambda: o().sql("INSERT INTO t SELECT * FROM {o}", "cust int"), "is no query"),
    "an insert behind a table": (
        lambda: o().sql("WITH x AS (SELECT * FROM {o}) INSERT INTO t SELECT * FROM x", "cust int"),
        "is no query",
    ),
    "a setting": (lambda: o().sql("SET spark.x = {o}", "cust int"), "is no query"),
    "a stream that is missing": (lambda: o().sql("SELECT * FROM {o} JOIN {u}", "cust int"), "names {o}, {u}"),
    "no stream at all": (lambda: o().sql("SELECT 1 AS cust", "cust int"), "names no stream"),
    "a stream that is not used": (
        lambda: (lambda t: orders(t).sql(QUERY, "cust int", users=names(t)))(topology()),
        "sql does not use users",
    ),
    "what is no name": (lambda: o().sql("SELECT * FROM {o.x}", "cust int"), "{o.x}"),
    "an open brace": (lambda: o().sql("SELECT '{' FROM {o}", "cust int"), "A brace that is meant as such"),
    "a query stream": (
        lambda: topology().new_drpc_stream("ask").sql(QUERY, "cust int"),
        "queries run without Spark",
    ),
    "the commit phase": (
        lambda: (
            o()
            .group_by("cust")
            .persistent_aggregate(PaperState(), Count(), "n")
            .new_values_stream()
            .transform(same, "cust int, n long")
        ),
        "in the commit phase, which runs without Spark",
    ),
    "what asks a state after the commit": (
        lambda: (lambda s: s.state_query(stored(s), "cust", MapGet(), "n", after_commit=True).sql(QUERY, "cust int"))(
            o()
        ),
        "in the commit phase, which runs without Spark",
    ),
}


def stored(stream: Stream) -> Any:
    return stream.group_by("cust").persistent_aggregate(PaperState(), Count(), "n")


@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake_is_an_error_where_it_is_made(case: str) -> None:
    build, text = MISTAKES[case]
    with pytest.raises((PlanError, FieldError)) as caught:
        build()
    assert text in str(caught.value)
    assert caught.value.cure


@pytest.mark.parametrize(
    "behind",
    [
        lambda stream: stream.partition_aggregate(Count(), "n"),
        lambda stream: stream.filter("cust", lambda cust: cust > 1).min_by("cust"),
        lambda stream: stream.identity_partition().map(lambda *row: row, FIELDS),
    ],
)
def test_what_works_on_whole_partitions_needs_a_repartition_behind_a_transform(behind: Callable[[Stream], Any]) -> None:
    for shuffled in (False, True):
        shop = topology()
        made = orders(shop).transform(same, FIELDS)
        keep(behind(made.shuffle() if shuffled else made))
        if shuffled:
            shop.compile()
            continue
        with pytest.raises(PlanError, match=r"transform-1 has none that mean anything.*shuffle\(\)"):
            shop.compile()


def test_the_first_tuples_of_all_need_no_repartition_behind_a_transform() -> None:
    """Which are together does not matter: what each partition gives is chosen from once more."""
    shop = topology()
    keep(orders(shop).transform(same, FIELDS).apply_assembly(FirstN(3, "cust")))
    assert sum(stage.exchange is not None for stage in shop.compile().stages) == 1


def test_filters_and_unused_fields_stop_at_a_transform() -> None:
    from airflow_trident.functions import col

    shop = topology()
    keep(orders(shop).transform(same, FIELDS).filter(col("cust") > 1).project("cust"))
    before, behind = shop.compile().stages
    assert isinstance(before.begin, SourceNode)
    assert [field.name for field in before.begin.schema] == ["cust", "cents", "day"]
    assert not any(isinstance(node, FilterNode) for node in before.nodes)
    assert any(isinstance(node, FilterNode) for node in behind.nodes)


def recorded(text: str, version: str | int | None = None) -> tuple[str, ...]:
    shop = topology()
    keep(orders(shop).sql(text, "cust int").transform(same, "cust int", version=version), "s")
    return shop.definition().states["s"].transforms


def test_the_definition_has_texts_and_versions_and_no_code() -> None:
    assert recorded(QUERY) == (f'SQL "{QUERY}"',)
    assert recorded("SELECT  cust -- of all\n  FROM {o} ;") == recorded(QUERY)
    assert recorded("SELECT '  --x' AS cust FROM {o}") == ("SQL \"SELECT '  --x' AS cust FROM {o}\"",)
    assert recorded("SELECT cust + 1 AS cust FROM {o}") != recorded(QUERY)
    assert recorded(QUERY, version=2) == (f'SQL "{QUERY}"', "same, version 2")
    long = "SELECT " + " + ".join(["cust"] * 300) + " AS cust FROM {o}"
    assert len(recorded(long)[0]) < 400
    assert recorded(long) != recorded(long.replace("cust + cust", "cust - cust", 1))


def test_a_topology_without_transforms_is_recorded_as_before() -> None:
    shop = topology()
    keep(orders(shop), "s")
    assert shop.definition().states["s"].transforms == ()


def test_a_text_is_read_as_spark_would() -> None:
    assert query_names("SELECT '{{x}}' FROM {a} JOIN {b} JOIN {a}") == ("a", "b")
    assert plain("SELECT `a  b`, 'c -- d' /* e */\n, \"f  g\";") == "SELECT `a  b`, 'c -- d' , \"f  g\""
    for text in ("select 1", "(SELECT 1)", "WITH x AS (SELECT 1) SELECT * FROM x", "SELECT 'delete from x' AS y"):
        require_query(text)


def test_building_a_topology_with_transforms_imports_no_spark() -> None:
    program = (
        "import sys\n"
        "from tests.fixtures.transform import TRANSFORMS\n"
        "from airflow_trident import Topology\n"
        "for name, build in TRANSFORMS.items():\n"
        "    topology = Topology(name)\n"
        "    build(topology)\n"
        "    topology.compile(), topology.definition()\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'pyspark', 'kazoo', 'py4j', 'grpc'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
