"""Queries of states: from streams, from query streams, from tasks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_trident import Count, FileSink, FixedBatchSpout, Max, MemoryState, Min, SqliteState, Sum, Topology, query
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, FieldError, PlanError, UserCodeError
from airflow_trident.functions import FilterNull, Split
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.state_functions import (
    MapGet,
    QueryFunction,
    ReadableState,
    SnapshotGet,
    TupleCollectionGet,
)
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.query import json_value, parse_text, query_texts
from airflow_trident.topology.stream import Stream, TridentState
from airflow_trident.types import INTERVAL, parse_declared

WORDS = ["a", "b", "a", "c", "a", "b"]


class Twice(QueryFunction):
    """Asks for all keys at once; emits as many tuples as the key was counted, at most two."""

    output_types = "long"

    def batch_retrieve(self, state: ReadableState, args: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        return [found[0] if found else 0 for found in state.multi_get(args)]

    def execute(self, args: tuple[Any, ...], result: int) -> Iterable[int]:
        return [result] * min(result, 2)


class TooFew(Twice):
    def batch_retrieve(self, state: ReadableState, args: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        return [1]


def counted(topology: Topology, store: StateFactory) -> tuple[Stream, TridentState]:
    stream = topology.new_stream("words", FixedBatchSpout("word string", WORDS, 3))
    return stream, stream.group_by("word").persistent_aggregate(store, Count(), "n")


def run(topology: Topology, folder: Path) -> None:
    with MemoryLedger(topology.name) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(folder / "staging")).run()


def rows(topology: Topology, name: str) -> set[Any]:
    spec = topology.states[name]
    with spec.factory.make_state(spec) as state:
        return {(*key, *value) for key, value in state.items()}


# ---- queries from streams --------------------------------------------------------------------------------------


def test_a_query_reads_what_is_committed_and_after_the_commit_what_the_batch_made(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    stream, counts = counted(topology, store)
    batch = stream.group_by("word").aggregate(Count(), "in_batch")
    before = batch.state_query(counts, "word", MapGet(), "n")
    before.partition_persist(store, "word, in_batch, n", keys="word, in_batch", name="before")
    after = batch.state_query(counts, "word", MapGet(), "n", after_commit=True)
    after.partition_persist(store, "word, in_batch, n", keys="word, in_batch", name="after")
    run(topology, tmp_path)
    # transactions ("a", "b", "a") and ("c", "a", "b"), one after the other
    assert rows(topology, "before") == {("a", 2, None), ("b", 1, 1), ("c", 1, None), ("a", 1, 2)}
    assert rows(topology, "after") == {("a", 2, 2), ("b", 1, 2), ("c", 1, 1), ("a", 1, 3)}


def test_snapshots_collections_and_own_queries(tmp_path: Path) -> None:
    store = SqliteState(str(tmp_path / "states.db"))
    topology = Topology("t")
    stream, counts = counted(topology, store)
    total = stream.persistent_aggregate(store, Count(), "total")
    args = topology.new_drpc_stream("total", "question string")
    args.state_query(total, (), SnapshotGet(), "answer")
    args = topology.new_drpc_stream("all", "question string")
    args.state_query(counts, (), TupleCollectionGet(), "word, n").project("word, n")
    topology.new_drpc_stream("twice", "word string").state_query(counts, "word", Twice(), "n")
    assert query(topology, "total", "?").rows == (("?", None),)
    run(topology, tmp_path)
    assert query(topology, "total", "?").rows == (("?", 6),)
    assert sorted(query(topology, "all", "?").rows) == [("a", 3), ("b", 2), ("c", 1)]
    assert query(topology, "twice", "a").rows == (("a", 3), ("a", 3))
    assert query(topology, "twice", "absent").rows == ()


def test_what_another_topology_keeps_is_asked_through_a_static_state(tmp_path: Path) -> None:
    store = SqliteState(str(tmp_path / "states.db"))
    one = Topology("one")
    counted(one, store)
    run(one, tmp_path)
    two = Topology("two")
    counts = two.new_static_state(store, "n", keys="word string", values="n long", topology="one")
    stream = two.new_stream("asked", FixedBatchSpout("word string", ["a", "x"]))
    stream.state_query(counts, "word", MapGet(), "n").partition_persist(store, "word, n", keys="word", name="found")
    run(two, tmp_path)
    assert rows(two, "found") == {("a", 3), ("x", None)}
    with pytest.raises(PlanError, match="no commit to come after"):
        stream.state_query(counts, "word", MapGet(), "n", after_commit=True)


def test_another_number_of_results_than_of_tuples_is_an_error(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    stream, counts = counted(topology, store)
    asked = stream.global_().state_query(counts, "word", TooFew(), "m")
    asked.partition_persist(store, "word, m", keys="word", name="asked")
    with pytest.raises(UserCodeError, match="gave 1 results for 3 tuples"):
        run(topology, tmp_path)


def test_queries_that_cannot_be_are_refused_on_the_users_line(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    stream, counts = counted(topology, store)
    with pytest.raises(PlanError, match="state_query got"):
        stream.state_query(store, "word", MapGet(), "n")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="Give an object of a QueryFunction"):
        stream.state_query(counts, "word", Split(), "n")  # type: ignore[arg-type]
    with pytest.raises(FieldError, match="gives 1 fields and 2 are named"):
        stream.state_query(counts, "word", MapGet(), "n, m long")
    with pytest.raises(FieldError, match="Did you mean 'word'"):
        stream.state_query(counts, "words", MapGet(), "n")
    with pytest.raises(
        FieldError, match=r"MapGet got \(word string, one long\), and the state's key is \(word string\)"
    ):
        stream.each("", lambda: [1], "one long").state_query(counts, "word, one", MapGet(), "n")
    with pytest.raises(FieldError, match=r"MapGet got \(one long\)"):
        stream.each("", lambda: [1], "one long").state_query(counts, "one", MapGet(), "n")
    with pytest.raises(FieldError, match="asks for the one row of a state"):
        stream.state_query(counts, "word", SnapshotGet(), "n")
    sink = stream.partition_persist(FileSink(str(tmp_path / "sink")), "word")
    with pytest.raises(PlanError, match="only appends rows"):
        stream.state_query(sink, "word", MapGet(), "n")
    other = Topology("other").new_stream("words", FixedBatchSpout("word string", WORDS))
    with pytest.raises(PlanError, match="belongs to topology 't'"):
        other.state_query(counts, "word", MapGet(), "n")


# ---- query streams ---------------------------------------------------------------------------------------------


def counting(folder: Path) -> Topology:
    topology = Topology("t")
    _, counts = counted(topology, SqliteState(str(folder / "states.db")))
    words = topology.new_drpc_stream("sum_of").each("args", Split(), "word").group_by("word")
    words.state_query(counts, "word", MapGet(), "n").filter("n", FilterNull()).aggregate("n", Sum(), "sum")
    topology.new_drpc_stream("count_of", "word string, least long").state_query(counts, "word", MapGet(), "n").filter(
        ["n", "least"], lambda n, least: n is not None and n >= least
    ).project("word, n")
    return topology


def test_a_query_stream_gives_what_was_made_of_it_last(tmp_path: Path) -> None:
    topology = counting(tmp_path)
    assert query(topology, "sum_of", "a b x").rows == ((0,),)
    run(topology, tmp_path)
    answer = query(topology, "sum_of", "a b x")
    assert (answer.fields, answer.rows) == (("sum",), ((5,),))
    assert query(topology, "count_of", "a", 3).as_json() == [{"word": "a", "n": 3}]
    assert query(topology, "count_of", "a", 4).as_json() == []
    assert query_texts(topology, "count_of", ["b", "2"]).rows == (("b", 2),)
    assert query_texts(topology, "count_of", ["b", 2]).rows == (("b", 2),)


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    topology = counting(tmp_path)
    with pytest.raises(PlanError, match=r"has no query 'sums'.*'sum_of', 'count_of'"):
        query(topology, "sums", "a")
    with pytest.raises(ConfigurationError, match="takes 2 arguments and got 1"):
        query(topology, "count_of", "a")
    with pytest.raises(ConfigurationError, match=r"'3' \(str\), where long is declared"):
        query(topology, "count_of", "a", "3")
    with pytest.raises(ConfigurationError, match="'many' is no long"):
        query_texts(topology, "count_of", ["a", "many"])


@pytest.mark.parametrize(
    ("type_text", "text"),
    [
        ("time", "08:30:00."),
        ("time", "08:30:00.1234567"),
        (INTERVAL, "9" * 20),
        ("long", "9" * 20),
        ("int", "3000000000"),
        ("decimal(4,2)", "123.4"),
        ("float", "1e300"),
        ("string", "\udcff"),
        ("array<long>", '["a"]'),
        ("array<long>", "[" * 100_000),
        ("struct<a long>", "[1]"),
    ],
)
def test_a_text_that_is_no_value_of_the_type_is_refused(type_text: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=r" is no [a-z]+"):
        parse_text(*parse_declared(f"x {type_text}"), text)


def test_a_query_stream_meets_no_other_stream_and_ends_in_no_state(tmp_path: Path) -> None:
    store = MemoryState(str(tmp_path))
    topology = Topology("t")
    stream, counts = counted(topology, store)
    asked = topology.new_drpc_stream("of", "word string")
    with pytest.raises(PlanError, match="brings query 'of' together with other streams"):
        topology.merge([stream, asked])
    with pytest.raises(PlanError, match="brings query 'of' together"):
        topology.join([asked, counts.new_values_stream()], ["word", "word"], "word, n")
    with pytest.raises(PlanError, match="query 'of' of topology 't' ends in state"):
        asked.group_by("word").persistent_aggregate(store, Count(), "asked")
    with pytest.raises(PlanError, match="two queries named 'of'"):
        topology.new_drpc_stream("of", "word string")
    with pytest.raises(PlanError, match="no commit to come after"):
        asked.state_query(counts, "word", MapGet(), "n", after_commit=True)


@pytest.mark.parametrize(
    ("type_text", "text", "value", "shown"),
    [
        ("long", "7", 7, 7),
        ("double", "1.5", 1.5, 1.5),
        ("boolean", "true", True, True),
        ("binary", "0aff", b"\x0a\xff", "0aff"),
        ("decimal(10,2)", "1.50", Decimal("1.50"), "1.50"),
        ("timestamp", "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05+00:00"),
        ("time", "03:04:05.5", time(3, 4, 5, 500_000), "03:04:05.500000"),
        ("interval day to second", "-7", timedelta(microseconds=-7), -7),
        ("array<long>", "[1, 2]", [1, 2], [1, 2]),
        ("string", "null", "null", "null"),
        ("long", "null", None, None),
        ("double", "nan", pytest.approx(float("nan"), nan_ok=True), "nan"),
    ],
)
def test_texts_become_values_and_values_json(type_text: str, text: str, value: Any, shown: Any) -> None:
    (field,) = parse_declared(f"x {type_text}")
    parsed = parse_text(field, text)
    assert parsed == value
    assert json_value(parsed) == shown


# ---- the guides ------------------------------------------------------------------------------------------------


def guide(name: str) -> dict[str, Any]:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / name).read_text()
    names: dict[str, Any] = {"__name__": "guide"}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, name, "exec"), names)
    return names


def test_the_guide_to_queries_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = guide("query-states.md")
    run(names["topology"], tmp_path)
    assert rows(names["topology"], "ranked") == {("the", 2), ("storm", 2), ("quiet", 1), ("a", 1)}
    assert query(names["topology"], "sum_of", "the storm").rows == ((4,),)
    assert query(names["other"], "count_of", "storm").as_json() == [{"word": "storm", "count": 2}]


def test_the_guide_to_windows_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    topology = guide("windows.md")["topology"]
    run(topology, tmp_path)
    first = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows(topology, "by_minute") == {(first, 3, 1), (first + timedelta(minutes=1), 6, 2)}
    assert rows(topology, "fruit_by_minute") == {
        (first, "apple", 1),
        (first + timedelta(minutes=1), "pear", 1),
        (first + timedelta(minutes=1), "apple", 1),
    }
    assert rows(topology, "highest_of_three") == {(1, 3), (2, 5), (3, 5), (4, 5)}


# ---- on Spark, in tasks, on the command line -------------------------------------------------------------------


@pytest.mark.spark
def test_on_spark_queries_windows_and_what_is_handed_on_are_the_same(spark_engine: Engine, tmp_path: Path) -> None:
    ends: list[Any] = []
    for name, engine in (("local", LocalEngine()), ("spark", spark_engine)):
        store = SqliteState(str(tmp_path / f"{name}.db"))
        topology = Topology("t")
        stream, counts = counted(topology, store)
        stream.state_query(counts, "word", MapGet(), "n").group_by("word").persistent_aggregate(
            store, "n", Max(), "most"
        )
        stream.state_query(counts, "word", Twice(), "m", after_commit=True).persistent_aggregate(
            store, Count(), "twice"
        )
        windows = stream.tumbling_window(3, store, (Count(), "tuples"), ("word", Min(), "first"), bounds=True)
        windows.partition_persist(store, "window_end, tuples, first", keys="window_end", name="windows")
        with MemoryLedger("t") as ledger:
            staging = str(tmp_path / f"{name}-staging")
            LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=staging).run()
        ends.append({state: rows(topology, state) for state in ("n", "most", "twice", "windows")})
    assert ends[0] == ends[1]
    assert ends[0]["windows"] == {(3, 3, "a"), (6, 3, "a")}
    assert ends[0]["most"] == {("a", 2), ("b", 1), ("c", None)}


@pytest.mark.spark
def test_a_state_of_this_process_cannot_be_asked_on_spark(spark_engine: Engine, tmp_path: Path) -> None:
    topology = Topology("t")
    stream, counts = counted(topology, MemoryState(str(tmp_path)))
    stream.state_query(counts, "word", MapGet(), "n").persistent_aggregate(MemoryState(str(tmp_path)), Count(), "asked")
    with MemoryLedger("t") as ledger, pytest.raises(ConfigurationError, match="no Spark worker can see"):
        LocalRunner(ledger=ledger, topology=topology, engine=spark_engine, staging_root=str(tmp_path)).run()


def test_the_query_task_returns_the_answer(tmp_path: Path) -> None:
    from airflow_trident import TridentQueryOperator

    topology = counting(tmp_path)
    run(topology, tmp_path)
    task = TridentQueryOperator(task_id="ask", topology=topology, query="count_of", query_args=["a", "3"])
    assert task.execute({}) == [{"word": "a", "n": 3}]
    assert "query_args" in task.template_fields
    with pytest.raises(PlanError, match="has no query"):
        TridentQueryOperator(task_id="wrong", topology=topology, query="counts")
    with pytest.raises(ConfigurationError, match="is not a topology"):
        TridentQueryOperator(task_id="wrong", topology="t", query="count_of")  # type: ignore[arg-type]
    wrong = TridentQueryOperator(task_id="wrong", topology=topology, query="count_of", query_args=["a"])
    with pytest.raises(AirflowFailException, match="takes 2 arguments and got 1"):
        wrong.execute({})
