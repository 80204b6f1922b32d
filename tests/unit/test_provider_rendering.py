"""A wait that begins in the triggerer: what Airflow's own triggerer renders of it, from the serialized DAG. Of the API
server there are only the XComs."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from airflow.executors.workloads.task import TaskInstanceDTO
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.sdk import DAG, task_group
from airflow.sdk.bases.xcom import BaseXCom
from airflow.serialization.serialized_objects import DagSerialization

from airflow_trident import (
    Count,
    FixedBatchSpout,
    SqliteState,
    Topology,
    TridentCoordinatorOperator,
    TridentTurnSensor,
    trident_transaction,
)
from airflow_trident.errors import ConfigurationError
from airflow_trident.triggers.transaction import TridentTurnTrigger

RUN: dict[str, Any] = {
    "dag_id": "plays",
    "run_id": "one",
    "run_after": "2026-01-01T00:00:00Z",
    "start_date": "2026-01-01T00:00:00Z",
    "run_type": "manual",
    "state": "running",
    "conf": {},
    "consumed_asset_events": [],
    **dict.fromkeys(("logical_date", "data_interval_start", "data_interval_end", "end_date", "partition_key")),
}
OF_MAPPED = {
    ("g.t.coordinate", "return_value", 0): 7,
    ("g.t.coordinate", "incarnation", 0): "zero",
    ("g.t.coordinate", "return_value", 1): 8,
    ("g.t.coordinate", "incarnation", 1): "one",
}


def words() -> Topology:
    topology = Topology("words")
    stream = topology.new_stream("lines", FixedBatchSpout("word string", ["a", "b"]))
    stream.group_by("word").persistent_aggregate(SqliteState("words.db"), Count(), "count")
    return topology


def mapped(**arguments: Any) -> DAG:
    with DAG("plays", schedule=None) as made:

        @task_group
        def g(_value: int) -> None:
            trident_transaction(words(), group_id="t", engine="local", deferrable=True, **arguments)

        g.expand(_value=[1, 2])
    return made


def rendered(
    made: DAG, task_id: str, map_index: int, xcoms: dict[Any, Any], patch: pytest.MonkeyPatch
) -> TridentTurnTrigger:
    """The trigger of a task that begins in the triggerer, as it is when it runs."""

    def pulled(*, key: str, task_id: str, map_index: int, **_of_run: Any) -> Any:
        return xcoms.get((task_id, key, map_index))

    patch.setattr(BaseXCom, "get_one", pulled)
    waiting = made.get_task(task_id)
    assert waiting.start_from_trigger
    assert waiting.start_trigger_args is not None
    one = TaskInstanceDTO(
        id=uuid.uuid4(),
        dag_version_id=uuid.uuid4(),
        dag_id="plays",
        run_id="one",
        task_id=task_id,
        try_number=1,
        map_index=map_index,
        pool_slots=1,
        priority_weight=1,
    )
    of_run: Any = TriggerRunner.create_runtime_ti(one, DagSerialization.to_dict(made), RUN)
    trigger = TridentTurnTrigger(**(waiting.start_trigger_args.trigger_kwargs or {}))
    trigger.task_instance = of_run
    trigger.render_template_fields(context=of_run.get_template_context())
    return trigger


@pytest.mark.parametrize(("map_index", "txid", "incarnation"), [(0, 7, "zero"), (1, 8, "one")])
def test_in_a_mapped_task_group_each_wait_is_for_the_transaction_of_its_own_coordinator(
    monkeypatch: pytest.MonkeyPatch, map_index: int, txid: int, incarnation: str
) -> None:
    trigger = rendered(mapped(), "g.t.turn", map_index, OF_MAPPED, monkeypatch)
    assert (str(trigger.txid), trigger.incarnation) == (str(txid), incarnation)


def test_in_a_mapped_task_group_the_wait_of_a_group_of_transactions_is_for_its_lowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    xcoms = {**OF_MAPPED, ("g.t.coordinate", "return_value", 1): [8, 9]}
    trigger = rendered(mapped(max_transactions=3, group=2), "g.t.turn", 1, xcoms, monkeypatch)
    assert (str(trigger.txid), trigger.incarnation) == ("8", "one")


@pytest.mark.parametrize(("arguments", "returned"), [({}, 7), ({"max_transactions": 3, "group": 2}, [7, 8])])
def test_elsewhere_the_wait_is_for_the_transaction_of_the_only_coordinator(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], returned: Any
) -> None:
    with DAG("plays", schedule=None) as made:
        trident_transaction(words(), group_id="t", engine="local", deferrable=True, **arguments)
    xcoms = {("t.coordinate", "return_value", -1): returned, ("t.coordinate", "incarnation", -1): "only"}
    trigger = rendered(made, "t.turn", -1, xcoms, monkeypatch)
    assert (str(trigger.txid), trigger.incarnation) == ("7", "only")


def test_a_wait_for_a_coordinator_that_is_mapped_elsewhere_begins_in_a_worker() -> None:
    with DAG("plays", schedule=None):
        alone: Any = TridentCoordinatorOperator.partial(task_id="alone", topology=words()).expand(
            max_pending=["1", "2"]
        )
        made: list[TridentCoordinatorOperator] = []

        @task_group
        def g(_value: int) -> None:
            made.append(TridentCoordinatorOperator(task_id="coordinate", topology=words()))

        g.expand(_value=[1, 2])
        for number, above in enumerate((alone, made[0])):
            turn = TridentTurnSensor(task_id=f"t{number}", topology="words", txid=above.output, deferrable=True)
            assert not turn.start_from_trigger
            assert turn.incarnation is None


def test_mapping_over_the_transactions_of_a_coordinator_that_is_mapped_itself_is_refused() -> None:
    """Airflow would never expand it: it counts what is mapped over by the output of the unmapped task alone."""
    with pytest.raises(ConfigurationError, match=r"3 transactions of a run in the mapped task group 'g'.*Give group"):
        mapped(max_transactions=3)
