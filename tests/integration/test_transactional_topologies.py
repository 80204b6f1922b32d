"""Transactional topologies as Storm's documents write them: the examples of the seeds, with committers that have a
database of their own."""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, Max, MemoryState, SqliteState
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, PlanError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm import (
    BaseBatchBolt,
    BaseStatefulBolt,
    BaseTransactionalBolt,
    BasicOutputCollector,
    BatchOutputCollector,
    BoltTuple,
    FieldsDeclarer,
    OutputFieldsDeclarer,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.testing import MemoryTransactionalSpout
from airflow_trident.topology.topology import Topology
from tests.seeds import global_count, words
from tests.seeds.database import Database

WORDS = [word for rows in global_count.DATA.values() for (word,) in rows]


def run(topology: Topology, folder: Path, engine: Engine | None = None) -> list[int]:
    with MemoryLedger(topology.name) as ledger, engine or LocalEngine() as runs:
        return LocalRunner(ledger=ledger, topology=topology, engine=runs, staging_root=str(folder)).run()


def test_the_global_count_is_that_of_all_tuples(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "counts.db"))
    assert run(global_count.builder(database).build(), tmp_path) == [1, 2, 3]
    assert database.all() == {global_count.GLOBAL_COUNT_KEY: {"txid": 3, "count": len(WORDS)}}


