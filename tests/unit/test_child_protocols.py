"""What bolts in other programs hear, message by message, and when."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from airflow_trident.errors import ChildError
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.storm.components.protocol import reader_of
from airflow_trident.types import parse_declared
from tests.fixtures.child import emits, lines, module, needs_node, program, seed, shell, values


def test_a_metric_of_a_component_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    emits(shell("Metric"), lines(3, now=1))
    assert "metric 'words': {'n': 3}" in caplog.text


@pytest.mark.parametrize(
    ("bolt", "heard"),
    [
        pytest.param(
            lambda: shell("Hears", max_pending=1),
            [
                '{"id":"0","comp":"input","stream":"default","task":2,"tuple":["snow"]}',
                "[1]",
                '{"id":"1","comp":"input","stream":"default","task":2,"tuple":["white"]}',
                "[1]",
            ],
            id="multilang",
        ),
        pytest.param(
            lambda: seed("hears", init={"a": 1}),
            [
                '{"cmd":"init","data":{"a":1}}',
                '{"cmd":"data","data":{"line":"snow"}}',
                '{"cmd":"data","data":{"line":"white"}}',
                '{"cmd":"heartbeat"}',
                '{"cmd":"shutdown"}',
            ],
            id="seed",
            marks=needs_node,
        ),
        pytest.param(
            lambda: program("hears", init={"a": 1}),
            [
                '{"cmd":"init","data":{"a":1,"name":"each-1"}}',
                '{"cmd":"data","data":{"data":{"line":"snow"},"stream_id":null,"ack_id":0}}',
                '{"cmd":"ack","data":{"id":1}}',
                '{"cmd":"data","data":{"data":{"line":"white"},"stream_id":null,"ack_id":1}}',
                '{"cmd":"ack","data":{"id":2}}',
                '{"cmd":"heartbeat"}',
                '{"cmd":"shutdown"}',
            ],
            id="0.7",
            marks=needs_node,
        ),
        pytest.param(
            lambda: module("hears"),
            [
                '["init","each-1",{"mode":"hears"}]',
                '["receive",{"line":"snow"},null]',
                '["emitted","snow"]',
                '["receive",{"line":"white"},null]',
                '["emitted","white"]',
                '["heartbeat"]',
                '["shutdown"]',
            ],
            id="module",
            marks=needs_node,
        ),
    ],
)
def test_what_a_component_hears_is_what_its_protocol_says(
    bolt: Callable[[], ChildBolt], heard: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = bolt()
    assert values(emits(made, [("snow",), ("white",)], matched=made.matches)) == ["snow", "white"]
    told = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert [line for line in told if line.startswith(("{", "[")) and "__heartbeat" not in line] == heard


@pytest.mark.parametrize(
    "bolt",
    [
        pytest.param(lambda: shell("Late"), id="multilang"),
        pytest.param(lambda: seed("late", heartbeat_s=0.01), id="seed", marks=needs_node),
        pytest.param(lambda: program("late", heartbeat_s=0.01), id="0.7", marks=needs_node),
        pytest.param(lambda: module("late", heartbeat_s=0.01), id="module", marks=needs_node),
    ],
)
def test_nothing_but_init_comes_before_it_has_begun(bolt: Callable[[], ChildBolt]) -> None:
    """Each takes its time to begin, and ends if it hears anything meanwhile."""
    made = bolt()
    assert values(emits(made, [("snow",), ("white",)], matched=made.matches)) == ["snow", "white"]


@pytest.mark.parametrize(
    "bolt",
    [
        pytest.param(lambda: shell(silence_s=0.4, max_pending=1), id="multilang"),
        pytest.param(lambda: program(tuple_timeout_s=0.4), id="0.7", marks=needs_node),
        pytest.param(lambda: module(tuple_timeout_s=0.4, max_pending=1), id="module", marks=needs_node),
    ],
)
def test_a_child_that_waits_for_rows_is_not_silent(bolt: Callable[[], ChildBolt]) -> None:
    """The clock runs while the child is waited for, not while its rows are made."""

    def slow() -> Iterator[tuple[str]]:
        yield ("a",)
        threading.Event().wait(0.5)
        yield ("b",)

    assert values(emits(bolt(), slow())) == ["a", "b"]


def test_task_ids_come_before_they_are_asked_for_if_that_is_wanted() -> None:
    """The component ends if it has none: two for each line, for one line at a time."""
    rows = [("a b",)] * 20
    assert values(emits(shell("IdsAhead", task_ids_ahead=2, max_pending=1), rows)) == ["a", "b"] * 20
    with pytest.raises(ChildError, match="none had come"):
        emits(shell("IdsAhead", task_ids_ahead=1, max_pending=1), rows)


# ---- values of JSON -------------------------------------------------------------------------------------------------


DAY = datetime.date(2022, 2, 2)


@pytest.mark.parametrize(
    ("type_text", "given", "read"),
    [
        ("struct<at:date,n:long>", {"at": "2022-02-02", "n": None}, {"at": DAY, "n": None}),
        ("struct<at:date,n:long>", {"at": None, "n": 7}, {"at": None, "n": 7}),
        ("struct<runtime:string,n:long>", {"runtime": "x", "n": None}, {"runtime": "x", "n": None}),
        ("array<struct<at:date,n:int>>", [{"at": None, "n": None}, None], [{"at": None, "n": None}, None]),
        ("map<long,long>", {"7": None, "8": 9}, {7: None, 8: 9}),
        ("map<long,string>", {"7": None}, {7: None}),
        ("map<string,long>", {"7": None}, {"7": None}),
        ("map<date,long>", {"2022-02-02": None}, {DAY: None}),
        ("date", None, None),
    ],
)
def test_nulls_are_values_at_every_depth(type_text: str, given: Any, read: Any) -> None:
    reader = reader_of(parse_declared(f"i {type_text}"))
    assert reader([given]) == (read,)
    assert reader({"i": given}) == (read,)


@pytest.mark.parametrize("given", [{"at": "2022-02-02", "n": "7"}, {"at": "2022-02-02", "n": 1.5}, {"at": 5, "n": 1}])
def test_what_does_not_fit_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"where struct<at:date,n:long> is declared"):
        reader_of(parse_declared("i struct<at:date,n:long>"))([given])
