"""What spouts wrote as metadata of transactions is read for ever; what another spout wrote is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from airflow_trident.errors import SourceChangedError
from airflow_trident.spouts.kafka.ranges import KafkaBatch, OffsetRange, TopicPartition, batch_of
from airflow_trident.spouts.memory import _numbers
from airflow_trident.spouts.metadata import NumberRange, as_json, read_back
from airflow_trident.spouts.redis import _Part, _part
from airflow_trident.spouts.spool.spout import SpooledBatch, _batch

SPOOL = '{"batch":7,"rows":3,"sha256":"c0ffee"}'
STREAM = '{"after":"0-0","to":"1700000000000-5","rows":4,"added":9,"lost":1}'
KAFKA = '{"topics":{"clicks":{"id":"x-_A","partitions":{"0":[3,8],"10":[0,0]}}},"lost":[["clicks",0,1,3,"expired"]]}'
RANGE = '{"from":4,"to":9}'

READ: dict[str, tuple[str, Callable[[Any], object], object]] = {
    "spool": (SPOOL, _batch, SpooledBatch(7, 3, "c0ffee")),
    "redis stream": (STREAM, _part, _Part(begin="0-0", to="1700000000000-5", rows=4, added=9, lost=1)),
    "kafka": (
        KAFKA,
        batch_of,
        KafkaBatch(
            {"clicks": "x-_A"},
            {TopicPartition("clicks", 0): OffsetRange(3, 8), TopicPartition("clicks", 10): OffsetRange(0, 0)},
        ),
    ),
    "fixed": (RANGE, partial(_numbers, spout="a FixedBatchSpout"), (4, 9)),
}


@pytest.mark.parametrize("name", READ)
def test_what_was_recorded_is_read(name: str) -> None:
    text, read, meant = READ[name]
    assert read(json.loads(text)) == meant


@pytest.mark.parametrize(
    ("text", "read"),
    [(SPOOL, _batch), (STREAM, _part), (RANGE, lambda one: read_back(NumberRange, one, "a RedisSpout"))],
)
def test_what_is_written_has_not_changed_by_a_byte(text: str, read: Callable[[Any], Any]) -> None:
    assert json.dumps(as_json(read(json.loads(text))), separators=(",", ":")) == text


FOREIGN = (
    "7",
    "[]",
    "{}",
    '{"files":[]}',
    '{"batch":0,"rows":3,"sha256":"c0ffee"}',
    '{"batch":true,"rows":3,"sha256":"c0ffee"}',
    '{"batch":7,"rows":3,"sha256":"c0ffee","more":1}',
    '{"after":"0-0","to":"1-5","rows":"4","added":9,"lost":1}',
    '{"after":"0-0","to":"1-5","rows":4,"added":9,"lost":1,"more":1}',
    '{"topics":{"clicks":{"id":"x","partitions":{"one":[3,8]}}}}',
    '{"topics":{"clicks":{"id":"x","partitions":{"1":[3]}}}}',
    '{"topics":{"clicks":{"partitions":{"1":[3,8]}}}}',
    '{"from":9,"to":4}',
    '{"from":"a","to":4}',
)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("text", FOREIGN)
def test_what_another_spout_wrote_is_refused_with_what_to_do(name: str, text: str) -> None:
    _, read, _ = READ[name]
    with pytest.raises(SourceChangedError, match=r"is not that of a .*stream a new name"):
        read(json.loads(text))
