"""The verbs that bring streams together, repartition and aggregate in general: fields, and mistakes on their line."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, JoinType, KeyValueStates, Max, Stream, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.functions import (
    Debug,
    Equals,
    FilterNull,
    FirstN,
    JoinOutFieldsMode,
    MinWithComparator,
    Negate,
    Split,
    TrueFilter,
    TupleCollectionGet,
)
from airflow_trident.operations.expressions import col
from airflow_trident.types import ddl
from tests.fixtures.commit_plan import Seen
from tests.fixtures.engine import JobOf, keep, run, sales
from tests.fixtures.plan import Joined, PaperSpout, PaperState
from tests.fixtures.verb import Both, ByTwo, Latest, Tally

SHOP = Topology("shop")
ORDERS = SHOP.new_stream("orders", PaperSpout("user string, item string, price double, n int"))
USERS = SHOP.new_stream("users", PaperSpout("id string, name string, age int, tags array<string>"))
STATIC = SHOP.new_static_state(PaperState(), "orders", keys="user string", values="n long")
ELSEWHERE = Topology("elsewhere").new_stream("orders", PaperSpout("user string, item string, price double, n int"))

VERBS: dict[str, tuple[Callable[[], Stream], str]] = {
    "merge takes the names of the first": (
        lambda: SHOP.merge([ORDERS.project("user, n"), USERS.project("name, age")]),
        "user string, n int",
    ),
    "merge takes names": (
        lambda: SHOP.merge([ORDERS.project("user, n"), USERS.project("name, age")], "who, what"),
        "who string, what int",
    ),
    "a compact join has the join fields once": (
        lambda: SHOP.join([ORDERS, USERS.project("age, id")], ["user", "id"], "user, item, price, n, age"),
        "user string, item string, price double, n int, age int",
    ),
    "a join that preserves has all fields": (
        lambda: SHOP.join(
            [ORDERS.project("n, user"), USERS.project("age, id")],
            ["user", "id"],
            "a, b, c, d",
            JoinType.OUTER,
            JoinOutFieldsMode.PRESERVE,
        ),
        "a int, b string, c int, d string",
    ),
    "multi_reduce has what the reducer gives": (
        lambda: SHOP.multi_reduce(["n", "age"], [ORDERS, USERS], Tally(), "a, b"),
        "a long, b long",
    ),
    "grouped multi_reduce has no group fields of its own": (
        lambda: SHOP.multi_reduce(["n", "age"], [ORDERS.group_by("user"), USERS.group_by("id")], Latest(), "a, b, c"),
        "a string, b long, c long",
    ),
    "partition_aggregate replaces": (lambda: ORDERS.partition_aggregate("n", Sum(), "total"), "total long"),
    "grouped partition_aggregate keeps the groups": (
        lambda: ORDERS.group_by("user").partition_aggregate("n", Sum(), "total"),
        "user string, total long",
    ),
    "an Aggregator has several fields": (
        lambda: ORDERS.aggregate("n", Both(), "what, value"),
        "what string, value long",
    ),
    "several aggregations stand side by side": (
        lambda: ORDERS.group_by("user").aggregate((Count(), "rows"), ("price", Max(), "most")),
        "user string, rows long, most double",
    ),
    "a chain has all outputs": (
        lambda: ORDERS.chained_agg().aggregate(Count(), "rows").aggregate("n", Both(), "what, value").chain_end(),
        "rows long, what string, value long",
    ),
    "min_by keeps the fields": (lambda: ORDERS.min_by("price"), "user string, item string, price double, n int"),
    "FirstN keeps the fields": (
        lambda: ORDERS.project("n, user").apply_assembly(FirstN(2, "n", reverse=True)),
        "n int, user string",
    ),
    "an assembly may be a function": (lambda: ORDERS.apply_assembly(lambda stream: stream.project("n")), "n int"),
    "peek keeps the fields": (lambda: ORDERS.project("n").peek(Debug()), "n int"),
    "a comparator gives the type of the field": (
        lambda: ORDERS.aggregate("n", MinWithComparator(lambda one, other: one - other), "least"),
        "least int",
    ),
    "repartitions keep the fields": (
        lambda: ORDERS.project("n").global_().batch_global().broadcast().partition(ByTwo()).local_or_shuffle(),
        "n int",
    ),
}


@pytest.mark.parametrize("case", VERBS)
def test_every_verb_gives_the_fields_it_promises(case: str) -> None:
    verb, expected = VERBS[case]
    assert ddl(verb().schema) == expected


NEAR = "which has (user, item, price, n). Did you mean 'user'?"
MISTAKES: dict[str, tuple[Callable[[], Any], type[PlanError], str]] = {
    "each": (lambda: ORDERS.each("usr", Split(), "w string"), FieldError, NEAR),
    "filter": (lambda: ORDERS.filter("usr", FilterNull()), FieldError, NEAR),
    "filter by expression": (lambda: ORDERS.filter(col("usr") == "a"), FieldError, NEAR),
    "peek": (lambda: ORDERS.peek("usr", Debug()), FieldError, NEAR),
    "project": (lambda: ORDERS.project("usr"), FieldError, NEAR),
    "partition_by": (lambda: ORDERS.partition_by("usr"), FieldError, NEAR),
    "group_by": (lambda: ORDERS.group_by("usr"), FieldError, NEAR),
    "aggregate": (lambda: ORDERS.aggregate("usr", Joined(), "all"), FieldError, NEAR),
    "partition_aggregate": (lambda: ORDERS.partition_aggregate("usr", Joined(), "all"), FieldError, NEAR),
    "a chain": (lambda: ORDERS.chained_agg().aggregate("usr", Joined(), "all"), FieldError, NEAR),
    "min_by": (lambda: ORDERS.min_by("usr"), FieldError, NEAR),
    "FirstN": (lambda: ORDERS.apply_assembly(FirstN(1, "usr")), FieldError, NEAR),
    "join": (lambda: SHOP.join([ORDERS, USERS], ["usr", "id"], "a"), FieldError, NEAR),
    "multi_reduce": (lambda: SHOP.multi_reduce(["usr", "id"], [ORDERS, USERS], Tally(), "a, b"), FieldError, NEAR),
    "persistent_aggregate": (
        lambda: ORDERS.persistent_aggregate(PaperState(), "usr", Max(), "m"),
        FieldError,
        NEAR,
    ),
    "partition_persist": (lambda: ORDERS.partition_persist(PaperState(), "usr, n", keys="usr"), FieldError, NEAR),
    "order_by": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", keys="user", order_by="usr"),
        FieldError,
        NEAR,
    ),
    "order_by arrays": (
        lambda: USERS.partition_persist(PaperState(), "id, age", keys="id", order_by="tags"),
        FieldError,
        "order_by cannot compare the field 'tags' of type array<string>",
    ),
    "an order of nothing": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", keys="user", order_by=""),
        PlanError,
        "order_by in topology 'shop' got no fields",
    ),
    "an order for an updater": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", print, keys="user", order_by="n"),
        PlanError,
        "state 'n' got an updater and order_by",
    ),
    "a value that is no input": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", keys="user", values="n int, total long", name="s"),
        PlanError,
        "state 's' could never be given its value field total long: no input is named 'total'",
    ),
    "a value of another type than the input": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", keys="user", values="n string", name="s"),
        PlanError,
        "state 's' could never be given its value field n string: the input is n int. Without an updater",
    ),
    "a value that is a key": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n", keys="user", values="user string"),
        FieldError,
        "duplicate field 'user'",
    ),
    "a query behind a broadcast": (
        lambda: (
            SHOP.new_drpc_stream("all")
            .broadcast()
            .filter("args", FilterNull())
            .shuffle()
            .state_query(STATIC, "", TupleCollectionGet(), "user, n")
        ),
        PlanError,
        "state_query of state 'orders' comes after 'broadcast-",
    ),
    "a field twice in a projection": (lambda: ORDERS.project("n, n"), FieldError, "duplicate field 'n'"),
    "a field twice in what is persisted": (
        lambda: ORDERS.partition_persist(PaperState(), "user, n, n", keys="user"),
        FieldError,
        "partition_persist in topology 'shop' got the field 'n' twice. Name it once",
    ),
    "a field twice in what a stateful function gets": (
        lambda: ORDERS.stateful("n, n", Seen(), provider=KeyValueStates("memory")),
        FieldError,
        "stateful in topology 'shop' got the field 'n' twice",
    ),
    "outputs of a chain twice": (
        lambda: ORDERS.chained_agg().aggregate(Count(), "c").aggregate(Count(), "c"),
        FieldError,
        "duplicate field 'c'",
    ),
    "an output that is a group": (
        lambda: ORDERS.group_by("user").aggregate(Count(), "user"),
        FieldError,
        "duplicate field 'user'",
    ),
    "output of a join twice": (
        lambda: SHOP.join([ORDERS.project("user, n"), USERS.project("id, age")], ["user", "id"], "a, b, b"),
        FieldError,
        "'b'",
    ),
    "too few names for a join": (
        lambda: SHOP.join([ORDERS.project("user, n"), USERS.project("id, age")], ["user", "id"], "a, b"),
        FieldError,
        "join gives 3 fields (user string, n int, age int) and 2 are named (a, b)",
    ),
    "join fields of different types": (
        lambda: SHOP.join([ORDERS, USERS], ["n", "id"], "a"),
        FieldError,
        "join: the fields of stream 1 are (id string) and those of stream 0 are (n int)",
    ),
    "groups of different types": (
        lambda: SHOP.multi_reduce(["n", "age"], [ORDERS.group_by("n"), USERS.group_by("id")], Latest(), "a, b, c"),
        FieldError,
        "Their number and types must be the same",
    ),
    "a join of one": (lambda: SHOP.join([ORDERS], ["user"], "a"), PlanError, "too few streams"),
    "join fields for one of two": (lambda: SHOP.join([ORDERS, USERS], ["user"], "a"), PlanError, "for 1 of 2 streams"),
    "no such join type": (
        lambda: SHOP.join([ORDERS, USERS], ["user", "id"], "a", "left"),
        PlanError,
        "OUTER: may be missing",
    ),
    "join types for three of two": (
        lambda: SHOP.join([ORDERS, USERS], ["user", "id"], "a", ["inner"] * 3),
        PlanError,
        "join of 2 streams got the join types ['inner', 'inner', 'inner']",
    ),
    "a merge of different types": (
        lambda: SHOP.merge([ORDERS.project("user, n"), USERS.project("id, name")]),
        FieldError,
        "merge: stream 1 has (id string, name string) and stream 0 has (user string, n int)",
    ),
    "a merge of one stream without a list": (lambda: SHOP.merge(ORDERS), PlanError, "Give a list"),  # type: ignore[arg-type]
    "a stream of another topology": (
        lambda: SHOP.merge([ORDERS, ELSEWHERE]),
        PlanError,
        "stream 1 belongs to topology 'elsewhere', not to 'shop'",
    ),
    "one grouped stream of two": (
        lambda: SHOP.multi_reduce(["n", "age"], [ORDERS.group_by("n"), USERS], Latest(), "a"),  # type: ignore[list-item]
        PlanError,
        "multi_reduce got 1 grouped of 2 streams",
    ),
    "a grouped reducer for plain streams": (
        lambda: SHOP.multi_reduce(["n", "age"], [ORDERS, USERS], Latest(), "a, b, c"),
        PlanError,
        "or none and give a MultiReducer",
    ),
    "a chain of two kinds": (
        lambda: ORDERS.chained_agg().aggregate(Count(), "a").partition_aggregate(Count(), "b"),
        PlanError,
        "a chain has both aggregate() and partition_aggregate()",
    ),
    "a chain of nothing": (lambda: ORDERS.chained_agg().chain_end(), PlanError, "after no aggregator"),
    "an Aggregator in a state": (
        lambda: ORDERS.persistent_aggregate(PaperState(), "n", Both(), "a, b"),
        PlanError,
        "persistent_aggregate cannot keep Both",
    ),
    "a reducer beside a combiner in a state": (
        lambda: ORDERS.persistent_aggregate(PaperState(), (Count(), "a"), ("item", Joined(), "b")),
        PlanError,
        "persistent_aggregate cannot keep Joined",
    ),
    "an order of arrays": (lambda: USERS.max_by("tags"), FieldError, "max_by cannot compare the field 'tags'"),
    "min_by of two fields": (lambda: ORDERS.min_by("n, price"), PlanError, "min_by got 2 fields"),
    "a grouping that is none": (lambda: ORDERS.partition("n"), PlanError, "or use partition_by()"),  # type: ignore[arg-type]
    "an assembly that gives nothing": (
        lambda: ORDERS.apply_assembly(lambda stream: None),  # type: ignore[arg-type, return-value]
        PlanError,
        "must return the stream",
    ),
    "a hint of none": (lambda: ORDERS.parallelism_hint(0), PlanError, "parallelism_hint got 0"),
    "a projection on nothing": (lambda: ORDERS.project(""), PlanError, "project in topology 'shop' got no fields"),
    "groups of nothing": (lambda: ORDERS.group_by([]), PlanError, "group_by in topology 'shop' got no fields"),
    "partitions of nothing": (lambda: ORDERS.partition_by(""), PlanError, "Use global_()"),
    "no such mode of a join": (
        lambda: SHOP.join([ORDERS, USERS], ["user", "id"], "a", mode="all"),
        PlanError,
        "COMPACT or PRESERVE",
    ),
    "no state": (
        lambda: ORDERS.persistent_aggregate(Count(), "n"),  # type: ignore[arg-type]
        PlanError,
        "persistent_aggregate takes (state, aggregator, output)",
    ),
    "a load of nothing": (lambda: ORDERS.set_cpu_load(0), PlanError, "set_cpu_load got 0"),
    "a class to negate": (lambda: Negate(FilterNull), PlanError, "Give an object"),
    "the first none": (lambda: FirstN(0), PlanError, "FirstN(n) got 0"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_every_mistake_is_raised_on_the_line_that_makes_it(case: str) -> None:
    verb, kind, text = MISTAKES[case]
    with pytest.raises(kind) as caught:
        verb()
    assert text in str(caught.value)
    lines = traceback.extract_tb(caught.value.__traceback__)
    assert any(frame.filename == __file__ and frame.name == "<lambda>" for frame in lines)


def rows_of(job_of: JobOf, change: Callable[[Stream], Stream]) -> list[str]:
    return run(LocalEngine(), job_of(lambda topology: keep(change(sales(topology).project("id, city, n")))))["rows"]


def test_built_in_filters_keep_what_they_say(job_of: JobOf) -> None:
    def ids(change: Callable[[Stream], Stream]) -> list[str]:
        return rows_of(job_of, lambda stream: change(stream).project("id"))

    assert ids(lambda s: s.filter(FilterNull())) == ["(0,)", "(2,)", "(4,)", "(5,)"]
    assert ids(lambda s: s.filter("city", Negate(FilterNull()))) == ["(3,)", "(6,)"]
    assert ids(lambda s: s.filter("id, n", Equals())) == ["(4,)"]
    assert ids(lambda s: s.each("n", lambda n: [n], "m long").filter("n, m", Equals())) == [f"({n},)" for n in range(7)]
    assert len(ids(lambda s: s.filter(TrueFilter()))) == 7


def test_the_first_n_are_those_of_the_whole_batch_nulls_last(job_of: JobOf) -> None:
    def best(*arguments: Any) -> list[str]:
        return rows_of(job_of, lambda stream: stream.project("id, n").apply_assembly(FirstN(*arguments)))

    assert best(2, "n") == ["(3, 1)", "(5, 2)"]
    assert best(2, "n", True) == ["(2, 7)", "(4, 4)"]
    assert len(best(3)) == 3
    assert best(99, "n", True) == best(99)


def test_of_equal_tuples_the_later_is_the_smallest_and_the_largest(job_of: JobOf) -> None:
    """Trident's rule; the order is that of the source, where there is one partition."""
    rows = [("a", 1), ("b", 1), ("c", None), ("d", None)]

    def found(change: Callable[[Stream], Stream]) -> list[str]:
        def build(topology: Topology) -> None:
            keep(change(topology.new_stream("s", FixedBatchSpout("k string, n long", rows, splits=1))))

        return run(LocalEngine(1), job_of(build))["rows"]

    assert found(lambda s: s.min_by("n")) == found(lambda s: s.max_by("n")) == ["('b', 1)"]
    assert (
        found(lambda s: s.min(lambda one, other: 0)) == found(lambda s: s.max(lambda one, other: 0)) == ["('d', None)"]
    )
    assert found(lambda s: s.filter(col("n") > 1).max_by("n")) == []


