"""Sum orders by customer: from csv files that appear in a folder to a Delta table that any engine can read."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import Count, DeltaState, FileSpout, Sum, Topology, trident_transaction

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))

topology = Topology("files_to_delta")
orders = topology.new_stream(
    "orders", FileSpout(f"{HOME}/orders/*.csv", format="csv", fields="customer string, cents long", max_files=100)
)
by_customer = orders.group_by("customer")
by_customer.persistent_aggregate(DeltaState(f"{HOME}/delta"), "cents", Sum(), "total_cents")
by_customer.persistent_aggregate(DeltaState(f"{HOME}/delta"), Count(), "orders")

with DAG("files_to_delta", max_active_runs=2) as dag:
    trident_transaction(topology, retries=2, retry_delay=timedelta(seconds=10))
