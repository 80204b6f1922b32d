"""The DAG of the system test of days: a week of deliveries, and a DAG that runs when the week is there. Airflow reads
this file as a DAG file.

While the file ``week/hold`` exists, an attempt writes ``week/here-<txid>-<attempt>`` and waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import (
    DAG,
    Asset,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    RollupMapper,
    StartOfWeekMapper,
    WeekWindow,
)

from airflow_trident import (
    FileSpout,
    Function,
    OperationContext,
    Partitions,
    SqliteState,
    Sum,
    Topology,
    trident_transaction,
)

HOME = Path(os.environ["SYSTEM_TESTS"]) / "week"


class Obey(Function):
    """Gives the number, when it may."""

    def prepare(self, context: OperationContext) -> None:
        hold = HOME / "hold"
        if hold.exists():
            (HOME / f"here-{context.txid}-{context.attempt}").touch()
        while hold.exists():
            time.sleep(0.02)

    def execute(self, cents: int) -> Iterator[int]:
        yield cents


topology = Topology("week", partitions=Partitions("day", begin="2026-11-16"), asset="week_days")
files = FileSpout(f"{HOME}/in/day={{partition}}/*.json", format="json", fields="shop string, cents long")
orders = topology.new_stream("orders", files).each("cents", Obey(), "amount long")
sums = orders.group_by("day, shop")
sums.persistent_aggregate(SqliteState(f"{HOME}/week.db"), "amount", Sum(), "cents", name="sums")

cron = CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
with DAG(
    "week",
    schedule=cron,
    start_date=datetime(2026, 11, 17, tzinfo=UTC),
    end_date=datetime(2026, 11, 23, tzinfo=UTC),
    catchup=True,
    max_active_runs=7,
    is_paused_upon_creation=True,
):
    trident_transaction(topology, engine="local", turn_sensor=False, retries=1, retry_delay=timedelta(0))

whole = RollupMapper(upstream_mapper=StartOfWeekMapper(input_format="%Y-%m-%d"), window=WeekWindow())
with DAG("whole_week", schedule=PartitionedAssetTimetable(assets=Asset("week_days"), default_partition_mapper=whole)):
    EmptyOperator(task_id="after")