def test_debug_writes_every_tuple_and_passes_it_on(job_of: JobOf, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(rows_of(job_of, lambda stream: stream.peek("id", Debug("seen")))) == 7
    assert sorted(capsys.readouterr().err.splitlines()) == [f"seen: ({n},)" for n in range(7)]


def test_of_several_hints_without_a_repartition_between_them_the_largest_counts() -> None:
    topology = Topology("shop")
    stream = topology.new_stream("orders", PaperSpout("user string, n int")).parallelism_hint(2)
    hinted = stream.filter("user", FilterNull()).parallelism_hint(5).shuffle().filter("n", FilterNull())
    keep(hinted.parallelism_hint(3))
    assert [stage.partitions for stage in topology.compile().stages] == [5, 3]
    topology.set_max_task_parallelism(4)
    assert [stage.count(8) for stage in topology.compile().stages] == [4, 3]


def test_loads_are_summed_over_a_stage_and_make_spark_settings() -> None:
    topology = Topology("shop").set_resource_defaults(cpu_percent=10)
    stream = topology.new_stream("orders", PaperSpout("user string, n int")).set_cpu_load(50)
    stream = stream.filter("user", FilterNull()).set_cpu_load(80).set_memory_load(200).filter("n", TrueFilter())
    keep(stream.set_memory_load(100.5).shuffle())
    first, second = topology.compile().stages
    assert (first.cpu_percent, first.memory_mb) == (140, 300.5)
    assert (second.cpu_percent, second.memory_mb) == (None, None)
    assert topology.spark_conf() == {"spark.task.cpus": "2", "spark.executor.pyspark.memory": "301m"}


def test_what_a_broadcast_is_made_into_may_ask_a_state() -> None:
    """One tuple per partition of a join or an aggregate is what was asked for."""
    topology = Topology("t")
    orders = topology.new_stream("orders", PaperSpout("user string, n long"))
    largest = orders.broadcast().partition_aggregate("n", Max(), "most")
    assert largest.state_query(STATIC, "", TupleCollectionGet(), "user, n").fields == ("most", "user", "n")
