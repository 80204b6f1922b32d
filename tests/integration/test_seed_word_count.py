"""Storm's TridentWordCount over a real Kafka."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_trident import MemoryState
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts.kafka.spout import KafkaSpout
from tests.fixtures.kafka import Topic
from tests.seeds.trident_word_count import topology

pytestmark = pytest.mark.kafka

LINES = ["the cow jumped over the moon", "the man went to the store", "four score and seven", "how many apples"]


def test_words_of_all_partitions_are_counted_and_what_comes_later_is_added(topic: Topic, tmp_path: Path) -> None:
    topic.create(2)
    spout = KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, fields="value string", max_rows=3)
    wordcount = topology(spout, MemoryState())
    sent: list[str] = []
    with MemoryLedger("wordcount") as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=wordcount, engine=LocalEngine(), staging_root=str(tmp_path / "staging")
        )
        for partition in (0, 1):
            topic.send([(None, line.encode()) for line in LINES], partition=partition)
            sent += LINES
            assert runner.run()
            spec = wordcount.states["count"]
            with spec.factory.make_state(spec) as state:
                found = {key[0]: value[0] for key, value in state.items()}
            assert found == Counter(word for line in sent for word in line.split(" "))
