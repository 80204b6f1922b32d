"""KafkaSpout in topologies that are bound to partitions: records by their time."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import KafkaSpout, MemoryState, Partitions, Sum, Topology
from airflow_trident.contracts.bound_spout import bound
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    IncompletePartitionError,
    PlanError,
    SourceChangedError,
    SourceGoneError,
)
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.testing.suites import batch_rows
from tests.fixtures.kafka import Topic

pytestmark = pytest.mark.kafka
HOURS = Partitions("hour", begin="2026-01-01T00:00:00", column="at")
KEYS = [f"2026-11-24T{hour:02}:00:00" for hour in range(6)]
FIRST, SECOND, THIRD = KEYS[:3]
FOREVER = {"retention_ms": "-1", "retention_bytes": "-1"}


def spout_of(topic: Topic, **options: Any) -> KafkaSpout:
    options = {"fields": "value string", "time": "timestamp", "timeout_s": 5.0, **options}
    return KafkaSpout(topic.name, bootstrap_servers=topic.broker.hosts, **options)


def at(moment: str) -> int:
    """Milliseconds of a time of the day."""
    return int(datetime.fromisoformat(f"2026-11-24T{moment}+00:00").timestamp() * 1000)


def send(topic: Topic, *records: tuple[str, str], partition: int = 0) -> None:
    for value, moment in records:
        topic.send([("k", value)], partition, timestamp=at(moment))


def looked_at(spout: KafkaSpout, key: str, before: Any = None) -> Any:
    return spout.bound(HOURS).coordinator().partition(HOURS.parse(key), before)


def values(spout: KafkaSpout, metadata: Any) -> list[str]:
    return [] if metadata is None else sorted(row[0] for row in batch_rows(spout.bound(HOURS), metadata))


def test_an_hour_has_the_records_of_its_times_whatever_their_order(topic: Topic) -> None:
    """Drawn times, out of order by up to the slack, in two partitions of the topic."""
    topic.create(2, **FOREVER)
    chance, slack = random.Random(7), timedelta(minutes=40)
    moments = sorted(chance.randrange(at("00:00:00"), at("06:00:00")) for _ in range(60))
    moments += [at(f"0{hour}:00:00") - early for hour in range(1, 6) for early in (0, 1)]
    moments.sort(key=lambda moment: moment + chance.randrange(int(slack.total_seconds() * 1000)))
    for number, moment in enumerate(moments):
        topic.send([("k", str(number))], number % 2, timestamp=moment)
    spout = spout_of(topic, slack=slack)
    for key in KEYS:
        hour = HOURS.parse(key)
        expected = sorted(
            str(number)
            for number, moment in enumerate(moments)
            if hour.start <= datetime.fromtimestamp(moment / 1000, UTC) < hour.end
        )
        assert values(spout, looked_at(spout, key)) == expected


def test_what_comes_within_the_slack_changes_an_hour_and_what_comes_later_does_not(topic: Topic) -> None:
    topic.create(**FOREVER)
    spout = spout_of(topic, slack="10m")
    coordinator = spout.bound(HOURS).coordinator()
    send(topic, ("a", "00:10:00"), ("b", "01:05:00"))
    before = looked_at(spout, FIRST)
    send(topic, ("late", "00:59:59"), ("c", "01:20:00"))
    now = looked_at(spout, FIRST, before)
    assert coordinator.compared(before, now).new == (f"{topic.name}-0",)
    assert values(spout, before) == ["a"]
    assert values(spout, now) == ["a", "late"]
    send(topic, ("too late", "00:59:59"), ("d", "02:20:00"))
    assert not coordinator.compared(now, looked_at(spout, FIRST, now))
    assert looked_at(spout, KEYS[4]) is None


def number_of(value: str) -> int:
    return int(value)


def shop(topic: Topic, folder: Path, **options: Any) -> Any:
    topology = Topology("shop", partitions=HOURS)
    rows = topology.new_stream("rows", spout_of(topic, **options)).each("value", number_of, "n long")
    state = MemoryState(str(folder))
    return topology, rows.group_by("at").persistent_aggregate(state, "n", Sum(), "total", name="totals")


def test_hours_are_done_again_and_expired_records_need_a_word(topic: Topic, tmp_path: Path) -> None:
    topic.create(**FOREVER)
    topology, totals = shop(topic, tmp_path)
    assert "LogAppendTime" in str(topology.compile().notes)
    send(topic, ("1", "00:10:00"), ("2", "00:20:00"), ("4", "01:00:00"), ("8", "02:00:00"))
    with MemoryLedger("shop") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))

        def sums() -> dict[str, int]:
            with totals.spec.factory.make_state(totals.spec) as state:
                return {at: total for (at,), (total,) in state.items()}

        assert runner.run(partitions=[FIRST, SECOND]) == [1, 2]
        assert runner.run(partitions=[FIRST, SECOND], redo="changed") == []
        assert sums() == {FIRST: 3, SECOND: 4}
        topic.truncate(0, 1)
        with pytest.raises(SourceGoneError, match=f"{topic.name}-0 from offset 0"):
            runner.run(partitions=[FIRST])
        assert runner.run(partitions=[SECOND, THIRD]) == [3, 4]
        assert sums() == {FIRST: 3, SECOND: 4, THIRD: 8}
        assert runner.run(partitions=[FIRST], gone="take") == [5]
        assert sums() == {FIRST: 2, SECOND: 4, THIRD: 8}


def test_the_first_look_at_an_hour_whose_records_may_have_expired_needs_a_word(topic: Topic, tmp_path: Path) -> None:
    """A topic that keeps its last bytes: nobody knows how old what it dropped was."""
    topic.create(retention_ms="-1", retention_bytes="1000000")
    topology, totals = shop(topic, tmp_path)
    send(topic, ("1", "00:10:00"), ("2", "00:20:00"), ("4", "01:00:00"))
    topic.truncate(0, 1)
    with MemoryLedger("shop") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        with pytest.raises(SourceGoneError, match="may have expired"):
            runner.run(partitions=[FIRST])
        assert runner.run(partitions=[SECOND]) == [1]
        assert runner.run(partitions=[FIRST], gone="take") == [2]
        with totals.spec.factory.make_state(totals.spec) as state:
            assert {at: total for (at,), (total,) in state.items()} == {FIRST: 2, SECOND: 4}


def test_a_topic_that_keeps_records_for_longer_than_the_hour_ago_has_lost_none_of_it(topic: Topic) -> None:
    topic.create(retention_ms=str(1000 * 365 * 86_400_000 // 2), retention_bytes="-1")
    send(topic, ("1", "00:10:00"), ("2", "01:20:00"))
    topic.truncate(0, 1)
    spout = spout_of(topic)
    assert spout.bound(HOURS).coordinator().expired(looked_at(spout, SECOND)) == ()


def test_records_of_an_undecided_transaction_make_an_hour_incomplete(topic: Topic) -> None:
    topic.create(**FOREVER)
    send(topic, ("a", "00:10:00"))
    spout = spout_of(topic)
    now = HOURS.of(datetime.now(UTC)).key
    producer = topic.undecided([("k", "b")])
    with pytest.raises(IncompletePartitionError, match="is not decided"):
        looked_at(spout, now)
    assert values(spout, looked_at(spout, FIRST)) == ["a"]
    producer.commit_transaction(30)


def test_records_that_are_gone_when_they_are_read_are_a_changed_source(topic: Topic) -> None:
    topic.create(**FOREVER)
    send(topic, ("a", "00:10:00"), ("b", "00:20:00"))
    spout = spout_of(topic)
    metadata = looked_at(spout, FIRST)
    topic.truncate(0, 1)
    with pytest.raises(SourceChangedError):
        values(spout, metadata)


def test_what_a_bound_topic_cannot_mean_is_refused() -> None:
    def spout(**options: Any) -> KafkaSpout:
        return KafkaSpout("t", bootstrap_servers="nowhere:1", **options)

    with pytest.raises(PlanError, match='Name the time of the records: time="timestamp"'):
        bound("rows", spout(), HOURS)
    with pytest.raises(PlanError, match="opaque spout"):
        bound("rows", spout(time="timestamp", opaque=True), HOURS)
    with pytest.raises(PlanError, match="is not bound to partitions"):
        Topology("shop").new_stream("rows", spout(time="timestamp"))
    with pytest.raises(ConfigurationError, match="slack, and without time"):
        spout(slack="1h")
    with pytest.raises(ConfigurationError, match="time='changed_at'"):
        spout(time="changed_at")
    with pytest.raises(PlanError, match="slack is '1 hour'"):
        spout(time="timestamp", slack="1 hour")
