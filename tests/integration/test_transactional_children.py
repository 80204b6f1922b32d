"""Bolts in other programs as bolts of a transactional topology, between a spout and a committer."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.engine import Engine
from airflow_trident.storm import (
    BaseTransactionalBolt,
    BatchOutputCollector,
    BoltTuple,
    ICommitter,
    NodeBolt,
    OutputFieldsDeclarer,
    ShellBolt,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.testing import MemoryTransactionalSpout
from tests.fixtures.child import COMPONENTS, needs_node
from tests.integration.test_transactional_topologies import run
from tests.seeds.database import Database

LINES = {0: [("snow white and the dwarfs",), ("the end",)], 1: [("mirror on the wall",), ("the wall",)]}
WORDS = Counter(word for rows in LINES.values() for (line,) in rows for word in line.split())
SHELL = [sys.executable, "-I", "-S", os.path.join(COMPONENTS, "shell.py")]


class SplitSentence(ShellBolt):
    """As Storm's documents have it: the command, and what it emits."""

    def __init__(self) -> None:
        super().__init__([*SHELL, "Bolt"])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


class SplitModule(NodeBolt):
    """A module of qtopology; long words are on a stream of their own."""

    def __init__(self) -> None:
        super().__init__("splitter.js", working_dir=COMPONENTS, init={"mode": "streams"})

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")
        declarer.declare_stream("long", "id, word string, length long")


class Counts(BaseTransactionalBolt, ICommitter):
    def __init__(self, database: Database) -> None:
        self.database = database
        self.counts = Counter[str]()

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self.id = id

    def execute(self, tuple: BoltTuple) -> None:
        self.counts[tuple.get_string_by_field("word")] += 1

    def finish_batch(self) -> None:
        values = {}
        for word, count in self.counts.items():
            known = self.database.get(word) or {"txid": 0, "count": 0}
            if known["txid"] < self.id.txid:
                values[word] = {"txid": self.id.txid, "count": known["count"] + count}
        self.database.put(values)


def builder(split: ChildBolt, database: Database, *streams: str) -> TransactionalTopologyBuilder:
    spout = MemoryTransactionalSpout(LINES, "line string", 1)
    made = TransactionalTopologyBuilder("sentences", "spout", spout, 2)
    made.set_bolt("split", split, 2).shuffle_grouping("spout")
    count = made.set_bolt("count", Counts(database))
    for stream in streams or ("default",):
        count.fields_grouping("split", stream, "word")
    return made


def counted(database: Database) -> Counter[str]:
    return Counter({word: value["count"] for word, value in database.all().items()})


def test_a_shell_bolt_stands_between_a_spout_and_a_committer(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "counts.db"))
    assert run(builder(SplitSentence(), database).build(), tmp_path) == [1, 2]
    assert counted(database) == WORDS


@needs_node
def test_a_module_of_qtopology_does_so_with_a_stream_for_each_stream_id(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "counts.db"))
    topology = builder(SplitModule(), database, "default", "long").build()
    assert run(topology, tmp_path) == [1, 2]
    assert counted(database) == WORDS


@pytest.mark.spark
def test_it_does_so_on_spark(tmp_path: Path, spark_engine: Engine) -> None:
    database = Database(str(tmp_path / "counts.db"))
    assert run(builder(SplitSentence(), database).build(), tmp_path, spark_engine) == [1, 2]
    assert counted(database) == WORDS


def test_several_inputs_of_the_same_fields_come_to_one_child(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "counts.db"))
    made = TransactionalTopologyBuilder("sentences", "spout", MemoryTransactionalSpout(LINES, "line string", 1), 2)
    made.set_bolt("split", SplitSentence()).shuffle_grouping("spout").all_grouping("spout")
    made.set_bolt("count", Counts(database)).global_grouping("split")
    assert run(made.build(), tmp_path)
    assert set(counted(database)) == set(WORDS)
    assert all(counted(database)[word] >= 2 * count for word, count in WORDS.items())
