"""What a batch of a Kafka spout is, without a broker."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.kafka.ranges import (
    NO_ID,
    KafkaBatch,
    LogOffsets,
    OffsetRange,
    TopicPartition,
    batch_of,
    limited,
    pieces,
    resumed,
)
from airflow_trident.spouts.kafka.spout import KafkaSpout

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


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_everything_is_read_at_last_however_little_a_batch_takes(sizes: list[int]) -> None:
    left = {TopicPartition("a", number): OffsetRange(0, size) for number, size in enumerate(sizes)}
    for turn in range(sum(sizes)):
        assert left
        chosen = limited(left, 1, turn)
        left = {
            place: OffsetRange(chosen[place].end, each.end)
            for place, each in left.items()
            if chosen[place].end < each.end
        }
    assert not left


@given(backlogs, st.integers(1, 9))
def test_pieces_are_the_ranges(ranges: dict[TopicPartition, OffsetRange], split_rows: int) -> None:
    cut = pieces(ranges.items(), split_rows)
    assert [(place, at) for place, each in cut for at in range(each.begin, each.end)] == [
        (place, at) for place, each in ranges.items() for at in range(each.begin, each.end)
    ]
    assert all(0 < each.size <= split_rows for _, each in cut)


@given(backlogs)
def test_metadata_survives_json(ranges: dict[TopicPartition, OffsetRange]) -> None:
    batch = KafkaBatch({"a": "A", "b": "B"}, ranges)
    assert batch_of(json.loads(json.dumps(batch.to_json()))).ranges == ranges


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
    found, gone = resumed(BEFORE, logs)
    assert list(found.values()) == begins
    assert [str(loss).partition(":")[0] for loss in gone] == lost


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
        ({"topics": "t", "isolation": "none"}, "isolation='none'"),
        ({"topics": "t", "on_data_loss": "hide"}, "Use one of error, continue"),
    ],
)
def test_what_cannot_work_is_refused_when_the_spout_is_made(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        KafkaSpout(**{"bootstrap_servers": "localhost:9092", **arguments})  # type: ignore[arg-type]


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
