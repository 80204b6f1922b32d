"""The DAGs of the system tests, which are all alike: one topology each. Airflow reads this file as a DAG file.

Files below SYSTEM_TESTS tell a task what to do, so that a test decides, not a clock:

- ``<topology>/fail-<txid>``: raise on the rows of that transaction while this file exists.
- ``<topology>/hold-<txid>``: write the process id to ``here-<txid>-<attempt>``, and wait while this file exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AsyncCallback, DeadlineAlert, PartitionedAssetTimetable
from alarms import told
from batches import LATE_S, LINES, NAMES, ROWS_OF_A_BATCH, TRANSACTIONS

from airflow_trident import (
    Count,
    FixedBatchSpout,
    Function,
    OperationContext,
    SqliteState,
    Topology,
    trident_transaction,
)
from airflow_trident.tasks.deadline import OldestUncommittedDeadline

HOME = Path(os.environ["SYSTEM_TESTS"])


class Split(Function):
    """Splits a line into words, and obeys the files of a test."""

    def __init__(self, topology: str) -> None:
        self.folder = HOME / topology

    def prepare(self, context: OperationContext) -> None:
        self.txid = context.txid
        hold = self.folder / f"hold-{context.txid}"
        if hold.exists():
            here = self.folder / f"here-{context.txid}-{context.attempt}"
            partial = here.with_suffix(".partial")
            partial.write_text(str(os.getpid()))
            partial.rename(here)
        while hold.exists():
            time.sleep(0.02)

    def execute(self, line: str) -> Iterator[str]:
        if (self.folder / f"fail-{self.txid}").exists():
            raise ValueError("told to fail")
        yield from line.split()


def topology(name: str) -> Topology:
    made = Topology(name, asset=name if name == "asset_events" else "")
    words = made.new_stream("lines", FixedBatchSpout("line string", LINES, ROWS_OF_A_BATCH))
    counted = words.each("line", Split(name), "word").group_by("word")
    counted.persistent_aggregate(SqliteState(str(HOME / name / "words.db")), Count(), "count")
    return made


def deadline(name: str) -> DeadlineAlert | None:
    if name != "alarm":
        return None
    callback = AsyncCallback(told, kwargs={"folder": str(HOME / name)})
    return DeadlineAlert(OldestUncommittedDeadline(name), timedelta(seconds=LATE_S), callback)


PLAIN: dict[str, Any] = {"max_pending": TRANSACTIONS, "turn_sensor": False}
ARGUMENTS: dict[str, dict[str, Any]] = {
    # Whoever waits holds the slot for longer than it stays away.
    "one_slot": {"max_transactions": 3, "pool": "one_slot", "deferrable": False, "weight_rule": "downstream"},
}

for _name in NAMES:
    with DAG(
        _name,
        max_active_runs=3,
        default_args={"retries": 1, "retry_delay": timedelta(0)},
        deadline=deadline(_name),
    ) as _dag:
        trident_transaction(topology(_name), engine="local", **ARGUMENTS.get(_name, PLAIN))
    globals()[_name] = _dag

with DAG("after_asset_events", schedule=PartitionedAssetTimetable(assets=Asset("asset_events"))) as after_asset_events:
    EmptyOperator(task_id="after")
