"""Kafka spouts keep the promises of spouts (S1 to S5), against a real broker."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from airflow_trident.errors import SourceChangedError
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.kafka.spout import KafkaSpout
from airflow_trident.testing.suites import (
    SPOUT_CHECKS,
    SpoutCase,
    batch_rows,
    check_coverage,
    check_replay,
    metadata_of_all,
)
from tests.contracts.test_spouts import NAMES
from tests.fixtures.kafka import Topic

pytestmark = pytest.mark.kafka
FIELDS = "partition int, offset long, value string"
SECRET = "of-nobodys-concern"


def records(topic: Topic, **options: Any) -> SpoutCase:
    """Three partitions of 17, 0 and 30 records; producers' transactions, one of them aborted, in the last."""
    topic.create(3)
    topic.send([(None, f"{number} {NAMES[number % 7]}") for number in range(17)], partition=0)
    topic.send([(None, str(number)) for number in range(10)], partition=2)
    topic.transaction([(None, "aborted")] * 4, partition=2, commit=False)
    topic.transaction([(None, str(number)) for number in range(10, 20)], partition=2, commit=True)
    topic.send([(None, str(number)) for number in range(20, 30)], partition=2)

    def take_away() -> KafkaSpout:
        topic.truncate(0, 3)
        return spout

    options = {"max_rows": 10, "split_rows": 4, "fields": FIELDS, "timeout_s": 10.0, **options}
    spout = KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, config={"client.id": SECRET}, **options)
    offsets = [*range(10), *range(15, 25), *range(26, 36)]
    rows: list[tuple[Any, ...]] = [(0, number, f"{number} {NAMES[number % 7]}") for number in range(17)]
    return SpoutCase(spout, rows + [(2, offset, str(number)) for number, offset in enumerate(offsets)], take_away)


@pytest.mark.parametrize("check", SPOUT_CHECKS)
def test_a_kafka_spout_keeps_its_promises(topic: Topic, check: Callable[[SpoutCase], None]) -> None:
    check(records(topic))


@pytest.mark.parametrize("check", [check_replay, check_coverage])
def test_an_opaque_kafka_spout_does_so_while_nothing_is_lost(topic: Topic, check: Callable[[SpoutCase], None]) -> None:
    check(records(topic, opaque=True))


def test_a_topic_without_gaps_is_read_in_batches_of_max_rows(topic: Topic) -> None:
    topic.create(1)
    topic.send([("k", "v")] * 25)
    spout = KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, max_rows=10)
    assert [len(batch_rows(spout, metadata)) for metadata in metadata_of_all(spout)] == [10, 10, 5]


def test_a_kafka_spout_says_what_it_is_in_one_line_without_settings(topic: Topic) -> None:
    spout = records(topic).spout
    assert spout.describe() == f"KafkaSpout({topic.name})"
    assert (spout.kind, records_kind()) == (SpoutKind.TRANSACTIONAL, SpoutKind.OPAQUE)
    assert SECRET not in repr(spout.emitter()) + repr(spout.coordinator())
    assert SECRET.encode() in pickle.dumps(spout.emitter()), "executors need it"


def records_kind() -> SpoutKind:
    return KafkaSpout("t", bootstrap_servers="localhost:1", opaque=True).kind


@pytest.mark.parametrize("metadata", [[], "x", 7, {}, {"from": 1}, {"topics": [1]}, {"topics": {"t": {"id": "x"}}}])
def test_metadata_of_another_spout_is_an_error(metadata: Any) -> None:
    spout = KafkaSpout("t", bootstrap_servers="localhost:1")
    with pytest.raises(SourceChangedError, match=r"is not that of a .*stream a new name"):
        spout.coordinator().initialize_transaction(2, metadata)
    with pytest.raises(SourceChangedError, match="is not that of a"):
        spout.emitter().splits(metadata)
