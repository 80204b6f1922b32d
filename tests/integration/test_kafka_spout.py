"""Kafka spouts over all that happens to topics: they appear, grow, expire, are compacted, cut off, made again."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
    TridentError,
)
from airflow_trident.spouts.kafka.consumer import KafkaCluster
from airflow_trident.spouts.kafka.ranges import LogPosition
from airflow_trident.spouts.kafka.ranges import TopicPartition as KafkaPartition
from airflow_trident.spouts.kafka.spout import KafkaSpout
from airflow_trident.testing.suites import batch_rows
from airflow_trident.types import Json
from tests.faults.proxy import FaultProxy, Frame, Verdict
from tests.fixtures.kafka import KafkaBroker, Topic
from tests.fixtures.spark import free_port

pytestmark = pytest.mark.kafka


def spout_of(topic: Topic, **options: Any) -> KafkaSpout:
    options = {"fields": "value string", "timeout_s": 5.0, **options}
    if "pattern" not in options:
        options["topics"] = topic.name
    return KafkaSpout(bootstrap_servers=topic.broker.hosts, **options)


def begin(spout: KafkaSpout, previous: Json = None, txid: int = 1) -> Any:
    return spout.coordinator().initialize_transaction(txid, previous)


def values(spout: KafkaSpout, metadata: Json) -> list[str]:
    return sorted(row[0] for row in batch_rows(spout, metadata))


def ranges(metadata: Any, topic: Topic) -> dict[str, list[int]]:
    return metadata["topics"][topic.name]["partitions"]


# ---- what a record is ------------------------------------------------------------------------------------------


def test_all_fields_of_a_record_are_there(topic: Topic) -> None:
    topic.create(2)
    topic.send(
        [(b"\xff", None), (None, b"")], partition=1, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", b"2")]
    )
    spout = spout_of(
        topic,
        fields="offset long, key binary, value string, topic string, partition int, timestamp timestamp, "
        "header_keys array<string>, header_values array<binary>",
    )
    when = datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC)
    same = (topic.name, 1, when, ["a", "a"], [b"1", b"2"])
    assert batch_rows(spout, begin(spout)) == [(0, b"\xff", None, *same), (1, None, "", *same)]


def test_bytes_that_are_no_text_are_an_error_that_names_the_record(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "good"), (None, b"\xff\xfe"), (None, "good")])
    spout = spout_of(topic)
    with pytest.raises(DamagedInputError, match=f"value of the record at offset 1 of {topic.name}-0.*value binary"):
        batch_rows(spout, begin(spout))


# ---- where the first transaction begins ------------------------------------------------------------------------


def test_latest_pins_the_place_with_an_empty_transaction_so_that_nothing_is_left_out_after_it(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "old")])
    spout = spout_of(topic, first_poll="latest")
    first = begin(spout)
    assert values(spout, first) == []
    assert begin(spout, first) is None
    topic.send([(None, "new")])
    assert values(spout, begin(spout, first)) == ["new"]


def test_a_time_means_its_first_record_or_the_end(topic: Topic) -> None:
    topic.create(2)
    for at, value in ((1_000, "a"), (2_000, "b"), (3_000, "c")):
        topic.send([(None, value)], timestamp=at)
    topic.send([(None, "z")], partition=1, timestamp=500)
    spout = spout_of(topic, first_poll="timestamp", start_time=datetime.fromtimestamp(2, UTC))
    first = begin(spout)
    assert values(spout, first) == ["b", "c"]
    topic.send([(None, "y")], partition=1, timestamp=500)
    assert values(spout, begin(spout, first)) == ["y"]


def test_uncommitted_begins_at_what_the_consumer_group_committed(topic: Topic) -> None:
    topic.create(2)
    for partition in (0, 1):
        topic.send([(None, f"{partition}{number}") for number in range(3)], partition=partition)
    group = uuid.uuid4().hex
    consumer = Consumer({"bootstrap.servers": topic.broker.hosts, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic.name, 0, 2)], asynchronous=False)
    consumer.close()
    config = {"group.id": group}
    earliest = spout_of(topic, config=config, first_poll="uncommitted_earliest")
    assert values(earliest, begin(earliest)) == ["02", "10", "11", "12"]
    latest = spout_of(topic, config=config, first_poll="uncommitted_latest")
    assert values(latest, begin(latest)) == ["02"]
    consumer = Consumer({"bootstrap.servers": topic.broker.hosts, **config})
    consumer.commit(offsets=[TopicPartition(topic.name, 1, 9)], asynchronous=False)
    consumer.close()
    with pytest.raises(SourceChangedError, match=rf"committed offset 9 of {topic.name}-1, whose log ends at 3"):
        begin(earliest)
    going_on = spout_of(topic, config=config, first_poll="uncommitted_earliest", on_data_loss="continue")
    assert values(going_on, begin(going_on)) == ["02", "10", "11", "12"]


def test_a_topic_that_is_named_may_be_called_like_those_of_the_cluster(topic: Topic) -> None:
    named = Topic(topic.broker, f"__{topic.name}").create()
    named.send([(None, "a")])
    spout = spout_of(named)
    assert values(spout, begin(spout)) == ["a"]
    assert begin(spout_of(topic, pattern=f".*{topic.name}")) is None


def test_records_that_a_disk_has_changed_are_damaged(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "the right value")])
    spout = spout_of(topic)
    first = begin(spout)
    path = topic.broker.folder / "data" / f"{topic.name}-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes().replace(b"right", b"wrong"))
    with pytest.raises(DamagedInputError, match="records are damaged"):
        values(spout, first)


# ---- topics that appear and grow -------------------------------------------------------------------------------


def test_topics_and_partitions_that_appear_are_read_from_their_first_record(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "one")])
    other = Topic(topic.broker, f"{topic.name}-more")
    spout = spout_of(topic, pattern=f"{topic.name}.*", first_poll="latest")
    first = begin(spout)
    assert begin(spout, first) is None
    topic.grow(2)
    topic.send([(None, "two")], partition=1)
    other.create()
    other.send([(None, "three")])
    assert values(spout, begin(spout, first)) == ["three", "two"]


def test_a_named_topic_that_was_never_there_is_an_error_to_retry(topic: Topic) -> None:
    with pytest.raises(SourceUnavailableError, match=f"there is no topic '{topic.name}'.*correct its name"):
        begin(spout_of(topic))


# ---- back-pressure ---------------------------------------------------------------------------------------------


def test_max_rows_takes_small_backlogs_whole_and_lets_nobody_starve(topic: Topic) -> None:
    topic.create(3)
    for partition, count in enumerate((2, 50, 50)):
        topic.send([(None, "x")] * count, partition=partition)
    spout = spout_of(topic, max_rows=10)
    first = begin(spout)
    assert ranges(first, topic) == {"0": [0, 2], "1": [0, 4], "2": [0, 4]}
    one_each = spout_of(topic, max_rows=1)
    taken, previous = set(), first
    for txid in (2, 3, 4):
        previous = begin(one_each, previous, txid)
        taken |= {number for number, (at, end) in ranges(previous, topic).items() if end > at}
    assert taken == {"1", "2"}


def test_max_bytes_is_judged_by_a_sample(topic: Topic) -> None:
    topic.create(2)
    for partition in (0, 1):
        topic.send([(None, "x" * 1000)] * 200, partition=partition)
    spout = spout_of(topic, max_bytes=50_000)
    assert 40 <= len(values(spout, begin(spout))) <= 60


def test_an_undecided_transaction_of_a_producer_is_waited_for_and_an_aborted_one_is_not_read(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "before")])
    topic.transaction([(None, "aborted")] * 3, commit=False)
    spout = spout_of(topic)
    assert values(spout, begin(spout)) == ["before"]
    everything = spout_of(topic, isolation="read_uncommitted")
    assert values(everything, begin(everything)) == ["aborted", "aborted", "aborted", "before"]


def test_what_a_hanging_producer_holds_up_counts_as_lag(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "before")])
    coordinator = spout_of(topic).coordinator()
    first = coordinator.initialize_transaction(1, None)
    assert coordinator.lag(first) == {"records": 0}
    producer = topic.undecided([(None, "undecided")] * 3)
    topic.send([(None, "behind it")])
    assert coordinator.initialize_transaction(2, first) is None
    assert coordinator.lag(first) == {"records": 4}
    producer.abort_transaction(30)


def test_many_small_partitions_are_read_by_few_splits_with_one_client_each(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create(150)
    for partition in range(0, 150, 2):
        topic.send([(None, f"{partition:03} {number}") for number in range(3)], partition=partition)
    for partition in (0, 2):
        topic.transaction([(None, f"{partition:03} 3")], partition=partition, commit=True)
    spout = spout_of(topic)
    metadata = begin(spout)
    splits = spout.emitter().splits(metadata)
    assert len(splits) <= 64
    opened: list[str] = []
    for name in ("__init__", "consumer"):
        monkeypatch.setattr(KafkaCluster, name, counted(getattr(KafkaCluster, name), opened))
    rows = [[str(row) for batch in spout.emitter().read(split) for row in batch[0].to_pylist()] for split in splits]
    assert len(opened) == 2 * len(splits)
    assert [row for part in rows for row in part] == [
        f"{partition:03} {number}" for partition in range(0, 150, 2) for number in range(4 if partition < 4 else 3)
    ]


def counted(method: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    def called(*arguments: Any, **options: Any) -> Any:
        calls.append(method.__name__)
        return method(*arguments, **options)

    return called


def test_a_producer_that_sends_micro_or_nanoseconds_is_named_by_its_record(topic: Topic) -> None:
    topic.create(message_timestamp_after_max_ms=str(2**63 - 1))
    for unit in (10**3, 10**6, 10**9):
        topic.send([(None, str(unit))], timestamp=1_700_000_000 * unit)
    spout = spout_of(topic, fields="value string, timestamp timestamp", max_rows=1)
    first = begin(spout)
    assert len(batch_rows(spout, first)) == 1
    second = begin(spout, first)
    for offset, metadata in ((1, second), (2, begin(spout, second))):
        with pytest.raises(DamagedInputError, match=f"at offset {offset} of {topic.name}-0 is 17000.* milliseconds"):
            batch_rows(spout, metadata)
        assert len(values(spout_of(topic), metadata)) == 1


# ---- what is lost ----------------------------------------------------------------------------------------------


def test_records_that_expire_before_they_are_read_are_an_error_with_partition_and_offsets(topic: Topic) -> None:
    topic.create()
    topic.send([(None, str(number)) for number in range(5)])
    spout = spout_of(topic, max_rows=2)
    first = begin(spout)
    topic.truncate(0, 4)
    lost = f"{topic.name}-0 from offset 2 to 3: expired before it was read"
    with pytest.raises(SourceChangedError, match=lost):
        begin(spout, first)
    with pytest.raises(SourceChangedError, match=f"{topic.name}-0 no longer has the offsets 0 to 1"):
        batch_rows(spout, first)
    going_on = begin(spout_of(topic, on_data_loss="continue"), first)
    assert going_on["lost"] == [[topic.name, 0, 2, 4, "expired before it was read"]]
    assert values(spout, going_on) == ["4"]


def test_an_opaque_spout_goes_on_and_says_what_is_lost(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.create()
    topic.send([(None, str(number)) for number in range(6)])
    spout = spout_of(topic, opaque=True)
    first = begin(spout)
    topic.truncate(0, 4)
    assert values(spout, first) == ["4", "5"]
    assert f"{topic.name}-0 no longer has the offsets 0 to 3" in caplog.text
    again = begin(spout_of(topic, opaque=True, max_rows=1))
    assert ranges(again, topic) == {"0": [4, 5]}


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(topic: Topic) -> None:
    topic.create()
    topic.send([(None, f"old {number}") for number in range(3)])
    strict, opaque = spout_of(topic), spout_of(topic, opaque=True)
    first = begin(strict)
    topic.delete()
    topic.create()
    topic.send([(None, f"new {number}") for number in range(9)])
    with pytest.raises(SourceChangedError, match="deleted and made again"):
        begin(strict, first)
    with pytest.raises(SourceChangedError, match="deleted and made again"):
        batch_rows(strict, first)
    with pytest.raises(SourceUnavailableError, match=r"deleted and made again.* A new attempt takes what is there"):
        batch_rows(opaque, first)
    assert values(opaque, begin(opaque)) == [f"new {number}" for number in range(9)], "as that attempt decides anew"
    second = begin(opaque, first)
    assert values(opaque, second) == [f"new {number}" for number in range(9)]
    assert second["lost"] == [[topic.name, 0, 3, -1, "the topic was deleted and made again"]]


def test_a_topic_that_was_made_again_with_fewer_partitions_is_read_whole_when_it_grows(topic: Topic) -> None:
    topic.create(2)
    for partition in (0, 1):
        topic.send([(None, "old")] * 3, partition=partition)
    spout = spout_of(topic, opaque=True)
    first = begin(spout)
    topic.delete()
    topic.create(1)
    topic.send([(None, "new 0")])
    second = begin(spout, first)
    assert ranges(second, topic) == {"0": [0, 1]}
    assert [(partition, at) for _, partition, at, _, _ in second["lost"]] == [(0, 3), (1, 3)]
    topic.grow(2)
    topic.send([(None, f"new {number}") for number in range(1, 9)], partition=1)
    third = begin(spout, second)
    assert values(spout, third) == [f"new {number}" for number in range(1, 9)]
    assert "lost" not in third


def test_a_topic_that_is_gone_keeps_its_place(topic: Topic) -> None:
    topic.create()
    topic.send([(None, "a")])
    other = Topic(topic.broker, f"{topic.name}-other").create()
    options: dict[str, Any] = {"pattern": f"{topic.name}.*", "timeout_s": 1.0}
    strict, opaque = spout_of(topic, **options), spout_of(topic, opaque=True, **options)
    first = begin(strict)
    topic.delete()
    other.send([(None, "b")])
    with pytest.raises(SourceChangedError, match=f"{topic.name}-0 from offset 1 on: the partition is gone"):
        begin(strict, first)
    second = begin(opaque, first)
    assert values(opaque, second) == ["b"]
    assert second["topics"][topic.name]["gone"] == [0]
    other.send([(None, "c")])
    third = begin(opaque, second)
    assert values(opaque, third) == ["c"]
    assert "lost" not in third, "it is lost once"
    assert ranges(third, topic) == {"0": [1, 1]}


def test_a_compacted_topic_needs_the_opaque_spout(topic: Topic) -> None:
    topic.create(segment_ms="100", min_cleanable_dirty_ratio="0.01", min_compaction_lag_ms="0")
    for number in range(20):
        topic.send([("k", f"old {number}")])
    strict, opaque = spout_of(topic), spout_of(topic, opaque=True)
    first = begin(strict)
    assert len(values(strict, first)) == 20
    topic.set("cleanup.policy", "compact")
    until = time.monotonic() + 60
    while len(values(opaque, first)) == 20:
        assert time.monotonic() < until
        topic.send([("k", "newer")])  # rolls the segment
    with pytest.raises(SourceChangedError, match=r"compacted, so nobody can tell.*use KafkaSpout\(opaque=True\)"):
        batch_rows(strict, first)


# ---- the cluster -----------------------------------------------------------------------------------------------


def test_a_cluster_that_does_not_answer_is_an_error_to_retry() -> None:
    spout = KafkaSpout("t", bootstrap_servers="127.0.0.1:1", timeout_s=1.0)
    with pytest.raises(SourceUnavailableError, match=r"KafkaSpout\(t\) does not answer"):
        begin(spout)


class Cut:
    """Cuts the connection instead of passing on one request for records."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Frame) -> Verdict:
        if frame.answer or frame.body[:2] != b"\x00\x01":
            return Verdict.PASS
        self.left -= 1
        return Verdict.PASS if self.left else Verdict.CUT


