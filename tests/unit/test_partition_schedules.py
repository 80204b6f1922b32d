"""Which DAGs may run a topology that is bound to partitions: their runs must have its keys. Checked while the DAG is
built."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any

import jinja2
import pendulum
import pytest
from airflow.sdk import (
    DAG,
    Asset,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    PartitionedAssetTimetable,
    PartitionedAtRuntime,
)

from airflow_trident import (
    Partitions,
    SqliteState,
    Sum,
    Topology,
    TridentReadySensor,
    trident_transaction,
)
from airflow_trident.errors import ConfigurationError
from airflow_trident.tasks import partition_runs
from tests.fixtures.days import DayFiles

STEPS = {
    "hour": ("0 * * * *", "%Y-%m-%dT%H:%M:%S", "2026-01-01T00:00:00"),
    "day": ("0 0 * * *", "%Y-%m-%d", "2026-01-01"),
    "week": ("0 0 * * 1", "%G-W%V", "2026-W01"),
    "month": ("0 0 1 * *", "%Y-%m", "2026-01"),
}


def topology(step: str = "day", timezone: str = "UTC", **more: Any) -> Topology:
    made = Topology("shop", partitions=Partitions(step, begin=STEPS[step][2], timezone=timezone, **more))
    orders = made.new_stream("orders", DayFiles("in"))
    orders.group_by(f"{step}, shop").persistent_aggregate(SqliteState("shop.db"), "cents", Sum(), "cents", name="sums")
    return made


def cron(expression: str, timezone: str = "UTC", **more: Any) -> CronPartitionTimetable:
    return CronPartitionTimetable(expression, timezone=timezone, **{"run_offset": -1, "key_format": "%Y-%m-%d"} | more)


def build(made: Topology, schedule: Any, **arguments: Any) -> DAG:
    with DAG("shop", schedule=schedule) as dag:
        trident_transaction(made, engine="local", **arguments)
    return dag


@pytest.mark.parametrize("step", STEPS)
def test_the_schedule_that_an_error_names_is_taken(step: str) -> None:
    zone = "UTC" if step == "hour" else "Europe/Berlin"
    with pytest.raises(
        ConfigurationError, match=r"Give the DAG schedule=(CronPartitionTimetable\(.*\)); or "
    ) as refused:
        build(topology(step, zone), None)
    text = str(refused.value).partition("schedule=")[2].partition("; or ")[0]
    dag = build(topology(step, zone), eval(text, {"CronPartitionTimetable": CronPartitionTimetable}))
    assert dag.get_task("shop.emit").on_failure == "skip", "partitions do not need each other"
    assert STEPS[step][0] in text


TICKS = {
    "hour": ("2026-03-29T02:00:00+00:00", "2026-03-29T01:00:00"),
    "day": ("2026-03-30T00:00:00+02:00", "2026-03-29"),
    "week": ("2026-03-30T00:00:00+02:00", "2026-W13"),
    "month": ("2026-04-01T03:00:00+02:00", "2026-03"),
}


@pytest.mark.parametrize("step", STEPS)
def test_the_template_that_an_error_names_gives_the_partition_that_has_ended(step: str) -> None:
    """Around a change of clocks; Airflow gives times in UTC, and intervals of ``@daily`` that begin with their end."""
    made = topology(step, "UTC" if step == "hour" else "Europe/Berlin")
    with pytest.raises(ConfigurationError, match=r'a template: partition="(.*)"') as refused:
        build(made, "@daily")
    template = str(refused.value).partition('partition="')[2].partition('".')[0]
    tick, key = TICKS[step]
    end = pendulum.parse(tick).in_timezone("UTC")
    assert jinja2.Template(template).render(data_interval_end=end, data_interval_start=end) == key
    assert build(made, "@daily", partition=template).task_ids


@pytest.mark.parametrize("partition", ["2026-1-1", "", 5, datetime.date(2026, 1, 1)])
def test_a_partition_that_is_neither_a_template_nor_a_key_is_refused(partition: Any) -> None:
    with pytest.raises(ConfigurationError):
        build(topology(), "@daily", partition=partition)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        (None, "have no partition keys"),
        ("@daily", "have no partition keys"),
        ([Asset("orders")], "have no partition keys"),
        (CronDataIntervalTimetable("0 0 * * *", timezone="UTC"), "have no partition keys"),
        (cron("0 3 * * *"), r"complete_after.*leaves out the last one"),
        (cron("0 0,12 * * *"), "leaves out the last one"),
        (cron("*/5 0 * * *"), "leaves out the last one"),
        (cron("0 0 * * *", run_offset=0), "begins when its day begins"),
        (cron("0 0 * * *", run_offset=1), "begins when its day begins"),
        (CronPartitionTimetable("0 0 * * *", timezone="UTC", key_format="%Y-%m-%d"), "begins when its day begins"),
        (cron("0 0 * * *", key_format="%Y-%m-%dT%H:%M:%S"), "a day is written as 2026-11-24"),
        (cron("0 0 * * *", "Europe/Berlin"), "is in the time zone Europe/Berlin, and the partitions are in UTC"),
    ],
)
def test_a_schedule_without_the_keys_of_the_topology_is_refused(schedule: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        build(topology(), schedule)
    build(topology(), schedule, partition="{{ dag_run.conf['day'] }}")


@pytest.mark.parametrize(
    "schedule",
    [
        cron("@daily"),
        cron("0 0 * * 1-5"),
        cron("0 0 * * *", run_offset=-2),
        PartitionedAssetTimetable(assets=Asset("hours")),
        PartitionedAtRuntime(),
    ],
)
def test_other_schedules_with_keys_are_taken(schedule: Any) -> None:
    build(topology(), schedule)


@pytest.mark.parametrize(
    ("step", "expression", "is_fitting"),
    [
        ("hour", "@hourly", True),
        ("hour", "30 * * * *", False),
        ("hour", "0 0 * * *", True),
        ("week", "@weekly", False),
        ("week", "0 0 * * MON", True),
        ("week", "0 0 1 * 1", False),
        ("month", "@monthly", True),
        ("month", "@quarterly", True),
        ("month", "0 0 1 * 1", False),
        ("month", "0 0 15 * *", False),
    ],
)
def test_a_cron_goes_off_only_where_a_partition_begins(step: str, expression: str, is_fitting: bool) -> None:
    schedule = cron(expression, key_format=STEPS[step][1])
    if is_fitting:
        build(topology(step), schedule)
    else:
        with pytest.raises(ConfigurationError, match=f"after a {step} has begun"):
            build(topology(step), schedule)


def test_airflow_3_2_writes_keys_in_utc_so_a_zone_is_refused_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_runs, "KEYS_IN_ZONES", False)
    build(topology(), cron("0 0 * * *"))
    schedule = cron("0 0 * * *", "Europe/Berlin")
    with pytest.raises(ConfigurationError, match="writes the keys of DAG 'shop' in UTC"):
        build(topology(timezone="Europe/Berlin"), schedule)
    build(topology(timezone="Europe/Berlin"), schedule, partition="{{ partition_key }}")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"max_transactions": 2}, "a run does the one of its key"),
        ({"allow_backfill_runs": True}, "runs of an Airflow backfill do the partitions of their keys"),
        ({"redo": "always"}, "Use 'asked' or 'changed'"),
        ({"group": 2}, "which is no group"),
    ],
)
def test_arguments_that_mean_nothing_for_partitions_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        build(topology(), cron("0 0 * * *"), **arguments)


@pytest.mark.parametrize("arguments", [{"partition": "2026-01-01"}, {"redo": "changed"}])
def test_arguments_for_partitions_are_refused_without_them(arguments: dict[str, Any]) -> None:
    unbound = Topology("shop")
    stream = unbound.new_stream("orders", DayFiles("in"))
    stream.group_by("shop").persistent_aggregate(SqliteState("shop.db"), "cents", Sum(), "cents", name="sums")
    with pytest.raises(ConfigurationError, match="is not bound to partitions"):
        build(unbound, None, **arguments)


def test_outlets_of_a_bound_topology_are_a_warning_and_its_own_asset_is_none() -> None:
    with pytest.warns(UserWarning, match=r"outlets.*Topology\(asset=\.\.\.\)"):
        build(topology(), cron("0 0 * * *"), outlets=[Asset("days")])
    with_asset = topology()
    with_asset.asset = "days"
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        build(with_asset, cron("0 0 * * *"))


@pytest.mark.parametrize("lookback", [0, 2])
def test_tasks_are_mapped_over_the_partitions_of_a_run_that_looks_back(lookback: int) -> None:
    dag = build(topology(lookback=lookback), cron("0 0 * * *"))
    mapped = "shop.transaction.emit" in dag.task_ids
    assert mapped == bool(lookback)
    assert "shop.emit" in build(topology(lookback=2), cron("0 0 * * *"), group=3).task_ids


def test_tasks_that_take_what_is_new_refuse_a_bound_topology(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="this sensor takes what is new"):
        TridentReadySensor(task_id="ready", topology=topology())
