"""A topology that is bound to days, in a real Airflow (``dag.test()``): keys of runs, events with keys."""

from __future__ import annotations

import pytest

from tests.fixtures.airflow import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

DAG = """
from airflow.sdk import DAG, CronPartitionTimetable
from airflow_trident import SqliteState, Sum, Topology, trident_transaction
from tests.fixtures.days import DAYS, DayFiles

topology = Topology("shop", partitions=DAYS, asset="shop_days")
sums = topology.new_stream("orders", DayFiles("FOLDER/in")).group_by("day, shop")
sums.persistent_aggregate(SqliteState("FOLDER/shop.db"), "cents", Sum(), "cents", name="sums")
cron = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", run_offset=-1, key_format="%Y-%m-%d")
with DAG("shop", schedule=cron) as dag:
    trident_transaction(topology, engine="local")
"""
PROGRAM = """
from pathlib import Path
from shop import dag, topology
from tests.fixtures.days import deliver

folder = Path("FOLDER/in")

def play(key=None, **more):
    run = dag.test(run_conf={"trident": {"partition": key, **more}} if key else None)
    return {ti.task_id.removeprefix("shop."): ti.state for ti in run.get_task_instances()}

def rows():
    (spec,) = topology.states.values()
    with spec.factory.make_state(spec) as state:
        return sorted([str(key[0]), key[1], value[0]] for key, value in state.items())

def events():
    from airflow.models.asset import AssetEvent
    from airflow.utils.session import create_session
    with create_session() as session:
        every = session.query(AssetEvent).order_by(AssetEvent.id)
        return [[event.partition_key, *(event.extra[name] for name in ("partition", "n", "txid"))] for event in every]
"""


def test_a_run_does_the_day_of_its_conf_each_commit_has_an_event_with_the_day_and_a_run_without_a_day_fails(
    airflow_home: AirflowHome,
) -> None:
    folder = str(airflow_home.folder)
    airflow_home.write_dag("shop", DAG.replace("FOLDER", folder))
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    result = airflow_home.python(
        PROGRAM.replace("FOLDER", folder)
        + """
monday, tuesday = "2026-11-23", "2026-11-24"
deliver(folder, tuesday, [("a", 2)])
deliver(folder, monday, [("a", 1), ("b", 5)])
runs = [play(tuesday), play(monday), play(monday, redo=False), play()]
deliver(folder, monday, [("b", 7)])
runs += [play(monday, redo=False)]
tell({"runs": runs, "rows": rows(), "events": events()})
"""
    )
    green, skipped = (
        dict.fromkeys(("coordinate", "emit", "turn", "commit"), state) for state in ("success", "skipped")
    )
    assert result["runs"][:3] == [green, green, skipped]
    assert result["runs"][3]["coordinate"] == "failed"
    assert result["runs"][4] == green
    assert result["rows"] == [["2026-11-23", "b", 7], ["2026-11-24", "a", 2]]
    assert result["events"] == [
        ["2026-11-24", "2026-11-24", 1, 1],
        ["2026-11-23", "2026-11-23", 1, 2],
        ["2026-11-23", "2026-11-23", 2, 3],
    ]
    assert "dags trigger shop --conf" in airflow_home.output


CLASSIC = """
from airflow.sdk import DAG
from airflow_trident import SqliteState, Sum, Topology, trident_transaction
from tests.fixtures.days import DAYS, DayFiles

topology = Topology("shop", partitions=DAYS)
sums = topology.new_stream("orders", DayFiles("FOLDER/in")).group_by("day, shop")
sums.persistent_aggregate(SqliteState("FOLDER/shop.db"), "cents", Sum(), "cents", name="sums")
day = "{{ data_interval_end.in_timezone('Europe/Berlin').subtract(days=1).strftime('%Y-%m-%d') }}"
with DAG("shop", schedule="@daily") as dag:
    trident_transaction(topology, engine="local", partition=day)
"""


def test_a_template_gives_the_runs_of_a_classic_schedule_their_days(airflow_home: AirflowHome) -> None:
    """In each release of Airflow: 3.1 knows no partitions."""
    folder = str(airflow_home.folder)
    airflow_home.write_dag("shop", CLASSIC.replace("FOLDER", folder))
    airflow_home.options["PYTHONPATH"] = f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}"
    result = airflow_home.python(
        PROGRAM.replace("FOLDER", folder)
        + """
from datetime import datetime, timezone
deliver(folder, "2026-11-23", [("a", 2)])
deliver(folder, "2026-11-24", [("b", 3)])
runs = [dag.test(logical_date=datetime(2026, 11, day, tzinfo=timezone.utc)).state for day in (24, 25)]
tell({"runs": runs, "rows": rows()})
"""
    )
    assert result == {"runs": ["success", "success"], "rows": [["2026-11-23", "a", 2], ["2026-11-24", "b", 3]]}
