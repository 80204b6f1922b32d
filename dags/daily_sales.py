"""Sum the sales of each day. A day with late or corrected files is processed again, and replaces its old result."""

import os
from datetime import timedelta

from airflow.sdk import DAG, CronPartitionTimetable

from airflow_trident import DeltaTable, FileSpout, Partitions, SqliteState, Sum, Topology, trident_transaction

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))

topology = Topology("daily_sales", partitions=Partitions("day", begin="2026-01-01"))
sales = topology.new_stream(
    "sales", FileSpout(f"{HOME}/sales/day={{partition}}/*.csv", format="csv", fields="shop string, cents long")
)
sales.persist_table(DeltaTable(f"{HOME}/lake/sales", partition_by="day"), name="lake")
by_shop = sales.group_by("day, shop")
by_shop.persistent_aggregate(SqliteState(f"{HOME}/sales.db"), "cents", Sum(), "total_cents")

# A run at midnight has the key of the day that is over.
schedule = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
with DAG("daily_sales", schedule=schedule, catchup=False, max_active_runs=3) as dag:
    trident_transaction(topology, retries=2, retry_delay=timedelta(seconds=10))
