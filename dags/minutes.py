"""The turnover of each minute, by the time in the rows: a window goes over several batches and fires once."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import Count, FileSpout, SqliteState, Sum, Topology, trident_transaction

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))

topology = Topology("minutes")
spout = FileSpout(f"{HOME}/timed/*.csv", format="csv", fields="at timestamp, customer string, cents long", max_files=1)
store = SqliteState(f"{HOME}/minutes.db")
fired = topology.new_stream("orders", spout).tumbling_window(
    timedelta(minutes=1), store, ("cents", Sum(), "turnover"), (Count(), "orders"), time="at", bounds=True
)
fired.partition_persist(store, "window_start, turnover, orders", keys="window_start", name="by_minute")

with DAG("minutes", max_active_runs=2) as dag:
    trident_transaction(topology, engine="local", retries=2)
