"""Slots: no task that waits keeps the task that it waits for from one, whatever pools, weight rules and numbers are."""

from __future__ import annotations

import heapq
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_trident import (
    Count,
    FixedBatchSpout,
    SqliteState,
    Topology,
    TridentBackfillOperator,
    TridentReadySensor,
    trident_transaction,
)
from airflow_trident.tasks.waits import next_look

WAITS_FOR = {
    "ready": ("coordinate", "emit", "turn", "commit", "replay"),
    "coordinate": ("emit", "turn", "commit", "replay"),
    "turn": ("emit", "commit", "replay"),
    "commit": ("emit", "replay"),
}
"""A task waits for tasks of other runs: a coordinator waits for room; a commit only without a turn sensor."""


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    made = Topology("words")
    words = made.new_stream("words", FixedBatchSpout("word string", [("a",)]))
    words.group_by("word").persistent_aggregate(SqliteState(str(tmp_path / "words.db")), Count(), "count")
    return made


@pytest.mark.parametrize("rule", [None, "upstream", "downstream", "absolute"])
@pytest.mark.parametrize("weight", [1, 0, -5, 1000, 2**31 - 1])
@pytest.mark.parametrize(
    "arguments", [{}, {"turn_sensor": False}, {"max_transactions": 3}, {"max_transactions": 3, "group": 2}]
)
def test_a_task_that_waits_ranks_below_each_task_that_it_waits_for(
    topology: Topology, arguments: dict[str, Any], weight: int, rule: str | None
) -> None:
    rules = {} if rule is None else {"weight_rule": rule}
    with DAG("words", schedule=None, default_args={"priority_weight": weight, **rules}) as dag:
        ready = TridentReadySensor(task_id="ready", topology=topology)
        ready >> trident_transaction(topology, engine="local", deferrable=False, **arguments, **rules)
        TridentBackfillOperator(task_id="replay", topology=topology, engine="local")
    of_scheduler: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    weights = {
        task.task_id.rpartition(".")[2]: task.weight_rule.get_weight(Instance(task)) for task in of_scheduler.tasks
    }
    for waits, others in WAITS_FOR.items():
        if waits == "commit" and "turn" in weights:
            continue  # it waits for nobody
        for other in others:
            if waits in weights and other in weights:
                assert weights[waits] < weights[other], (waits, other)


@pytest.mark.parametrize("limit", ["max_active_tis_per_dag", "max_active_tis_per_dagrun"])
@pytest.mark.parametrize("by_default", [True, False])
@pytest.mark.parametrize(
    "arguments", [{}, {"turn_sensor": False}, {"max_transactions": 3}, {"max_transactions": 3, "group": 2}]
)
def test_a_limit_of_instances_is_the_emitters_alone_because_airflow_counts_the_deferred_ones_that_wait(
    topology: Topology, arguments: dict[str, Any], limit: str, by_default: bool
) -> None:
    with DAG("words", schedule=None, default_args={limit: 1} if by_default else {}) as dag:
        trident_transaction(topology, engine="local", **arguments, **({} if by_default else {limit: 1}))
    of_scheduler: Any = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    limited = {task.task_id.rpartition(".")[2] for task in of_scheduler.tasks if getattr(task, limit) is not None}
    assert limited == {"emit"}


class Instance:
    def __init__(self, task: Any) -> None:
        self.task = task


@pytest.mark.parametrize("seed", range(200))
def test_any_number_of_waiting_tasks_of_any_weight_leaves_a_slot_for_the_task_that_they_wait_for(seed: int) -> None:
    """A pool played with a clock of its own. The work has the lowest weight, and comes when all wait already."""
    draw = random.Random(seed)
    slots, waiting = draw.randint(1, 2), draw.randint(1, 60)
    first_s, look_s, least_s = draw.uniform(0, 60), draw.uniform(0.5, 4), draw.uniform(0, 20)
    ready = [(draw.uniform(0, 30), number) for number in range(waiting)]
    began: dict[int, float] = {}
    heapq.heapify(ready)
    free_at = [0.0] * slots
    comes_at = max(at for at, _ in ready)
    for _ in range(100_000):
        now = heapq.heappop(free_at)
        at, number = heapq.heappop(ready)
        if max(now, comes_at) < at:
            return  # a slot is free, and no task that waits is there: the work begins
        start = max(now, at)
        holds_s = look_s if number in began else max(look_s, first_s)
        began.setdefault(number, start)
        end = start + holds_s
        away = next_look(timedelta(seconds=end - began[number]), least_s)
        heapq.heappush(free_at, end)
        heapq.heappush(ready, (end + away.total_seconds(), number))
    raise AssertionError(f"{waiting} waiting tasks never left one of {slots} slots")


def test_a_ready_sensor_holds_no_slot_between_its_looks_unless_a_person_wants_it_to(topology: Topology) -> None:
    with DAG("words", schedule=None):
        assert TridentReadySensor(task_id="ready", topology=topology).mode == "reschedule"
        assert TridentReadySensor(task_id="pokes", topology=topology, mode="poke").mode == "poke"