def test_words_and_the_buckets_of_their_counts_agree(tmp_path: Path) -> None:
    counts, buckets = Database(str(tmp_path / "counts.db")), Database(str(tmp_path / "buckets.db"))
    run(words.builder(counts, buckets).build(), tmp_path)
    held = {word: value["count"] for word, value in counts.all().items()}
    assert held == Counter(WORDS)
    expected = Counter(str(count // words.BUCKET_SIZE) for count in held.values())
    assert Counter({bucket: value["count"] for bucket, value in buckets.all().items()}) == expected


@pytest.mark.spark
def test_on_spark_the_global_count_is_the_same(tmp_path: Path, spark_engine: Engine) -> None:
    database = Database(str(tmp_path / "counts.db"))
    topology = global_count.builder(database).build()
    with MemoryLedger(topology.name) as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=spark_engine, staging_root=str(tmp_path)).run()
    assert database.all() == {global_count.GLOBAL_COUNT_KEY: {"txid": 3, "count": len(WORDS)}}


def test_the_plan_says_that_a_committer_is_at_least_once(tmp_path: Path) -> None:
    plan = global_count.builder(Database(str(tmp_path / "counts.db"))).build().compile()
    assert [note.split(" for each")[0] for note in plan.notes] == ["committer sum runs at least once"]


# ---- the figure of committers: A > B, A > C, B > C, C > D; B and D are committers ------------------------------


class Longest(BaseBatchBolt[Any]):
    def prepare(
        self, conf: Mapping[str, Any], context: TopologyContext, collector: BatchOutputCollector, id: Any
    ) -> None:
        self.collector, self.id, self.words = collector, id, list[str]()

    def execute(self, tuple: BoltTuple) -> None:
        self.words.append(tuple.get_string_by_field("word"))

    def finish_batch(self) -> None:
        self.collector.emit([self.id, max(self.words, key=len)])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, longest string")


@pytest.mark.parametrize(
    "grouping", ["shuffle_grouping", "none_grouping", "local_or_shuffle_grouping", "fields_grouping"]
)
def test_a_bolt_without_a_parallelism_is_one_task_which_sees_the_whole_batch(tmp_path: Path, grouping: str) -> None:
    spout = MemoryTransactionalSpout({n: [(word,)] for n, word in enumerate(("a", "bbb", "cc", "d"))}, "word string", 1)
    builder = TransactionalTopologyBuilder("longest", "spout", spout)
    getattr(builder.set_bolt("longest", Longest()), grouping)(
        "spout", *(["word"] if grouping == "fields_grouping" else [])
    )
    state = MemoryState(str(tmp_path))
    builder.end_stream("longest", lambda words: words.group_by("longest").persistent_aggregate(state, Count(), "n"))
    topology = builder.build()
    run(topology, tmp_path)
    with state.make_state(topology.states["n"]) as opened:
        assert list(opened.items()) == [(("bbb",), (1,))]


class Says(BaseTransactionalBolt):
    """Passes on what it gets, and says what is done to it."""

    def __init__(self, name: str, said: str) -> None:
        self.name, self.said = name, said

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.collector, self.id = collector, id
        self.got: list[tuple[str, str]] = []

    def execute(self, tuple: BoltTuple) -> None:
        self.got.append((tuple.get_source_component(), tuple.get_string_by_field("word")))

    def finish_batch(self) -> None:
        with Path(self.said).open("a") as file:
            file.write(f"{self.name} {self.id.txid} {sorted(self.got)}\n")
        for _, word in self.got:
            self.collector.emit([self.id, word.upper() if self.name == "B" else word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


def test_a_bolt_between_two_committers_finishes_its_batch_when_it_has_all_of_the_first_one(tmp_path: Path) -> None:
    said = tmp_path / "said"
    spout = MemoryTransactionalSpout({0: [("a",), ("b",)]}, "word string", 1)
    builder = TransactionalTopologyBuilder("figure", "spout", spout)
    builder.set_bolt("A", Says("A", str(said)), 1).global_grouping("spout")
    builder.set_committer_bolt("B", Says("B", str(said))).global_grouping("A")
    builder.set_bolt("C", Says("C", str(said)), 1).global_grouping("A").global_grouping("B")
    builder.set_committer_bolt("D", Says("D", str(said))).global_grouping("C")
    assert run(builder.build(), tmp_path) == [1, 2]
    assert said.read_text().splitlines() == [
        line
        for txid, low in ((1, "a"), (2, "b"))
        for line in (
            f"A {txid} [('spout', '{low}')]",
            f"B {txid} [('A', '{low}')]",
            f"C {txid} [('A', '{low}'), ('B', '{low.upper()}')]",
            f"D {txid} [('C', '{low.upper()}'), ('C', '{low}')]",
        )
    ]


def test_each_task_of_a_committer_gets_the_tuples_of_its_grouping(tmp_path: Path) -> None:
    said = tmp_path / "said"
    spout = MemoryTransactionalSpout({0: [(letter,) for letter in "abcabc"]}, "word string", 6)
    builder = TransactionalTopologyBuilder("tasks", "spout", spout)
    builder.set_committer_bolt("fields", Says("fields", str(said)), 3).fields_grouping("spout", "word")
    builder.set_committer_bolt("all", Says("all", str(said)), 2).all_grouping("spout")
    builder.set_committer_bolt("both", Says("both", str(said)), 2).global_grouping("spout").shuffle_grouping("spout")
    run(builder.build(), tmp_path)
    told: dict[str, list[Counter[str]]] = {}
    for line in said.read_text().splitlines():
        name, _, got = line.split(" ", 2)
        told.setdefault(name, []).append(Counter(word for _, word in literal_eval(got)))
    assert len(told["fields"]) == 3
    assert all(count == 2 for task in told["fields"] for count in task.values())
    assert told["all"] == [Counter("abcabc")] * 2
    assert sum(told["both"], Counter()) == Counter("abcabc" * 2)
    assert {task.total() for task in told["both"]} == {3, 9}


def test_a_bolt_that_emits_what_it_did_not_declare_names_itself_and_nothing_is_committed(tmp_path: Path) -> None:
    class Wrong(Says):
        def finish_batch(self) -> None:
            self.collector.emit("words", [self.id, "a"])

    spout = MemoryTransactionalSpout({0: [("a",)]}, "word string", 1)
    builder = TransactionalTopologyBuilder("wrong", "spout", spout)
    builder.set_bolt("bad", Wrong("bad", ""), 1).shuffle_grouping("spout")
    builder.set_committer_bolt("end", Says("end", str(tmp_path / "said"))).global_grouping("bad")
    with pytest.raises(UserCodeError, match=r"Wrong in bad raised ValueError: emitted to stream 'words'.*'default'"):
        run(builder.build(), tmp_path)
    assert not (tmp_path / "said").exists()


@pytest.mark.parametrize("committer", [False, True])
def test_a_bolt_that_reads_a_field_that_is_not_there_names_itself_its_row_and_its_transaction(
    tmp_path: Path, committer: bool
) -> None:
    class Wrong(Says):
        def execute(self, tuple: BoltTuple) -> None:
            tuple.get_string_by_field("wrod")

    spout = MemoryTransactionalSpout({0: [("a",)]}, "word string", 1)
    builder = TransactionalTopologyBuilder("misread", "spout", spout)
    wrong = Wrong("bad", "")
    if committer:
        builder.set_committer_bolt("bad", wrong).global_grouping("spout")
    else:
        builder.set_bolt("bad", wrong).shuffle_grouping("spout")
        builder.set_committer_bolt("end", Says("end", str(tmp_path / "said"))).global_grouping("bad")
    with pytest.raises(
        UserCodeError, match=r"Wrong in bad raised ValueError.*: wrod does not exist.*txid, word"
    ) as raised:
        run(builder.build(), tmp_path)
    assert (raised.value.node, raised.value.txid, raised.value.row) == ("bad", 1, "word='a'")


class Counting(BaseStatefulBolt[str, int]):
    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self.step = conf["step"]

    def init_state(self, state: Any) -> None:
        self.counts = state

    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        word = tuple.get_string_by_field("word")
        assert tuple.get_source_component() == "spout"
        self.counts.put(word, self.counts.get(word, 0) + self.step)
        collector.emit([word, self.counts.get(word)])

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word string, n long")

    def get_component_configuration(self) -> Mapping[str, Any]:
        return {"step": 10}


def stateful(folder: Path, tasks: int, grouping: str) -> TransactionalTopologyBuilder:
    spout = MemoryTransactionalSpout({0: [("a",), ("b",), ("a",)], 1: [("a",)]}, "word string", 1)
    conf = {
        "topology.state.provider": "sqlite",
        "topology.state.provider.config": {"path": str(folder / "counts.db")},
        "step": 1,
    }
    builder = TransactionalTopologyBuilder("stateful", "spout", spout, conf=conf)
    declarer = builder.set_bolt("count", Counting(), tasks)
    getattr(declarer, grouping)("spout", *(["word"] if grouping == "fields_grouping" else []))
    return builder


def test_a_stateful_bolt_counts_on_from_batch_to_batch_and_what_it_emits_goes_on(tmp_path: Path) -> None:
    builder = stateful(tmp_path, 2, "fields_grouping")
    newest = SqliteState(str(tmp_path / "newest.db"))
    builder.end_stream("count", lambda counts: counts.persistent_aggregate(newest, "n", Max(), "most"))
    topology = builder.build()
    assert run(topology, tmp_path) == [1, 2, 3]
    with topology.states["most"].factory.make_state(topology.states["most"]) as opened:
        assert list(opened.items()) == [((), (30,))]
    with topology.states["count"].factory.make_state(topology.states["count"]) as opened:
        assert dict(opened.items()) == {("a",): (30,), ("b",): (10,)}


def test_a_stateful_bolt_of_several_tasks_needs_a_fields_grouping(tmp_path: Path) -> None:
    assert "count" in stateful(tmp_path, 1, "shuffle_grouping").build().states
    with pytest.raises(PlanError, match=r"stateful bolt 'count' has 2 tasks.* the same fields_grouping"):
        stateful(tmp_path, 2, "shuffle_grouping").build()


def test_a_component_sets_no_name_of_the_topology() -> None:
    class Ticking(Counting):
        def get_component_configuration(self) -> Mapping[str, Any]:
            return {"topology.max.spout.pending": 3}

    builder = TransactionalTopologyBuilder("t", "spout", MemoryTransactionalSpout({0: [("a",)]}, "word string", 1))
    with pytest.raises(ConfigurationError, match=r"'count' sets topology\.max\.spout\.pending in get_component_conf"):
        builder.set_bolt("count", Ticking())
