"""Exactly-once batches on Airflow and Spark."""
