"""Stateful bolts in Storm's form: when they are called, and what is said where they cannot work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_trident import FixedBatchSpout, KeyValueStates, MemoryState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FieldError, PlanError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.state_functions import KeyValues
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.storm import BaseStatefulBolt, BasicOutputCollector, BoltTuple, FieldsDeclarer, TopologyContext
from tests.seeds.stateful_words import WordCountBolt


class Called(BaseStatefulBolt[str, int]):
    """Writes down how it is called."""

    def __init__(self, book: Path) -> None:
        self.book = str(book)

    def say(self, *what: object) -> None:
        with open(self.book, "a") as book:
            book.write(" ".join(map(str, what)) + "\n")

    def prepare(self, conf: Mapping[str, Any], context: TopologyContext) -> None:
        self.say("prepare", conf["topology.name"], context.component_id, context.task_index, context.num_tasks)

    def init_state(self, state: KeyValues[str, int]) -> None:
        self.say("init_state", sorted(state.iterator()))
        self.state = state

    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        self.say("execute", tuple.get_values(), tuple["word"], tuple.get_fields(), tuple.get_source_component())
        self.state.put(tuple["word"], 1)

    def pre_prepare(self, txid: int) -> None:
        self.say("pre_prepare", txid)

    def pre_commit(self, txid: int) -> None:
        self.say("pre_commit", txid)

    def cleanup(self) -> None:
        self.say("cleanup")


def stateful(bolt: BaseStatefulBolt[Any, Any], **options: Any) -> Topology:
    made = Topology("t")
    words = made.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1)], 1))
    state = words.stateful(
        "n, word", bolt, provider=KeyValueStates("memory", {"name": uuid4().hex}), name="counts", **options
    )
    if bolt_emits(bolt):
        state.new_values_stream().partition_persist(MemoryState(), "word, count", keys="word")
    return made


def bolt_emits(bolt: BaseStatefulBolt[Any, Any]) -> bool:
    declarer = FieldsDeclarer()
    bolt.declare_output_fields(declarer)
    return bool(declarer.schema)


def run(topology: Topology, folder: Path) -> None:
    with MemoryLedger(topology.name) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(folder)).run()


def test_a_bolt_is_called_in_the_order_of_storms_hooks(tmp_path: Path) -> None:
    run(stateful(Called(tmp_path / "book")), tmp_path)
    assert (tmp_path / "book").read_text().splitlines() == [
        "prepare t counts 0 1",
        "init_state []",
        "execute [1, 'a'] a ('n', 'word') words",
        "pre_prepare 1",
        "pre_commit 1",
        "cleanup",
    ]


def test_what_a_bolt_declares_is_its_stream_and_the_name_of_its_class_is_in_the_definition() -> None:
    text = stateful(WordCountBolt()).definition().states["counts"].text
    assert text.endswith("WordCountBolt in 1 partition -> (word string, count long)")


def test_outputs_of_the_call_must_be_those_of_the_bolt() -> None:
    stateful(WordCountBolt(), outputs="word string, count long")
    with pytest.raises(PlanError, match=r"\(word string\) for counts, which declares word string, count long"):
        stateful(WordCountBolt(), outputs="word string")


def declares(*fields: str) -> Callable[[BaseStatefulBolt[Any, Any], FieldsDeclarer], None]:
    return lambda self, declarer: [declarer.declare(one) for one in fields] and None


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [(("word",), FieldError, "type"), (("word string", "n long"), PlanError, "declares its output fields twice")],
)
def test_wrong_declarations_are_errors_of_the_dag_file(
    fields: tuple[str, ...], error: type[Exception], says: str
) -> None:
    wrong = type("Wrong", (WordCountBolt,), {"declare_output_fields": declares(*fields)})
    with pytest.raises(error, match=says):
        stateful(wrong())


class Undeclared(WordCountBolt):
    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        pass


class Letters(WordCountBolt):
    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        collector.emit("ab")  # type: ignore[arg-type]


class TooFew(WordCountBolt):
    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        collector.emit(["a"])


@pytest.mark.parametrize(
    ("bolt", "says"),
    [
        (Undeclared(), "Undeclared in state counts raised ValueError: it emitted, and declares no output fields"),
        (Letters(), "emit takes a list of values, and got 'ab'"),
        (TooFew(), "where 2 values are declared"),
    ],
)
def test_what_a_bolt_emits_wrongly_names_it_and_nothing_is_committed(
    bolt: BaseStatefulBolt[Any, Any], says: str, tmp_path: Path
) -> None:
    made = stateful(bolt)
    with pytest.raises(UserCodeError, match=says):
        run(made, tmp_path)


def test_a_class_instead_of_an_object_is_refused() -> None:
    with pytest.raises(PlanError, match=r"stateful got WordCountBolt.*BaseStatefulBolt"):
        stateful(WordCountBolt)  # type: ignore[arg-type]
