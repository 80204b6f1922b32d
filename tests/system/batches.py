"""The data of the system tests, for the tests and, copied beside them, for their DAGs. Needs nothing of Airflow."""

from __future__ import annotations

NAMES = (
    "deadlock_rest",
    "deadlock_cli",
    "kill_process",
    "kill_scheduler",
    "clear_running",
    "mark_failed",
    "clear_committed",
    "asset_events",
    "one_slot",
    "alarm",
)
SCRIPTS = ("script_kills",)
WEEK = "week"
"""The DAG and the topology of the test of days."""
TRANSACTIONS = 5
LATE_S = 1
"""A run of `alarm` is late this number of seconds after the oldest uncommitted transaction began."""
ROWS_OF_A_BATCH = 4
LINES = [
    (f"line {number} has word{number % 7} and word{number % 3}",) for number in range(TRANSACTIONS * ROWS_OF_A_BATCH)
]
