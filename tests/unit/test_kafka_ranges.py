"""What a batch of a Kafka spout is, without a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.kafka.consumer import KafkaCluster
from airflow_trident.spouts.kafka.ranges import (
    NO_ID,
    NOTHING,
    KafkaBatch,
    LogOffsets,
    LogPosition,
    OffsetRange,
    TopicPartition,
    batch_of,
    following,
    lags,
    limited,
    packs,
    pieces,
    resumed,
    unproved,
)
from airflow_trident.spouts.kafka.spout import KafkaSpout
from airflow_trident.spouts.kafka.topics import KafkaTopics
from airflow_trident.types import Json

backlogs = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5)),
    st.integers(1, 40).map(lambda size: OffsetRange(7, 7 + size)),
)


@given(backlogs, st.integers(1, 100), st.integers(0, 50))
def test_a_batch_has_exactly_as_many_offsets_as_it_may(
    available: dict[TopicPartition, OffsetRange], rows: int, turn: int
) -> None:
    chosen = limited(available, rows, turn)
    assert sum(each.size for each in chosen.values()) == min(rows, sum(each.size for each in available.values()))
    assert all(each.begin == 7 and each.end <= available[place].end for place, each in chosen.items())
    assert chosen.keys() == available.keys()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(0, 50), st.data())
def test_no_partition_waits_for_more_batches_than_there_are_partitions_however_fast_the_others_grow(
    growth: list[int], rows: int, turn: int, data: st.DataObject
) -> None:
    quiet = TopicPartition("a", data.draw(st.integers(0, len(growth))))
    growing = [TopicPartition("a", number) for number in range(len(growth) + 1) if number != quiet.partition]
    logs = {quiet: OffsetRange(0, 1)} | dict.fromkeys(growing, OffsetRange(0, 5))
    for batch in range(len(logs)):
        chosen = limited(logs, rows, turn + batch)
        if chosen[quiet].size:
            return
        logs = {
            place: OffsetRange(chosen[place].end, each.end + dict(zip(growing, growth, strict=True)).get(place, 0))
            for place, each in logs.items()
        }
    raise AssertionError(f"{quiet} got nothing in {len(logs)} batches")


@given(st.lists(st.integers(1, 400), max_size=300), st.integers(1, 200))
def test_many_small_pieces_are_read_together_and_none_is_left_out_or_too_large(sizes: list[int], most: int) -> None:
    cut = pieces({TopicPartition("a", at): OffsetRange(3, 3 + size) for at, size in enumerate(sizes)}.items(), most)
    groups = packs(cut, most)
    assert [piece for group in groups for piece in group] == cut
    assert all(sum(each.size for _, each in group) <= 2 * most for group in groups)
    assert all(len({place for place, _ in group}) == len(group) for group in groups), "a consumer has it once"
    assert len(groups) <= max(64, -(-sum(sizes) // most))
    if len(cut) <= 64:
        assert len(groups) == len(cut)


@given(backlogs, st.integers(1, 9))
def test_pieces_are_the_ranges(ranges: dict[TopicPartition, OffsetRange], split_rows: int) -> None:
    cut = pieces(ranges.items(), split_rows)
    assert [(place, at) for place, each in cut for at in range(each.begin, each.end)] == [
        (place, at) for place, each in ranges.items() for at in range(each.begin, each.end)
    ]
    assert all(0 < each.size <= split_rows for _, each in cut)


@given(backlogs, st.data())
def test_metadata_survives_json(ranges: dict[TopicPartition, OffsetRange], data: st.DataObject) -> None:
    gone = frozenset(place for place in sorted(ranges) if data.draw(st.booleans()))
    batch = KafkaBatch({"a": "A", "b": "B"}, ranges, gone=gone)
    again = batch_of(json.loads(json.dumps(batch.to_json())))
    assert (again.ranges, again.gone) == (ranges, gone)


BEFORE = KafkaBatch({"a": "A"}, {TopicPartition("a", 0): OffsetRange(3, 10)})


@pytest.mark.parametrize(
    ("logs", "begins", "lost"),
    [
        ({TopicPartition("a", 0): LogOffsets("A", 0, 50)}, [10], []),
        ({TopicPartition("a", 0): LogOffsets("A", 0, 50), TopicPartition("a", 1): LogOffsets("A", 0, 5)}, [10, 0], []),
        (
            {TopicPartition("a", 0): LogOffsets("A", 0, 50), TopicPartition("a", 1): LogOffsets("A", 2, 5)},
            [10, 2],
            ["a-1 from offset 0 to 1"],
        ),
        ({TopicPartition("a", 0): LogOffsets("A", 0, 50), TopicPartition("b", 0): LogOffsets("B", 2, 5)}, [10, 2], []),
        ({TopicPartition("a", 0): LogOffsets("A", 12, 50)}, [12], ["a-0 from offset 10 to 11"]),
        ({TopicPartition("a", 0): LogOffsets("A", 0, 6)}, [6], ["a-0 from offset 6 to 9"]),
        ({TopicPartition("a", 0): LogOffsets("OTHER", 0, 50)}, [0], ["a-0 from offset 10 on"]),
        ({TopicPartition("a", 0): LogOffsets(NO_ID, 0, 50)}, [10], []),
        ({}, [], ["a-0 from offset 10 on"]),
    ],
)
def test_where_a_partition_goes_on(logs: dict[TopicPartition, LogOffsets], begins: list[int], lost: list[str]) -> None:
    found, gone = resumed(BEFORE, logs, {})
    assert list(found.values()) == begins
    assert [str(loss).partition(":")[0] for loss in gone] == lost


# ---- what is gone ----------------------------------------------------------------------------------------------


class Answers(KafkaCluster):
    """A cluster without brokers. It counts the questions."""

    def __init__(self, logs: dict[TopicPartition, LogOffsets]) -> None:
        self.there, self.asked, self._timeout_s = logs, 0, 0.3

    def topics(self) -> dict[str, int]:
        return {place.topic: 0 for place in self.there}

    def logs(self, places: Sequence[TopicPartition], *, committed: bool) -> dict[TopicPartition, LogOffsets]:
        self.asked += 1
        return dict(self.there)

    def cuts(self, positions: Mapping[TopicPartition, LogPosition]) -> dict[TopicPartition, int]:
        assert not positions, "no log has a leader epoch"
        return {}

    def close(self) -> None:
        pass


def place(text: str) -> TopicPartition:
    topic, _, number = text.partition("-")
    return TopicPartition(topic, int(number))


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers({place("a-0"): LogOffsets("A", 0, 1000), place("a-1"): LogOffsets("A", 0, 1000)})
    monkeypatch.setattr(KafkaTopics, "open", lambda topics, timeout_s: made)
    return made


def next_of(spout: KafkaSpout, previous: Json) -> Any:
    """The next metadata, as the ledger gives them back."""
    return json.loads(json.dumps(spout.coordinator().initialize_transaction(2, previous)))


@pytest.mark.parametrize("opaque", [False, True])
def test_a_partition_of_a_topic_that_was_made_again_begins_anew_however_late_it_comes(
    answers: Answers, opaque: bool
) -> None:
    spout = KafkaSpout("a", bootstrap_servers="nowhere:1", opaque=opaque, on_data_loss="continue")
    first = next_of(spout, None)
    answers.there = {place("a-0"): LogOffsets("B", 0, 7)}
    answers.asked = 0
    second = next_of(spout, first)
    assert answers.asked == 1, "the new id tells that the other partition will not come"
    assert second["topics"] == {"a": {"id": "B", "partitions": {"0": [0, 7]}}}
    assert second["lost"] == [["a", number, 1000, -1, "the topic was deleted and made again"] for number in (0, 1)]
    answers.there[place("a-1")] = LogOffsets("B", 0, 5)
    third = next_of(spout, second)
    assert third["topics"]["a"]["partitions"] == {"0": [7, 7], "1": [0, 5]}
    assert "lost" not in third
    assert answers.asked == 2


def test_what_is_gone_is_recorded_as_lost_once_and_then_waited_for_no_more(answers: Answers) -> None:
    answers.there[place("b-0")] = LogOffsets("B", 0, 5)
    spout = KafkaSpout(pattern="[ab]", bootstrap_servers="nowhere:1", opaque=True)
    first = next_of(spout, None)
    del answers.there[place("b-0")]
    answers.asked = 0
    assert not spout.coordinator().is_ready(first)
    assert answers.asked > 1, "a broker that has just started may not know it yet"
    answers.there[place("a-0")] = LogOffsets("A", 0, 1001)
    second = next_of(spout, first)
    assert second["lost"] == [["b", 0, 5, -1, "the partition is gone"]]
    assert second["topics"]["b"] == {"id": "B", "partitions": {"0": [5, 5]}, "gone": [0]}
    answers.asked = 0
    coordinator = spout.coordinator()
    assert not coordinator.is_ready(second)
    assert coordinator.lag(second) == {"records": 0}
    answers.there[place("a-0")] = LogOffsets("A", 0, 1002)
    third = next_of(spout, second)
    assert answers.asked == 3
    assert "lost" not in third
    assert third["topics"]["b"] == second["topics"]["b"]
    answers.there[place("b-0")] = LogOffsets("B", 0, 9)
    back = next_of(spout, third)
    assert back["topics"]["b"] == {"id": "B", "partitions": {"0": [5, 9]}}
    answers.there[place("b-0")] = LogOffsets("C", 0, 9)
    assert next_of(spout, third)["topics"]["b"] == {"id": "C", "partitions": {"0": [0, 9]}}
    assert "lost" not in next_of(spout, third), "it is recorded already"


# ---- logs that were cut off -------------------------------------------------------------------------------------

LED = KafkaBatch({"a": "A"}, {TopicPartition("a", 0): OffsetRange(3, 10)}, epochs={TopicPartition("a", 0): 5})


@pytest.mark.parametrize(
    ("before", "log", "is_unproved", "is_behind"),
    [
        (LED, LogOffsets("A", 0, 50, 5), False, False),
        (LED, LogOffsets("A", 0, 50, 6), True, False),
        (LED, LogOffsets("A", 0, 8, 6), True, True),
        (LED, LogOffsets("A", 10, 50, 6), False, False),
        (LED, LogOffsets("A", 0, 50, 4), False, True),
        (LED, LogOffsets("A", 0, 50), False, False),
        (LED, LogOffsets("B", 0, 50, 6), False, False),
        (BEFORE, LogOffsets("A", 0, 50, 6), False, False),
    ],
)
def test_only_a_log_that_had_another_leader_since_may_have_been_cut_off(
    before: KafkaBatch, log: LogOffsets, is_unproved: bool, is_behind: bool
) -> None:
    logs = {place("a-0"): log}
    assert unproved(before, logs) == ({place("a-0"): LogPosition(10, 5)} if is_unproved else {})
    assert lags(before, logs) is is_behind


def test_a_log_that_was_cut_off_goes_on_with_its_first_new_record() -> None:
    for end in (8, 50):
        begins, lost = resumed(LED, {place("a-0"): LogOffsets("A", 0, end, 6)}, {place("a-0"): 7})
        assert begins == {place("a-0"): 7}
        assert [str(each) for each in lost] == ["a-0 from offset 7 to 9: the log was cut off there and grew again"]


def test_a_cluster_that_was_restored_is_found_by_an_epoch_that_fell() -> None:
    begins, lost = resumed(LED, {place("a-0"): LogOffsets("A", 0, 50, 4)}, {})
    assert begins == {place("a-0"): 10}
    assert [str(each) for each in lost] == [
        "a-0 from offset 10 on: its leader epoch fell from 5 to 4: the cluster was restored"
    ]


def test_the_epochs_of_what_is_not_there_now_stay_known() -> None:
    chosen = {place("b-0"): OffsetRange(0, 4)}
    after = following(LED, {place("b-0"): LogOffsets("B", 0, 4, 2)}, {place("b-0"): 0}, chosen, lambda topic: True)
    assert after.epochs == {place("a-0"): 5, place("b-0"): 2}


GONE = KafkaBatch(BEFORE.ids, BEFORE.ranges, gone=frozenset(BEFORE.ranges))


@pytest.mark.parametrize(
    ("before", "logs", "is_behind"),
    [
        (NOTHING, {}, False),
        (BEFORE, {}, True),
        (GONE, {}, False),
        (BEFORE, {"a-0": LogOffsets("A", 0, 9)}, True),
        (GONE, {"a-0": LogOffsets("A", 0, 9)}, True),
        (BEFORE, {"a-0": LogOffsets("A", 0, 10)}, False),
        (BEFORE, {"a-0": LogOffsets("B", 0, 1)}, False),
        (BEFORE, {"a-1": LogOffsets("A", 0, 1)}, True),
        (BEFORE, {"a-1": LogOffsets("B", 0, 1)}, False),
        (BEFORE, {"a-1": LogOffsets(NO_ID, 0, 1)}, True),
    ],
)
def test_what_is_waited_for(before: KafkaBatch, logs: dict[str, LogOffsets], is_behind: bool) -> None:
    assert lags(before, {place(one): log for one, log in logs.items()}) is is_behind


def test_what_a_spout_does_not_read_any_more_is_neither_gone_nor_forgotten() -> None:
    ranges = {place("a-0"): OffsetRange(1, 3), place("b-0"): OffsetRange(1, 3), place("c-0"): OffsetRange(1, 3)}
    before = KafkaBatch({"a": "A", "b": "B", "c": "C"}, ranges, gone=frozenset({place("b-0")}))
    logs = {place("c-0"): LogOffsets("C", 0, 9)}
    after = following(before, logs, {place("c-0"): 3}, {place("c-0"): OffsetRange(3, 9)}, lambda topic: topic == "c")
    assert after.ids == before.ids
    assert {str(one): (each.begin, each.end) for one, each in after.ranges.items()} == {
        "a-0": (3, 3),
        "b-0": (3, 3),
        "c-0": (3, 9),
    }
    assert after.gone == before.gone


def test_metadata_from_before_partitions_were_recorded_as_gone_and_from_later_versions_are_read() -> None:
    text = '{"topics":{"a":{"id":"A","partitions":{"0":[3,10]}%s}},"lost":[]}'
    assert batch_of(json.loads(text % "")) == BEFORE
    assert batch_of(json.loads(text % ',"gone":[0],"more":[1]')) == GONE


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "needs either topics or a pattern"),
        ({"topics": "t", "pattern": "t"}, "needs either topics or a pattern"),
        ({"pattern": "("}, "pattern='\\('"),
        ({"topics": "t", "bootstrap_servers": None}, "does not know its cluster"),
        ({"topics": "t", "max_rows": 0}, "max_rows=0"),
        ({"topics": "t", "max_bytes": 0}, "max_bytes=0"),
        ({"topics": "t", "first_poll": "newest"}, "Use one of earliest"),
        ({"topics": "t", "first_poll": "timestamp"}, "belong together"),
        ({"topics": "t", "fields": "value long"}, "no field 'value long'"),
        ({"topics": "t", "fields": "body string"}, "no field 'body string'"),
        ({"topics": "t", "first_poll": "uncommitted_latest"}, "which consumer group"),
        ({"topics": "t", "isolation": "none"}, "isolation='none'"),
        ({"topics": "t", "on_data_loss": "hide"}, "Use one of error, continue"),
    ],
)
def test_what_cannot_work_is_refused_when_the_spout_is_made(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        KafkaSpout(**{"bootstrap_servers": "localhost:9092", **arguments})  # type: ignore[arg-type]


@given(moment=st.datetimes(timezones=st.just(UTC)))
@example(moment=datetime(1969, 12, 31, 23, 59, 59, 999000, UTC))
@example(moment=datetime(2024, 1, 1, 0, 0, 0, 1000, UTC))
def test_a_start_time_is_the_first_millisecond_that_is_not_before_it(moment: datetime) -> None:
    """To a broker -1 and -2 are the ends of the log, and a number of seconds has no exact thousandths."""
    options: Any = {"first_poll": "timestamp", "start_time": moment, "bootstrap_servers": "localhost:9092"}
    start_ms = KafkaSpout("t", **options).coordinator().options.start_ms
    assert start_ms is not None
    assert start_ms >= 0
    began = datetime(1970, 1, 1, tzinfo=UTC)
    if moment > began and moment.year < 9999:
        assert timedelta(0) <= began + timedelta(milliseconds=start_ms) - moment < timedelta(milliseconds=1)
    else:
        assert moment.year == 9999 or start_ms == 0


def test_a_connection_gives_its_extras_as_settings_and_keeps_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "k:9092", "sasl.password": "hunter22"}
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", json.dumps({"conn_type": "kafka", "extra": extra}))
    spout = KafkaSpout("t", conn_id="my_kafka", config={"client.id": "x"})
    emitter = spout.emitter()
    assert emitter.source.settings == {**extra, "client.id": "x"}
    assert "hunter22" not in repr(emitter) + repr(spout.coordinator()) + spout.describe()


@pytest.mark.parametrize(
    ("extra", "text"),
    [({}, "does not say bootstrap.servers"), ({"bootstrap.servers": "k", "oauth_cb": "a.b"}, "names a function")],
)
def test_a_connection_of_no_use_is_refused(monkeypatch: pytest.MonkeyPatch, extra: object, text: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", json.dumps({"conn_type": "kafka", "extra": extra}))
    with pytest.raises(ConfigurationError, match=text):
        KafkaSpout("t", conn_id="my_kafka").emitter()