@dataclass(frozen=True)
class OwnBroker:
    """A broker that tests may kill, and the proxy in front of it."""

    broker: KafkaBroker
    proxy: FaultProxy


@pytest.fixture(scope="module")
def own(kafka: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnBroker]:
    """Runs when a test begins."""
    inner = free_port()
    proxy = FaultProxy(f"127.0.0.1:{inner}")
    broker = KafkaBroker(tmp_path_factory.mktemp("own"), int(proxy.hosts.rpartition(":")[2]), inner=inner)
    broker.start()
    yield OwnBroker(broker, proxy)
    broker.kill()
    proxy.close()


def test_cut_connections_and_a_broker_that_is_killed_and_started_again_lose_nothing(own: OwnBroker) -> None:
    topic = Topic(own.broker, "t").create()
    for _ in range(10):  # each a batch of its own, larger than one answer may be
        topic.send([(None, "x" * 50)] * 100)
    small = {"fetch.message.max.bytes": 2000, "fetch.max.bytes": 2000, "message.max.bytes": 2000}
    cut = KafkaSpout("t", bootstrap_servers=own.proxy.hosts, fields="value string", config=small)
    metadata = begin(cut)
    own.proxy.rule = Cut(3)
    assert len(values(cut, metadata)) == 1000
    assert own.proxy.cuts == 1
    spout = spout_of(topic, timeout_s=2.0)
    reading = spout.emitter().read(spout.emitter().splits(metadata)[0])
    own.broker.kill()
    with pytest.raises(SourceUnavailableError):
        list(reading)
    with pytest.raises(SourceUnavailableError):
        begin(spout, metadata)
    own.broker.start()
    assert len(values(spout, metadata)) == 1000
    topic.send([(None, "more")])
    assert values(spout, begin(spout, metadata)) == ["more"]


def test_a_log_that_was_cut_off_and_grew_again_is_found_and_no_new_record_is_left_out(own: OwnBroker) -> None:
    """As after the election of a leader that was behind, or a power cut of the only one (KIP-320)."""
    grown, shorter = (Topic(own.broker, name).create(2) for name in ("grown", "shorter"))
    for topic in (grown, shorter):
        for number in range(6):
            topic.send([(None, f"old {number}")])
        topic.send([(None, "kept")], partition=1)
    strict, continuing = spout_of(grown), spout_of(grown, on_data_loss="continue")
    opaque = spout_of(shorter, opaque=True)
    first, first_shorter = begin(strict), begin(opaque)
    own.broker.kill()
    for topic in (grown, shorter):
        own.broker.cut(topic.name, 0, 3)
    own.broker.start()
    for topic, count in ((grown, 5), (shorter, 2)):
        for number in range(count):
            topic.send([(None, f"new {number}")])
    cut_off = r"grown-0 from offset 3 to 5: the log was cut off there and grew again"
    with pytest.raises(SourceChangedError, match=cut_off):
        begin(strict, first)
    with pytest.raises(SourceChangedError, match=r"grown-0 no longer has the offsets 3 to 5.*cut off"):
        batch_rows(strict, first)
    with pytest.raises(SourceUnavailableError, match=r"offsets 3 to 5.*cut off.* A new attempt takes what is there"):
        batch_rows(opaque, first_shorter)
    accepted = strict.coordinator().accept_source(first)
    assert values(strict, accepted) == ["kept", "new 0", "new 1", "new 2", "old 0", "old 1", "old 2"]
    assert values(strict, begin(strict, accepted)) == ["new 3", "new 4"]
    for spout, before, topic, news in ((continuing, first, grown, 5), (opaque, first_shorter, shorter, 2)):
        second = begin(spout, before)
        assert second["lost"] == [[topic.name, 0, 3, 6, "the log was cut off there and grew again"]]
        assert values(spout, second) == [f"new {number}" for number in range(news)]
        assert begin(spout, second) is None, "it is found once"


