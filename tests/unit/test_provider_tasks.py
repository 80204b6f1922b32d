"""Building DAGs: what is refused on the user's line, and what a group is made of. No database, no connection."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, TriggerRule
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization
from jinja2 import Template
from structlog.tracebacks import ExceptionDictTransformer

from airflow_trident import (
    Count,
    DeltaTable,
    FixedBatchSpout,
    MemoryState,
    SqliteState,
    Topology,
    TridentBackfillOperator,
    TridentCommitterOperator,
    TridentCoordinatorOperator,
    TridentDrainOperator,
    TridentEmitterOperator,
    TridentReadySensor,
    TridentTurnSensor,
    trident_transaction,
)
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    FailedException,
    LedgerUnavailableError,
    PlanError,
    RetryableError,
    TridentError,
)
from airflow_trident.operators.base import airflow_outcome, human_bytes, listed
from airflow_trident.sensors.turn import text_for_triggerer
from airflow_trident.settings import parse_txid
from airflow_trident.storm import TridentWorkerOperator
from airflow_trident.tasks.topology_search import _topologies_of_task


class Alone(SqliteState):
    """It takes no groups."""

    capabilities = replace(SqliteState.capabilities, groups=False)


def accounts() -> Topology:
    topology = Topology("accounts")
    stream = topology.new_stream("changes", FixedBatchSpout("id long, owner string", [(1, "a")]))
    stream.persist_table(DeltaTable("/lake/accounts"), mode="rewrite", keys="id", name="accounts")
    return topology


def words(factory: StateFactory | None = None, name: str = "words") -> Topology:
    topology = Topology(name)
    stream = topology.new_stream("lines", FixedBatchSpout("word string", ["a", "b"]))
    stream.group_by("word").persistent_aggregate(factory or SqliteState("words.db"), Count(), "count")
    return topology


@pytest.fixture
def dag() -> Iterator[DAG]:
    with DAG("plays", schedule=None) as made:
        yield made


@pytest.mark.parametrize(
    "make",
    [
        lambda topology: TridentCoordinatorOperator(task_id="t", topology=topology),
        lambda topology: TridentEmitterOperator(task_id="t", topology=topology, txid=1),
        lambda topology: TridentCommitterOperator(task_id="t", topology=topology, txid=1),
        lambda topology: TridentBackfillOperator(task_id="t", topology=topology),
        lambda topology: TridentReadySensor(task_id="t", topology=topology),
        lambda topology: TridentTurnSensor(task_id="t", topology=topology, txid=1),
        trident_transaction,
    ],
)
def test_a_state_that_lives_in_one_process_is_refused_where_the_dag_is_built(dag: DAG, make: Any) -> None:
    with pytest.raises(PlanError, match="lives in one process"):
        make(words(MemoryState()))


def test_a_topology_without_a_state_is_refused_where_the_dag_is_built(dag: DAG) -> None:
    empty = Topology("empty")
    empty.new_stream("lines", FixedBatchSpout("word string", ["a"]))
    with pytest.raises(PlanError):
        TridentEmitterOperator(task_id="t", topology=empty, txid=1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TridentEmitterOperator(task_id="t", topology="words", txid=1), "not a topology"),
        (lambda: TridentEmitterOperator(task_id="t", topology=words(), txid=1, engine="flink"), "flink"),
        (
            lambda: TridentEmitterOperator(task_id="t", topology=words(), txid=1, engine="local", spark_conn_id="s"),
            "no Spark connection",
        ),
        (lambda: TridentCoordinatorOperator(task_id="t", topology=words(), max_transactions=0), "max_transactions"),
        (lambda: TridentBackfillOperator(task_id="t", topology=words(), txid=1, first=1), "exclude each other"),
        (lambda: TridentTurnSensor(task_id="t", topology="no/name", txid=1), "no/name"),
        (lambda: trident_transaction(words(), task_id="mine"), "task_id"),
        (lambda: TridentDrainOperator(task_id="t", topology=words(), group=0), "group=0"),
        *(
            (partial(make, task_id="t", topology=words(), retention=-5, **more), "retention = -5")
            for make, more in ((TridentDrainOperator, {}), (TridentCommitterOperator, {"txid": 1}))
        ),
        (lambda: TridentWorkerOperator(task_id="t", topologies=[words()], name="w", retention=0), "retention = 0"),
        *(
            (partial(TridentDrainOperator, task_id="t", topology=words(), **{name: value}), name)
            for name, value in (
                ("max_time_s", -1),
                ("max_time_s", math.nan),
                ("max_time_s", "soon"),
                ("attempt_timeout", math.nan),
                ("attempt_timeout", math.inf),
            )
        ),
        (lambda: TridentDrainOperator(task_id="t", topology=words(), group="20", max_pending=10), "max_pending=10"),
        (
            lambda: TridentDrainOperator(task_id="t", topology=words(Alone("words.db")), group=20),
            "state 'count' .Alone. takes one transaction at a time",
        ),
        (lambda: trident_transaction(words(), group=4), "max_transactions=1: a run takes one transaction"),
        (lambda: trident_transaction(words(), group=0, max_transactions=4), "group=0 is no size of a group"),
        (lambda: trident_transaction(words(), group=9, max_transactions=4), "group=9 is above max_transactions=4"),
        (lambda: trident_transaction(words(), group=4, max_transactions=8, max_pending=3), "max_pending=3"),
        (
            lambda: trident_transaction(words(Alone("words.db")), group=4, max_transactions=8),
            "state 'count' .Alone. takes one transaction at a time",
        ),
        (lambda: TridentCoordinatorOperator(task_id="t", topology=accounts(), max_pending="2"), "mode='rewrite'"),
        (lambda: trident_transaction(accounts(), max_transactions=3), "3 transactions at once, and state 'accounts'"),
        (lambda: TridentDrainOperator(task_id="t", topology=accounts(), max_pending=2), "2 transactions at once"),
        (lambda: TridentDrainOperator(task_id="t", topology=accounts(), group=2), "one transaction at a time"),
        *(
            (
                partial(make, task_id="t", topology=accounts(), on_failure="skip", **more),
                "'accounts' has mode='rewrite'",
            )
            for make, more in (
                (TridentCoordinatorOperator, {}),
                (TridentEmitterOperator, {"txid": 1}),
                (TridentTurnSensor, {"txid": 1}),
                (TridentCommitterOperator, {"txid": 1}),
                (TridentDrainOperator, {}),
            )
        ),
        (lambda: trident_transaction(accounts(), on_failure="skip"), "for good, .*Leave out on_failure"),
        (
            lambda: TridentWorkerOperator(task_id="t", topologies=[words(), accounts()], name="w", on_failure="skip"),
            "on_failure='skip', and state 'accounts'",
        ),
        (lambda: TridentBackfillOperator(task_id="t", topology=words(), group="many"), "group='many'"),
        (
            lambda: TridentBackfillOperator(task_id="t", topology=words(Alone("words.db")), group=4),
            "state 'count' .Alone. takes one transaction at a time",
        ),
        *(
            (lambda name=name: TridentTurnSensor(task_id="t", topology="words", txid=1, **{name: 1}), name)
            for name in ("mode", "poke_interval", "soft_fail", "exponential_backoff")
        ),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused_where_the_dag_is_built(dag: DAG, make: Any, says: str) -> None:
    with pytest.raises(TridentError, match=says):
        make()


def test_the_limits_of_a_drain_may_be_templates_and_groups_are_no_demand_by_themselves(dag: DAG) -> None:
    TridentDrainOperator(task_id="t", topology=words(), group="{{ params.group }}", max_pending="{{ params.pending }}")
    TridentDrainOperator(task_id="u", topology=words(Alone("words.db")))
    TridentDrainOperator(task_id="v", topology=words(Alone("words.db")), group=1)
    TridentBackfillOperator(task_id="w", topology=words(Alone("words.db")))
    TridentBackfillOperator(task_id="x", topology=words(Alone("words.db")), group="{{ params.group }}")
    trident_transaction(words(Alone("words.db")), max_transactions=4, group="auto")
    trident_transaction(accounts())
    TridentDrainOperator(task_id="y", topology=accounts(), max_pending=1)


def test_a_group_is_coordinate_emit_turn_commit(dag: DAG) -> None:
    trident_transaction(words(name="my_words"), retries=3, outlets=[])
    after = {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}
    assert after == {
        "my_words.coordinate": ["my_words.commit", "my_words.emit", "my_words.turn"],
        "my_words.emit": ["my_words.turn"],
        "my_words.turn": ["my_words.commit"],
        "my_words.commit": [],
    }
    assert {task.retries for task in dag.tasks} == {3}


@pytest.mark.parametrize("rule", [rule for rule in TriggerRule if rule is not TriggerRule.ALL_SUCCESS])
def test_a_trigger_rule_is_the_coordinators_alone_because_it_could_skip_what_is_begun(rule: TriggerRule) -> None:
    for by_default in (True, False):
        with DAG("d", schedule=None, default_args={"trigger_rule": rule} if by_default else {}) as dag:
            trident_transaction(words(name="plain"), **({} if by_default else {"trigger_rule": rule}))
            trident_transaction(words(name="alone"), turn_sensor=False)
            trident_transaction(words(name="mapped"), max_transactions=3)
            trident_transaction(words(name="group"), max_transactions=3, group="auto")
        rules = {task.task_id: task.trigger_rule for task in dag.tasks if task.label != "coordinate"}
        assert rules.pop("group.turn") is TriggerRule.ALL_DONE_MIN_ONE_SUCCESS
        assert set(rules.values()) == {TriggerRule.ALL_SUCCESS}
        assert dag.get_task("plain.coordinate").trigger_rule is rule


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"default_args": {"do_xcom_push": False}}, r"do_xcom_push=False for task words\.coordinate"),
        ({"default_args": {"multiple_outputs": True}}, r"multiple_outputs=True for task words\.coordinate"),
        ({"fail_fast": True}, "a run is green although its transaction is FAILED"),
    ],
)
def test_a_dag_whose_runs_would_begin_and_never_show_that_nothing_follows_is_refused(
    arguments: dict[str, Any], says: str
) -> None:
    with DAG("d", schedule=None, **arguments), pytest.raises(ConfigurationError, match=says):
        trident_transaction(words())


NO_FLAG, NO_COUNT, NO_SECONDS = (
    ["false", 1, "", []],
    [0, -1, 1.5, math.nan, True, "x", b"1", []],
    [-1, math.nan, "x", True],
)
NO_CONN_ID = [5, [], b"x", "zookeeper://host:2181"]
NO_CHOICE = ["", "ignore", 1, []]
ODD: dict[str, dict[str, list[Any]]] = {
    "group": {
        # 10,001 are above what one run claims, 1,025 above what Airflow maps.
        "max_transactions": [*NO_COUNT, 10**9, 10_001, 1_025],
        "zookeeper_conn_id": NO_CONN_ID,
        "spark_conn_id": NO_CONN_ID,
        "max_pending": NO_COUNT,
        "retention": NO_COUNT,
        "on_failure": NO_CHOICE,
        "turn_sensor": NO_FLAG,
        "deferrable": NO_FLAG,
        "allow_backfill_runs": NO_FLAG,
        "turn_wait_s": [*NO_SECONDS, math.inf, timedelta(seconds=-1)],
        "attempt_timeout": [*NO_SECONDS, 0, math.inf, timedelta(0)],
        "spark_conf": [1, ["a"], "spark.x=1"],
    },
    "drain": {
        "max_transactions": NO_COUNT,
        "max_time_s": NO_SECONDS,
        "max_pending": NO_COUNT,
        "tries": NO_COUNT,
        "group": [0, 1.5, "x", []],
        "on_failure": NO_CHOICE,
        "deferrable": NO_FLAG,
        "allow_backfill_runs": NO_FLAG,
    },
    "backfill": {"txid": NO_COUNT, "first": NO_COUNT, "last": NO_COUNT, "group": [0, 1.5, "x", []]},
    "turn": {
        "zookeeper_conn_id": NO_CONN_ID,
        "turn_wait_s": NO_SECONDS,
        "deferrable": NO_FLAG,
        "on_failure": NO_CHOICE,
    },
}


@pytest.mark.parametrize(("task", "name"), [(task, name) for task, names in ODD.items() for name in names])
def test_an_argument_that_has_no_meaning_is_one_clear_error_when_the_dag_is_built(task: str, name: str) -> None:
    tasks: dict[str, Callable[..., Any]] = {
        "group": trident_transaction,
        "drain": partial(TridentDrainOperator, task_id="drain"),
        "backfill": partial(TridentBackfillOperator, task_id="backfill"),
        "turn": partial(TridentTurnSensor, task_id="turn", txid=1),
    }
    for value in ODD[task][name]:
        with DAG("d", schedule=None), pytest.raises(ConfigurationError, match=rf"{name} ?= ?|as {name}:|is not a txid"):
            tasks[task](topology=words(), **{name: value})
    if name == "turn_wait_s":
        with DAG("d", schedule=None):
            tasks[task](topology=words(), turn_wait_s=timedelta(seconds=5))


@pytest.mark.parametrize("turn_sensor", [True, False])
def test_with_a_group_one_task_of_each_kind_takes_all_and_waits_for_no_success_of_the_emitter(
    dag: DAG, turn_sensor: bool
) -> None:
    trident_transaction(words(), max_transactions=8, group=4, turn_sensor=turn_sensor)
    rules = {task.label: task.trigger_rule.value for task in dag.tasks}
    behind = {"turn" if turn_sensor else "commit": "all_done_min_one_success"}
    assert rules == dict.fromkeys(("coordinate", "emit", "commit"), "all_success") | behind
    assert dag.get_task(f"words.{next(iter(behind))}").upstream_task_ids == {"words.coordinate", "words.emit"}


def test_without_a_turn_sensor_the_committer_waits_itself(dag: DAG) -> None:
    trident_transaction(words(), turn_sensor=False)
    assert {task.task_id for task in dag.tasks} == {"words.coordinate", "words.emit", "words.commit"}


@pytest.mark.parametrize(
    "arguments", [{}, {"max_transactions": 3}, {"max_transactions": 3, "group": "auto"}, {"deferrable": True}]
)
def test_every_parse_of_a_dag_serializes_to_the_same(arguments: dict[str, Any]) -> None:
    def parse() -> Any:
        with DAG("plays", schedule=None) as made:
            trident_transaction(words(), **arguments)
            TridentEmitterOperator.partial(task_id="mapped", topology=words(), engine="local").expand(txid=[1, 2])
        return DagSerialization.to_dict(made)

    assert parse() == parse()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topologies": []}, "a worker has no list of topologies. Give some"),
        ({"topologies": words()}, "a worker has no list of topologies. Give some"),
        ({"topologies": [words(), words()]}, "a worker has two topologies 'words'"),
        ({"topologies": ["words"]}, "'words' is not a topology"),
        ({"topologies": [words()], "name": "1"}, "'1' cannot be the name of a worker"),
        ({"topologies": [words()], "wait_s": -1}, "wait_s = -1 is no number of seconds"),
        ({"topologies": [words()], "tries": 0}, "tries"),
    ],
)
def test_a_worker_that_cannot_be_meant_is_refused_when_the_dag_is_built(
    dag: DAG, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(TridentError, match=text):
        TridentWorkerOperator(**{"task_id": "work", "name": "w1", "engine": "local"} | arguments)


def test_a_worker_is_found_by_the_topologies_that_it_runs(dag: DAG) -> None:
    task = TridentWorkerOperator(task_id="work", topologies=[words()], name="{{ params.name }}", engine="local")
    assert [one.name for one in _topologies_of_task(task)] == ["words"]


@pytest.mark.parametrize(("killed", "finished"), [(False, True), (True, True), (True, False)])
def test_a_worker_that_was_asked_to_end_is_no_success_and_is_tried_again(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, killed: bool, finished: bool
) -> None:
    task = TridentWorkerOperator(task_id="work", topologies=[words()], name="w1", engine="local")
    stopped = Event()

    class Worker:
        stop = staticmethod(stopped.set)

        def run(self) -> bool:
            if killed:
                task.on_kill()
            return finished

    monkeypatch.setattr(task, "_make", lambda context: Worker())
    if killed:
        with pytest.raises(RetryableError, match="worker 'w1' was asked to end"):
            task.execute({})
    else:
        task.execute({})
    assert stopped.is_set() == killed


def test_a_deferrable_turn_begins_in_the_triggerer_unless_its_txid_has_no_text(dag: DAG) -> None:
    coordinate = TridentCoordinatorOperator(task_id="coordinate", topology=words())
    turn = TridentTurnSensor(task_id="turn", topology="words", txid=coordinate.output, deferrable=True)
    assert turn.start_from_trigger
    assert turn.start_trigger_args is not None
    kwargs = turn.start_trigger_args.trigger_kwargs or {}
    assert kwargs["txid"] == "{{ ti.xcom_pull(task_ids='coordinate', key='return_value', map_indexes=-1) }}"
    assert TridentTurnSensor(task_id="auto", topology="words", txid=1).start_from_trigger
    assert not TridentTurnSensor(task_id="slot", topology="words", txid=1, deferrable=False).start_from_trigger
    assert text_for_triggerer("{{ ti.xcom_pull(task_ids='coordinate') }}", turn) is None
    assert text_for_triggerer(7, turn) == "7"


@pytest.mark.parametrize(("deferrable", "defers"), [(None, False), (True, True)])
def test_a_turn_whose_ids_are_not_ascii_begins_in_a_worker(deferrable: bool | None, defers: bool) -> None:
    """Airflow's triggerer cannot fetch an XCom by such ids."""
    for dag_id, group_id in (("bestellungen_für_heute", None), ("plain", "für_heute")):
        with DAG(dag_id, schedule=None) as dag:
            trident_transaction(words(), group_id=group_id, deferrable=deferrable)
        (turn,) = (task for task in dag.tasks if isinstance(task, TridentTurnSensor))
        assert not turn.start_from_trigger
        assert turn.deferrable is defers


