"""The DAGs of the operators: one for each operator and accident, in whose folder below a root its data is."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_trident import FileSink, FileSpout, Script, TridentSparkSubmitOperator
from airflow_trident.engine.spark.sessions.java import spark_home
from benchmarks.aftermath.accidents import Accident

CLIENT, CLUSTER = "aftermath_client", "aftermath_cluster"
"""Connections: drivers on this machine; drivers in a standalone cluster."""
OPERATORS = ("stock", "resumable", "ours")
HERE = Path(__file__).parent
FAST = "-XX:TieredStopAtLevel=1"
OPENED = " ".join(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "java.lang"))
"""What Arrow needs of Java. spark-submit gives it to drivers here, and the cluster gives it to no driver."""
SMALL = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": FAST}


def dags(root: str) -> dict[str, DAG]:
    """By their ids."""
    made = {}
    for operator in OPERATORS:
        for accident in Accident:
            name = f"{operator}_{accident.name}".lower()
            folder = Path(root, name)
            with DAG(name, schedule=None, max_active_runs=2) as dag:
                # The run that is late is retried by a person, when the next one is done.
                given = {"retries": 0 if accident is Accident.LATE else 1, "retry_delay": timedelta(0)}
                _task(operator, folder, {**given, "pre_execute": _began(folder), "post_execute": _ended(folder)})
            made[name] = dag
    return made


def _task(operator: str, folder: Path, given: dict[str, Any]) -> None:
    batch = "{{ run_id }}"
    if operator == "stock":
        SparkSubmitOperator(
            task_id="submit",
            application=str(HERE / "stock_job.py"),
            application_args=[str(folder), batch],
            conn_id=CLIENT,
            conf=SMALL,
            **given,
        )
    elif operator == "resumable":  # a standalone cluster takes Python drivers only as Java's
        jar = next((spark_home() / "jars").glob("spark-tags_*.jar"))
        SparkSubmitOperator(
            task_id="submit",
            application=str(jar),
            java_class="org.apache.spark.deploy.PythonRunner",
            application_args=[str(HERE / "stock_job.py"), "", str(folder), batch],
            conn_id=CLUSTER,
            conf={**SMALL, "spark.driver.extraJavaOptions": f"{FAST} {OPENED}"},
            durable=True,
            status_poll_interval=5,  # each look starts a JVM
            **given,
        )
    else:
        script = Script(
            folder.name,
            inputs={"lines": FileSpout(f"{folder}/in/*.txt", max_files=1)},
            outputs={"rows": ("value string", FileSink(f"{folder}/out"))},
        )
        TridentSparkSubmitOperator(
            task_id="submit",
            topology=script,
            application=str(HERE / "our_job.py"),
            application_args=[str(folder)],
            spark_conn_id=CLIENT,
            spark_conf=SMALL,
            max_transactions=1,
            **given,
        )


def _began(folder: Path) -> Any:
    def began(context: Any) -> None:
        tried = context["ti"].try_number
        (folder / f"task-{context['run_id']}-{tried}").write_text(str(os.getpid()))
        if tried > 1:
            _let_go_on(folder)

    return began


def _ended(folder: Path) -> Any:
    def ended(_context: Any, _result: Any) -> None:
        """The task dies when its work is done, before Airflow knows."""
        if (folder / "die-at-end").exists():
            (folder / "die-at-end").unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    return ended


def _let_go_on(folder: Path) -> None:
    """A retry that follows the old driver, instead of starting one, waits for it: so the old one goes on now."""
    follow = SparkSubmitHook._start_driver_status_tracking

    def follow_and_tell(hook: SparkSubmitHook) -> None:
        (folder / "go on").touch()
        follow(hook)

    SparkSubmitHook._start_driver_status_tracking = follow_and_tell  # type: ignore[method-assign]
