"""An ordinary Spark job: DataFrames and SQL over new orders, written to a Delta and an Iceberg table."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import DeltaTable, FileSpout, IcebergTable, Topology, trident_transaction

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))
CATALOG = {"type": "sql", "uri": f"sqlite:///{HOME}/catalog.db", "warehouse": f"file://{HOME}/lake"}


def to_daily(orders):
    from pyspark.sql import functions as sf

    day = sf.to_date("at").alias("day")
    return orders.groupBy(day, "customer").agg(sf.sum("cents").alias("cents"))


topology = Topology("spark_job")
spout = FileSpout(f"{HOME}/timed/*.csv", format="csv", fields="at timestamp, customer string, cents long", max_files=1)
daily = topology.new_stream("orders", spout).transform(to_daily, "day date, customer string, cents long")
big = daily.sql("SELECT customer, cents FROM {daily} WHERE cents >= 100", "customer string, cents long")
daily.persist_table(DeltaTable(f"{HOME}/lake/daily"), name="daily")
big.persist_table(IcebergTable("sales.big", properties=CATALOG), name="big")

with DAG("spark_job", max_active_runs=2) as dag:
    trident_transaction(topology, retries=2, retry_delay=timedelta(seconds=1))
