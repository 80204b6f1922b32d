"""A script whose driver runs in a standalone cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.airflow import AirflowHome
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
SMALL = {
    "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false", "spark.driver.memory": "512m",
    "spark.executor.memory": "512m", "spark.cores.max": "1",
    "spark.driver.extraJavaOptions": "JAVA", "spark.executor.extraJavaOptions": "JAVA",
}
with DAG("clustered", schedule=None) as dag:
    TridentSparkSubmitOperator(
        task_id="daily", topology=script, application="FOLDER/job.py", application_args=["FOLDER/drivers"],
        py_files="FOLDER/rates.py", spark_conn_id="spark_cluster", spark_conf=SMALL,
    )
"""
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
    airflow_home.write_dag("clustered", DAG.replace("FOLDER", str(folder)).replace("JAVA", soon()))
    master, rest = spark_master
    cluster = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "cluster", "rest-port": rest}}
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        **HERE,
        "AIRFLOW_CONN_SPARK_CLUSTER": json.dumps(cluster),
    }
    played = airflow_home.python(PLAY.replace("FOLDER", str(folder)))
    assert played == {"state": "success", "txids": [1, 2], "rows": [["ann", 1100], ["ann", 2200]]}
    assert Path(folder / "drivers").read_text() == "xx"
