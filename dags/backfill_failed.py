"""Replay every FAILED transaction of the word count after its cause is mended, and commit those that waited for it."""

from airflow.sdk import DAG
from word_count import topology

from airflow_trident import TridentBackfillOperator

with DAG("backfill_failed", max_active_runs=1) as dag:
    TridentBackfillOperator(task_id="backfill", topology=topology)
