"""The stateful bolts of seed 003: its WordCountBolt, and its picture, statefulbolt1 > bolt1 > statefulbolt2.

``python -m tests.programs.stateful_chain`` runs the picture; crash tests kill it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_trident import FixedBatchSpout, KeyValueStates, SqliteState, StatefulFunction, Topology
from airflow_trident.operations.state_functions import KeyValues
from airflow_trident.storm import BaseStatefulBolt, BasicOutputCollector, BoltTuple, FieldsDeclarer

WORDS = ["storm", "spark", "storm", "kafka", "storm", "spark", "redis", "storm", "spark"]
BATCH = 2


class WordCountBolt(BaseStatefulBolt[str, int]):
    """As in the seed's text."""

    def init_state(self, state: KeyValues[str, int]) -> None:
        self.word_counts = state

    def execute(self, tuple: BoltTuple, collector: BasicOutputCollector) -> None:
        word = tuple.get_string(0)
        count = self.word_counts.get(word, 0)
        count += 1
        self.word_counts.put(word, count)
        collector.emit([word, count])

    def declare_output_fields(self, declarer: FieldsDeclarer) -> None:
        declarer.declare("word string, count long")


class HighestBolt(StatefulFunction[str, Any]):
    """Emits a word when it is the most frequent one so far; a function, as verbs take it."""

    def init_state(self, state: KeyValues[str, Any]) -> None:
        self.state = state

    def execute(self, word: str, count: int) -> Iterator[tuple[str, int]]:
        self.state.put("seen", self.state.get("seen", 0) + 1)
        if count > self.state.get("highest", 0):
            self.state.put("highest", count)
            yield word, count


def topology(folder: Path) -> Topology:
    made = Topology("stateful_words")
    words = made.new_stream("words", FixedBatchSpout("word string", WORDS, BATCH, splits=1))
    states = KeyValueStates("sqlite", {"path": str(folder / "stateful.db")})
    counts = words.stateful("word", WordCountBolt(), provider=states, keys="word", partitions=2)
    upper = counts.new_values_stream().map(str_upper, "word string, count long")
    highest = upper.stateful("word, count", HighestBolt(), provider=states, outputs="word string, count long")
    store = SqliteState(str(folder / "words.db"))
    highest.new_values_stream().partition_persist(store, "word, count", keys="count", name="records")
    return made


def str_upper(word: str, count: int) -> tuple[str, int]:
    return word.upper(), count


def contents(folder: Path) -> dict[str, list[Any]]:
    """The content of the states, sorted."""
    found = {}
    for name, spec in topology(folder).states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = sorted(state.items())
    return found
