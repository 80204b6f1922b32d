"""The DAGs of the system tests that run a PySpark script by spark-submit. Airflow reads this file as a DAG file, and
spark-submit runs it as the script. The script reads a batch, and obeys the file ``hold-<txid>`` like the tasks of
`dags.py`; the process id that it writes is that of its driver's JVM."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

HOME = Path(os.environ["SYSTEM_TESTS"])


def job(folder: Path) -> None:
    import airflow_trident_script as trident
    from pyspark.sql import SparkSession, functions

    spark = SparkSession.builder.config("spark.ui.enabled", "false").getOrCreate()
    orders = spark.read.schema("customer string, cents long").csv(trident.inputs(spark, "orders"), header=True)
    daily = orders.groupBy("customer").agg(functions.sum("cents").alias("cents"))
    now = trident.transaction(spark)
    hold, here = folder / f"hold-{now['txid']}", folder / f"here-{now['txid']}-{now['attempt']}"
    if hold.exists():
        here.with_suffix(".partial").write_text(str(os.getppid()))
        here.with_suffix(".partial").rename(here)
    while hold.exists():
        time.sleep(0.02)
    daily.write.parquet(trident.output(spark, "daily"))
    (folder / f"wrote-{now['txid']}-{now['attempt']}").touch()
    spark.stop()


def dags() -> None:
    from airflow.sdk import DAG
    from batches import SCRIPTS

    from airflow_trident import FileSink, FileSpout, Script, TridentSparkSubmitOperator

    for name in SCRIPTS:
        folder, fields = HOME / name, "customer string, cents long"
        orders = FileSpout(str(folder / "orders"), format="csv", fields=fields, max_files=1)
        script = Script(name, inputs={"orders": orders}, outputs={"daily": (fields, FileSink(str(folder / "lake")))})
        with DAG(name, max_active_runs=3, default_args={"retries": 1, "retry_delay": timedelta(0)}) as dag:
            TridentSparkSubmitOperator(
                task_id="submit",
                topology=script,
                application=__file__,
                application_args=[str(folder)],
                max_transactions=1,
            )
        globals()[name] = dag


if __name__ == "__main__":
    job(Path(sys.argv[1]))
else:
    dags()