class Failing:
    """A client of the driver, whose call with a number fails; counts the calls of all."""

    calls = fails_at = 0
    error: KafkaError

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)

        def called(*arguments: Any, **options: Any) -> Any:
            Failing.calls += 1
            if Failing.calls == Failing.fails_at:
                raise KafkaException(Failing.error)
            return found(*arguments, **options)

        return called


def test_an_error_of_the_driver_is_one_of_this_package_whichever_call_it_comes_from(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create()
    topic.send([(None, "a")] * 3)
    topic.transaction([(None, "b")], commit=True)
    group = {"group.id": "tests"}
    spout = spout_of(topic, config=group, max_bytes=10_000, first_poll="uncommitted_earliest", timeout_s=1.0)
    place = KafkaPartition(topic.name, 0)

    def all_calls() -> None:
        metadata = begin(spout)
        batch_rows(spout, metadata)
        spout.coordinator().lag(metadata)
        spout.coordinator().accept_source(metadata)
        with KafkaCluster({"bootstrap.servers": topic.broker.hosts}, "K", 1.0) as cluster:
            cluster.offsets_of_time([place], 0)
            cluster.is_compacted(topic.name)
            assert cluster.cuts({place: LogPosition(3, 0)}) == {}

    consumer, admin = confluent_kafka.Consumer, confluent_kafka.admin.AdminClient
    # The driver's classes are asked for by name when they are needed; no class of theirs can be replaced in place.
    monkeypatch.setattr(
        "airflow_trident.spouts.kafka.consumer.require_extra",
        lambda name, extra: FailingModule(
            __import__(name, fromlist=["_"]), {"Consumer": consumer, "AdminClient": admin}
        ),
    )
    Failing.calls = Failing.fails_at = 0
    all_calls()
    total, passed = Failing.calls, []
    codes = (KafkaError._TRANSPORT, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    for number in range(1, total + 1):
        Failing.error, Failing.calls, Failing.fails_at = KafkaError(codes[number % 3]), 0, number
        with suppress(TridentError):
            all_calls()
            passed.append(number)
    assert len(passed) < total / 2, "only what closes a consumer is ignored"


@dataclass(frozen=True)
class FailingModule:
    """A module of the driver whose clients are :class:`Failing`."""

    module: Any
    clients: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.module, name)
        return (lambda *arguments: Failing(found(*arguments))) if name in self.clients else found


def test_a_broker_that_stops_in_the_middle_is_an_error_and_goes_on_later(topic: Topic) -> None:
    topic.create()
    topic.send([(None, str(number)) for number in range(5)])
    spout = spout_of(topic, timeout_s=1.0)
    metadata = begin(spout)
    reading = spout.emitter().read(spout.emitter().splits(metadata)[0])
    with topic.broker.stopped():
        for ask in (lambda: list(reading), lambda: begin(spout, metadata), lambda: values(spout, metadata)):
            with pytest.raises(SourceUnavailableError):
                ask()
    assert values(spout_of(topic), metadata) == [str(number) for number in range(5)]


def test_settings_that_the_driver_does_not_know_are_an_error_to_correct() -> None:
    spout = KafkaSpout("t", bootstrap_servers="127.0.0.1:1", config={"no.such.setting": "1"})
    with pytest.raises(ConfigurationError, match=r"no\.such\.setting"):
        begin(spout)
