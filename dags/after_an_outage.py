"""Many small batches have piled up: one task takes them in groups, but each stays a transaction of its own."""

import os

from airflow.sdk import DAG

from airflow_trident import Count, FileSpout, SqliteState, Topology, TridentDrainOperator

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))

topology = Topology("after_an_outage")
spout = FileSpout(f"{HOME}/piled/*.csv", format="csv", fields="customer string, cents long", max_files=1)
orders = topology.new_stream("orders", spout).group_by("customer")
orders.persistent_aggregate(SqliteState(f"{HOME}/piled.db"), Count(), "orders")

# Without engine="local" it runs on Spark.
with DAG("after_an_outage", max_active_runs=1) as dag:
    TridentDrainOperator(task_id="drain", topology=topology, engine="local", group="auto", retries=2)
