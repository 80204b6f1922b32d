"""New rows of a database table, by rising keys, and a task that queries the sums. Connection: `orders_db`."""

import os

from airflow.sdk import DAG

from airflow_trident import SqliteState, SqlSpout, Sum, Topology, TridentQueryOperator, trident_transaction
from airflow_trident.functions import MapGet

HOME = os.path.abspath(os.environ.get("TRIDENT_DEMO_HOME", ".trident-demo"))

topology = Topology("table_to_counts")
spout = SqlSpout("orders_db", table="orders", fields="customer string, cents long", max_rows=10_000)
orders = topology.new_stream("orders", spout).group_by("customer")
turnover = orders.persistent_aggregate(SqliteState(f"{HOME}/turnover.db"), "cents", Sum(), "turnover")
topology.new_drpc_stream("turnover_of", "customer string").state_query(turnover, "customer", MapGet(), "turnover")

with DAG("table_to_counts", max_active_runs=2, params={"customer": "ann"}) as dag:
    ask = TridentQueryOperator(
        task_id="ask", topology=topology, query="turnover_of", query_args=["{{ params.customer }}"]
    )
    trident_transaction(topology, engine="local", retries=2) >> ask
