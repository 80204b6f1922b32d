"""A PySpark script, started by spark-submit, that writes to a Delta and an Iceberg table."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import DeltaTable, FileSpout, IcebergTable, Script, TridentSparkSubmitOperator

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))
CATALOG = {"type": "sql", "uri": f"sqlite:///{HOME}/catalog.db", "warehouse": f"file://{HOME}/lake"}

script = Script(
    "spark_script",
    inputs={
        "orders": FileSpout(
            f"{HOME}/timed/*.csv", format="csv", fields="at timestamp, customer string, cents long", max_files=1
        )
    },
    outputs={
        "daily": ("day date, customer string, cents long", DeltaTable(f"{HOME}/lake/scripted")),
        "big": ("customer string, cents long", IcebergTable("sales.scripted", properties=CATALOG)),
    },
)

with DAG("spark_script", max_active_runs=1) as dag:
    TridentSparkSubmitOperator(
        task_id="daily",
        topology=script,
        application=os.path.join(os.path.dirname(os.path.abspath(__file__)), "components", "daily.py"),
        spark_conf={"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "4"},
        max_transactions=1,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )
