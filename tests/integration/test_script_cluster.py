"""A script whose driver runs in a standalone cluster or beside its task, and what becomes of it when the task ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.script_attempts import EXACT, KILLED_TASKS, write_runner
from tests.fixtures.spark import soon
from tests.fixtures.standalone import HERE

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

SCRIPT = """
import os, sys
import airflow_trident_script as trident
import rates
from pyspark.sql import SparkSession, functions

spark = SparkSession.builder.getOrCreate()
assert spark.conf.get("spark.submit.deployMode") == "cluster"
orders = spark.read.schema("customer string, cents long").csv(trident.inputs(spark, "orders"), header=True)
daily = orders.groupBy("customer").agg((functions.sum("cents") * rates.RATE).alias("cents"))
daily.write.parquet(trident.output(spark, "daily"))
if os.path.basename(os.getcwd()).startswith("driver-"):
    open(sys.argv[1], "a").write("x")
"""
DAG = """
from datetime import timedelta
from airflow.sdk import DAG
from airflow_trident import FileSink, FileSpout, Script, TridentSparkSubmitOperator

FIELDS = "customer string, cents long"
script = Script(
    "clustered",
    inputs={"orders": FileSpout("FOLDER/orders", format="csv", fields=FIELDS, max_files=1)},
    outputs={"daily": (FIELDS, FileSink("FOLDER/lake"))},
)
with DAG("clustered", schedule=None) as dag:
    TridentSparkSubmitOperator(
        task_id="daily", topology=script, application="FOLDER/job.py", application_args=["FOLDER/drivers"],
        py_files="FOLDER/rates.py", spark_conn_id="spark_cluster", spark_conf=SMALL_,
    )
"""
SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.cores.max": "1",
    "spark.driver.extraJavaOptions": soon(),
    "spark.executor.extraJavaOptions": soon(),
}
PLAY = """
from clustered import dag
import pyarrow.parquet as pq, glob
(ti,) = dag.test().get_task_instances()
rows = [row for path in glob.glob("FOLDER/lake/*.parquet") for row in pq.read_table(path).to_pylist()]
rows = sorted([row["customer"], row["cents"]] for row in rows)
tell({"state": ti.state, "txids": ti.xcom_pull("daily"), "rows": rows})
"""


def test_a_script_and_its_modules_run_on_a_driver_in_the_cluster(
    airflow_home: AirflowHome, spark_master: tuple[str, int]
) -> None:
    folder = airflow_home.folder
    (folder / "orders").mkdir()
    for number in (1, 2):
        (folder / "orders" / f"{number}.csv").write_text(f"customer,cents\nann,{number}\nann,{10 * number}\n")
    (folder / "job.py").write_text(SCRIPT)
    (folder / "rates.py").write_text("RATE = 100\n")
    airflow_home.write_dag("clustered", DAG.replace("FOLDER", str(folder)).replace("SMALL_", repr(SMALL)))
    master, rest = spark_master
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        **HERE,
        "AIRFLOW_CONN_SPARK_CLUSTER": json.dumps(cluster_of(master, rest)),
    }
    played = airflow_home.python(PLAY.replace("FOLDER", str(folder)))
    assert played == {"state": "success", "txids": [1, 2], "rows": [["ann", 1100], ["ann", 2200]]}
    assert Path(folder / "drivers").read_text() == "xx"


def cluster_of(master: str, rest: int) -> dict[str, object]:
    return {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "cluster", "rest-port": rest}}


STATES = """
from airflow_trident.tasks.drivers import SparkDriver
def state(driver):
    return SparkDriver(masters=("http://127.0.0.1:REST",), driver_id=driver).state()
"""
WORKING = """
seen = killed_and_again(begun(0), noting=NOTING)
tell([seen, sorted(state(driver) for driver in os.listdir("WORK") if driver.startswith("driver-"))])
"""
WAITING = """
seen = killed_and_again(notes, more={"spark.driver.cores": "64"})
tell([seen, state(seen["said"][0].split()[1].rstrip(","))])
"""


@pytest.mark.parametrize("noting", [True, False])
def test_the_driver_of_a_killed_task_is_ended_before_the_next_attempt_submits_another(
    airflow_home: AirflowHome, spark_master: tuple[str, int], tmp_path: Path, noting: bool
) -> None:
    """Also if the task was killed before it knew the driver: the driver says who it is."""
    master, rest = spark_master
    write_runner(airflow_home, cluster_of(master, rest), SMALL)
    airflow_home.options |= HERE
    program = KILLED_TASKS + STATES + WORKING
    for name, value in (("NOTING", str(noting)), ("WORK", str(tmp_path / "work")), ("REST", str(rest))):
        program = program.replace(name, value)
    seen, states = airflow_home.python(program)
    (said,) = seen.pop("said")
    assert re.match("ended driver-[0-9-]+, the driver of an older attempt", said)
    assert (seen, states) == (EXACT, ["FINISHED", "KILLED"])


def test_a_driver_that_waits_for_room_is_ended_too(airflow_home: AirflowHome, spark_master: tuple[str, int]) -> None:
    master, rest = spark_master
    write_runner(airflow_home, cluster_of(master, rest), SMALL)
    airflow_home.options |= HERE
    seen, state = airflow_home.python((KILLED_TASKS + STATES + WAITING).replace("REST", str(rest)))
    assert len(seen.pop("said")) == 1
    assert (seen, state) == (EXACT, "KILLED")


LEFT = """
import psutil
seen = killed_and_again(begun(0))
found = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
tell([seen, [line for line in found if line and f"{runner.FOLDER}/job.py" in line]])
"""


def test_in_client_mode_the_driver_is_found_by_its_process(airflow_home: AirflowHome) -> None:
    """The driver goes on when its task is killed: it is a process of its own."""
    write_runner(airflow_home, {"conn_type": "spark", "host": "local[1]"}, SMALL)
    airflow_home.options |= HERE
    seen, left = airflow_home.python(KILLED_TASKS + LEFT)
    (said,) = seen.pop("said")
    assert re.match(r"ended process \d+ on \S+, the driver of an older attempt", said)
    assert (seen, left) == (EXACT, [])