def test_a_turn_of_a_group_whose_coordinator_returned_nothing_says_so(dag: DAG) -> None:
    """A person has marked it as success."""
    trident_transaction(words(), max_transactions=3, group=2)
    ti = SimpleNamespace(xcom_pull=lambda **_: None)
    rendered = Template(dag.get_task("words.turn").txid).render(ti=ti)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=r"a person marked it as success\. Clear it"):
        parse_txid(rendered)


@pytest.mark.parametrize(("value", "txid"), [(3, 3), ("3", 3), (" 3 ", 3)])
def test_a_txid_is_read_from_templates_and_xcoms(value: Any, txid: int) -> None:
    assert parse_txid(value) == txid


@pytest.mark.parametrize("value", [None, "", "None", 0, -1, "x", 1.5])
def test_what_is_no_txid_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="is not a txid"):
        parse_txid(value)


def test_errors_that_may_pass_are_left_to_airflows_retries_and_all_others_end_the_task() -> None:
    with pytest.raises(LedgerUnavailableError), airflow_outcome():
        raise LedgerUnavailableError("no answer")
    with pytest.raises(AirflowFailException, match=r"PlanError: no such plan. Mend it.") as failed, airflow_outcome():
        raise PlanError("no such plan", "Mend it.")
    assert isinstance(failed.value.__cause__, PlanError)


