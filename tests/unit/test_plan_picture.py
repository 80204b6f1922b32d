"""The picture of a plan: what is in it, and how a ledger keeps it for people who have no code of the topology."""

from __future__ import annotations

import json

import pytest

from airflow_trident import Count, FileSink, FixedBatchSpout, SqliteState, Topology
from airflow_trident.ledger.ledger import Ledger, MemoryLedger
from airflow_trident.ledger.plan_pictures import note_picture, picture_in
from airflow_trident.ledger.znodes import Set
from airflow_trident.plan.show.explain import MOST_BOXES, picture_of
from airflow_trident.protocol.topologies import BoxKind
from airflow_trident.runtime.outcomes import tell_plan
from tests.fixtures.ledger import begun


def words(times: int = 1) -> Topology:
    topology = Topology("words")
    lines = topology.new_stream("count", FixedBatchSpout("line string", ["a"], 1))
    for number in range(times):
        lines = lines.each("line", str.upper, f"word{number} string")
    counts = lines.group_by("word0").persistent_aggregate(SqliteState("/data/counts.db"), Count(), "n", name="count")
    counts.new_values_stream().partition_persist(FileSink("/data/out"), "word0, n", name="out")
    return topology


@pytest.fixture
def ledger() -> Ledger:
    return MemoryLedger("words")


def test_it_goes_from_spouts_by_operations_and_groupings_to_states_and_on_from_their_new_values() -> None:
    boxes = {box.name: box for box in picture_of(words().compile()).boxes}
    assert boxes["count"].kind is BoxKind.SPOUT  # though a state is called alike
    assert boxes["state count"].kind is BoxKind.STATE
    assert boxes["state count"].what == "SqliteState(/data/counts.db)"
    (grouping,) = [box for box in boxes.values() if box.kind is BoxKind.GROUPING]
    assert grouping.what == "by (word0)"
    behind = [box.name for box in boxes.values() if box.inputs == ("state count",)]
    assert [name.partition("-")[0] for name in behind] == ["new_values"]
    assert all(set(box.inputs) <= boxes.keys() for box in boxes.values())


def test_of_a_plan_without_end_the_last_boxes_are_counted_only() -> None:
    picture = picture_of(words(times=MOST_BOXES + 10).compile())
    assert len(picture.boxes) == MOST_BOXES
    assert picture.left_out > 10


def test_a_ledger_keeps_the_last_one_and_writes_it_once(ledger: Ledger) -> None:
    topology = words()
    tell_plan(ledger, topology)  # there is no ledger yet, and nobody fails by that
    ledger.register(topology.definition())
    assert picture_in(ledger) is None
    note_picture(ledger, picture_of(topology.compile()))
    written = ledger.znodes.read([ledger.paths().plan]).nodes[ledger.paths().plan]
    note_picture(ledger, picture_of(topology.compile()))
    assert ledger.znodes.read([ledger.paths().plan]).nodes[ledger.paths().plan] == written
    assert picture_in(ledger) == picture_of(topology.compile())
    note_picture(ledger, picture_of(words(times=2).compile()))
    assert picture_in(ledger) == picture_of(words(times=2).compile())


def test_who_begins_one_transaction_after_the_other_looks_for_it_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = words()
    ledger.register(topology.definition())
    begun(ledger, 1)
    tell_plan(ledger, topology)
    begun(ledger, 2)
    monkeypatch.setattr(ledger.znodes, "read", lambda *_: pytest.fail("it was looked for again"))
    tell_plan(ledger, topology)
    monkeypatch.undo()
    assert picture_in(ledger) == picture_of(topology.compile())


@pytest.mark.parametrize("content", [b"[", b"{}", json.dumps({"v": 99}).encode()], ids=["no JSON", "empty", "newer"])
def test_one_that_nobody_here_can_read_is_none_and_is_written_anew(ledger: Ledger, content: bytes) -> None:
    topology = words()
    ledger.register(topology.definition())
    note_picture(ledger, picture_of(topology.compile()))
    ledger.znodes.multi([Set(ledger.paths().plan, content, version=0)])
    assert picture_in(ledger) is None
    tell_plan(ledger, topology)
    assert picture_in(ledger) == picture_of(topology.compile())
