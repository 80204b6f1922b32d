"""Count page views by page: from a Kafka topic to a PostgreSQL table. Each record is counted once.

Connections: `kafka_default` (its extras: {"bootstrap.servers": "host:9092"}) and `postgres_default`.
"""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_trident import Count, KafkaSpout, PostgresState, Topology, TridentReadySensor, trident_transaction

topology = Topology("kafka_to_postgres")
views = topology.new_stream(
    "views", KafkaSpout("page-views", conn_id="kafka_default", fields="value string", max_rows=500_000)
)
views.group_by("value").persistent_aggregate(PostgresState("postgres_default", "page_views"), Count(), "views")

with DAG("kafka_to_postgres", max_active_runs=2) as dag:
    ready = TridentReadySensor(task_id="ready", topology=topology, poke_interval=30)
    ready >> trident_transaction(topology, retries=3, retry_delay=timedelta(seconds=10))
