"""Scripts when a DAG is built: what is refused there, and that no other task or engine passes one by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import (
    Count,
    FileSink,
    FileSpout,
    FixedBatchSpout,
    Script,
    SqliteState,
    Topology,
    TridentSparkSubmitOperator,
)
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.engine.spark.submit import submit_conf
from airflow_trident.errors import ConfigurationError, PlanError, UnknownNodeError
from airflow_trident.names import EngineKind
from airflow_trident.plan.stages import Coalescing
from airflow_trident.tasks.engines import SCRIPT_CONF, make_engine
from airflow_trident.topology.script import ScriptApplication, application_of
from tests.fixtures.script import daily, job_of

FIELDS = "customer string, cents long"
SINK = FileSink("/lake/daily")
ORDERS = FileSpout("/orders", format="csv", fields=FIELDS)


def script(**changed: Any) -> Script:
    return Script("daily", **{"inputs": {"orders": ORDERS}, "outputs": {"daily": (FIELDS, SINK)}, **changed})


def submit(topology: Any, **changed: Any) -> TridentSparkSubmitOperator:
    return TridentSparkSubmitOperator(**{"task_id": "daily", "topology": topology, "application": "job.py", **changed})


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no inputs": (lambda: script(inputs={}), "script 'daily' has no inputs"),
    "no outputs": (lambda: script(outputs={}), "script 'daily' has no outputs"),
    "no spout": (lambda: script(inputs={"orders": "/orders"}), "is no spout"),
    "a type that Spark does not read": (
        lambda: script(inputs={"orders": FixedBatchSpout("at time, a string", [("x", "y")], 1)}),
        "input 'orders' of script 'daily' has the field 'at' of type time",
    ),
    "an output without fields": (
        lambda: script(outputs={"daily": SINK}),
        "output 'daily' of script 'daily' is FileSink",
    ),
    "an output without types": (lambda: script(outputs={"daily": ("cents", SINK)}), "cents"),
    "keys that nobody named": (
        lambda: script(outputs={"daily": (FIELDS, SqliteState("a.db"))}),
        'keys="customer"',
    ),
    "an output that ends nowhere": (
        lambda: script(outputs={"daily": (FIELDS, lambda rows: rows)}),
        "output 'daily' of script 'daily' ends in no state",
    ),
    "work behind the script": (
        lambda: script(
            outputs={
                "daily": (
                    FIELDS,
                    lambda rows: rows.group_by("customer").persistent_aggregate(SqliteState("a.db"), Count(), "n"),
                )
            }
        ),
        "topology 'daily' works on what its script writes",
    ),
    "an input named as an output": (lambda: script(outputs={"orders": (FIELDS, SINK)}), "is an input and an output"),
    "no script": (lambda: submit(Topology("plain")), "is no Script"),
    "two applications": (
        lambda: (lambda one: (submit(one), submit(one, task_id="again", application="other.py")))(script()),
        "script 'daily' is the application",
    ),
    "the local engine": (lambda: submit(script(), engine="local", spark_conn_id=None), "no Spark connection is named"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told_when_the_dag_is_built(what: str) -> None:
    make, text = MISTAKES[what]
    with pytest.raises((PlanError, ConfigurationError)) as raised:
        make()
    assert text in str(raised.value)


def test_a_script_is_one_step_which_no_other_engine_runs(tmp_path: Path) -> None:
    made = daily(tmp_path)
    plan = made.compile()
    assert plan.coalesces.how is Coalescing.NO
    assert plan.staged_fields == {"daily": FIELDS}
    for engine in (LocalEngine(), SparkEngine(LocalSessions("local[1]"))):
        with pytest.raises(UnknownNodeError, match="TridentSparkSubmitOperator"):
            engine.run(job_of(made, tmp_path))


def test_rows_with_keys_go_into_a_state_by_a_function() -> None:
    made = script(
        outputs={
            "daily": (
                FIELDS,
                lambda rows: rows.partition_persist(SqliteState("a.db"), "customer, cents", keys="customer"),
            )
        }
    )
    assert [field.name for field in made.states["cents"].keys] == ["customer"]


def test_commands_know_the_application_that_the_task_named_but_not_what_only_a_run_can_fill() -> None:
    made = script()
    with pytest.raises(ConfigurationError, match="nothing says which application it is"):
        make_engine(EngineKind.SPARK, conn_id=None, conf={}, app_name="a", topology=made)
    task = submit(made, application_args=["x", 3], packages="a:b:1", py_files="p.zip")
    wanted = ScriptApplication(
        application="job.py",
        arguments=("x", "3"),
        conf=(("spark.submit.pyFiles", "p.zip"), ("spark.jars.packages", "a:b:1")),
    )
    assert application_of(made) == made.application == wanted
    assert {"application", "application_args", "packages"} <= set(task.template_fields)
    for kind in (EngineKind.LOCAL, EngineKind.SPARK):
        with pytest.raises(ConfigurationError, match="no Spark connection is named"):
            make_engine(kind, conn_id=None, conf={}, app_name="a", topology=made)
    templated = script()
    submit(templated, application_args=["{{ ds }}"])
    with pytest.raises(ConfigurationError, match=r"the template '\{\{ ds \}\}', which only its task can fill"):
        application_of(templated)


def test_yarn_starts_the_driver_of_a_script_once_as_any_driver_of_ours() -> None:
    name = "spark.yarn.maxAppAttempts"
    assert SCRIPT_CONF[name] == submit_conf()[name] == "1"