@pytest.mark.parametrize("kind", [PlanError, LedgerUnavailableError])
def test_what_airflow_prints_of_a_failed_task_ends_with_the_error_and_its_cure(
    kind: type[TridentError], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow logs an exception as structlog's transformer makes it: each error above its frames, then its causes."""

    def execute() -> None:
        try:
            raise OSError("pages of a driver")
        except OSError as error:
            raise kind("it is not there", "Look for it.") from error

    said: list[str] = []

    class Said(logging.Handler):
        """As a log is written: at once, by a formatter that no library of the process has replaced."""

        def emit(self, record: logging.LogRecord) -> None:
            said.append(logging.Formatter().format(record))

    caplog.set_level("INFO")
    monkeypatch.setattr(logging.getLogger("airflow_trident.operators.base"), "handlers", [Said()])
    with pytest.raises((AirflowFailException, kind)) as failed, airflow_outcome():
        execute()
    (printed,) = ExceptionDictTransformer()((failed.type, failed.value, failed.tb))
    assert printed["exc_value"].endswith("it is not there. Look for it.")
    assert len(printed["frames"]) == 2, "the task's, and where the error is handed to Airflow"
    (before,) = caplog.records
    assert before.exc_info is not None
    assert "pages of a driver" in said[0]


def test_a_callback_finds_the_exception_by_which_a_function_failed_its_attempt() -> None:
    with pytest.raises(SystemExit, match="not yet") as failed, airflow_outcome():
        raise FailedException("not yet")
    assert isinstance(failed.value.__cause__, FailedException)


def test_arguments_for_the_other_sensors_of_a_dag_are_no_mistake() -> None:
    with DAG("plays", schedule=None, default_args={"mode": "reschedule", "poke_interval": 5}):
        TridentTurnSensor(task_id="t", topology="words", txid=1)


def test_a_killed_task_cancels_its_job_and_does_not_wait_for_ever(
    dag: DAG, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("airflow_trident.operators.engine_operator.CANCEL_LIMIT_S", 0.05)
    called, never = Event(), Event()

    class Stubborn(LocalEngine):
        def cancel(self) -> None:
            called.set()
            never.wait()

    task = TridentEmitterOperator(task_id="t", topology=words(), txid=1, engine="local")
    task.on_kill()
    task._running = Stubborn()
    with caplog.at_level(logging.WARNING):
        task.on_kill()
    assert called.is_set()
    never.set()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KB"), (5 * 1024**2, "5.0 MB"), (2**50, "1,024.0 TB")]
)
def test_sizes_are_told_as_people_say_them(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_what_a_task_returns_of_its_transactions_has_a_bounded_size() -> None:
    assert listed([3, 1, 2]) == [1, 2, 3]
    assert listed(range(1, 101)) == list(range(1, 101))
    assert listed(range(1, 5001)) == {"count": 5000, "ranges": [[1, 5000]]}
    scattered = listed(range(1, 100_001, 2))
    assert isinstance(scattered, dict)
    assert scattered["count"] == 50_000
    assert len(str(scattered)) < 2_000
