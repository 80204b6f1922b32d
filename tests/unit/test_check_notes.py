"""Numbers of checks come from Spark's workers once for each partition, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.engine.fused.frames import Frame
from airflow_trident.engine.fused.measuring import Gauges, Numbers, note_of
from airflow_trident.engine.spark import check_notes
from airflow_trident.engine.spark.check_notes import CheckNotes, LeaveNote, surely_run
from airflow_trident.engine.spark.dataframes import is_told_partitions
from airflow_trident.errors import SparkJobError, UnseenFilesError
from airflow_trident.functions import check, col, expect
from airflow_trident.io.places import place_at
from airflow_trident.plan.nodes import CheckNode
from airflow_trident.plan.stages import Plan
from tests.fixtures.engine import keep
from tests.fixtures.gates import GATED, gated_before_a_limit

ROWS: list[tuple[Any, ...]] = [(1, 0.1), (2, 0.2), (2, 0.3), (None, 1e300)]


def _plan() -> Plan:
    topology = Topology("t")
    rules = (
        expect("positive", col("id") > 1),
        check("ids", "unique_violations", "id", equal_to=0),
        check("sum", "sum", "x", geq_to=0),
    )
    keep(topology.new_stream("s", FixedBatchSpout("id long, x double", ROWS)).expect(*rules))
    return topology.compile()


def _measured(node: CheckNode, rows: list[tuple[Any, ...]], member: int = 0) -> Gauges:
    gauges = Gauges(member)
    gauges.gauge(node, node.schema, txid=1).add(Frame.of_rows(rows, ("id", "x")))
    return gauges


@pytest.fixture
def notes(tmp_path: Path) -> CheckNotes:
    made = CheckNotes(place_at(str(tmp_path)), "slot/checks")
    made.begin()
    return made


def _leave(notes: CheckNotes, monkeypatch: pytest.MonkeyPatch, partition: int, task: int, note: bytes) -> None:
    monkeypatch.setattr(check_notes, "_task", lambda: task)
    notes.leave("0-0", partition, note)


def test_a_partition_that_is_made_again_counts_once(notes: CheckNotes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of another order give the same note; a task that passes over several partitions leaves several."""
    plan = _plan()
    (node,) = plan.check_nodes
    for task, rows in ((1, ROWS), (2, ROWS[::-1])):
        _leave(notes, monkeypatch, 0, task, note_of([_measured(node, rows)]))
        _leave(notes, monkeypatch, 0, task, note_of([_measured(node, [(2, 5.0)])]))
    _leave(notes, monkeypatch, 1, 3, note_of([_measured(node, [(7, -1e300)])]))
    numbers = Numbers(plan.check_nodes)
    for of_one in notes.of_each()["0-0"].values():
        for note in of_one:
            numbers.merge_note(note)
    assert numbers.of_each() == [
        {
            "positive": {"rows": 6, "value": 2},
            "ids": {"rows": 6, "value": 2},
            "sum": {"rows": 6, "value": 5.6},
        }
    ]


def test_another_note_of_the_same_partition_ends_the_attempt(
    notes: CheckNotes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (node,) = _plan().check_nodes
    for task, rows in ((1, ROWS), (2, ROWS[1:])):
        _leave(notes, monkeypatch, 0, task, note_of([_measured(node, rows)]))
    with pytest.raises(SparkJobError, match="made a partition again, and checks measured other numbers"):
        notes.of_each()


def test_a_worker_that_does_not_see_the_folder_of_the_driver_fails(tmp_path: Path) -> None:
    notes = CheckNotes(place_at(str(tmp_path)), "slot/checks")
    leave = LeaveNote(notes, "0-0")

    def stream() -> Iterator[Any]:
        yield "a batch"

    passed = leave.after(stream(), 0, [])
    assert next(passed) == "a batch"
    with pytest.raises(UnseenFilesError, match="where checks leave their numbers, is not there"):
        next(passed)


def test_only_what_leads_to_a_staged_result_is_sure_to_be_computed() -> None:
    def sure(name: str) -> list[bool]:
        topology = Topology("t")
        (GATED | {"limit": gated_before_a_limit})[name](topology)
        plan = topology.compile()
        names = surely_run(plan.stages)
        return [node.name in names for node in plan.check_nodes]

    assert sure("gated_reading") == [True]
    assert sure("gated_behind_a_repartition") == [True]
    assert sure("gated_twice_before_a_fork") == [True, True]
    assert sorted(sure("gated_around_a_join")) == [False, False, True]
    assert sure("limit") == [False]


def test_no_repartition_is_made_for_a_check_alone() -> None:
    plan = _plan()
    (stage,) = plan.stages
    assert not is_told_partitions(plan, stage, stage.nodes)
