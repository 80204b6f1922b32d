"""Keep the big orders: from csv objects that appear in a bucket to an Iceberg table that any engine can read.

The staged batches are in the bucket, too, so workers share only the bucket and the table's warehouse.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import FileSpout, IcebergTable, Topology, trident_transaction
from airflow_trident.functions import col

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))
BUCKET = os.environ.get("TRIDENT_DEMO_BUCKET", "s3://objects@trident")  # "objects": a connection of type aws

topology = Topology("s3_to_iceberg")
orders = topology.new_stream(
    "orders", FileSpout(f"{BUCKET}/orders/*.csv", format="csv", fields="customer string, cents long", max_files=100)
)
orders.filter(col("cents") >= 100).persist_table(
    IcebergTable(
        "sales.big_orders",
        properties={"type": "sql", "uri": f"sqlite:///{HOME}/catalog.db", "warehouse": f"file://{HOME}/warehouse"},
    ),
    name="big_orders",
)

with DAG("s3_to_iceberg", max_active_runs=2) as dag:
    trident_transaction(
        topology, engine="local", staging_dir=f"{BUCKET}/staging", retries=2, retry_delay=timedelta(seconds=10)
    )
