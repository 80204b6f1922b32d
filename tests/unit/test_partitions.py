"""The calendar of partitions, against zoneinfo: keys, moments, changes of clocks, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_trident import FixedBatchSpout, Partitions, Topology
from airflow_trident.errors import ConfigurationError, IncompletePartitionError, PlanError, TridentError
from airflow_trident.protocol.codec import decode_topology, encode_topology
from airflow_trident.protocol.partition_keys import period_of
from airflow_trident.protocol.partitions import PartitionStep, recorded
from airflow_trident.protocol.records import TopologyRecord
from airflow_trident.runtime.partitions import require_complete

BEGINS = {
    PartitionStep.HOUR: "1990-01-01T00:00:00",
    PartitionStep.DAY: "1990-01-01",
    PartitionStep.WEEK: "1990-W01",
    PartitionStep.MONTH: "1990-01",
}
ZONES = [
    *("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"),
    *("America/Sao_Paulo", "Africa/Cairo", "Asia/Beirut", "America/Havana"),  # clocks change at midnight
    "Pacific/Apia",  # went over 2011-12-30
]
MOMENTS = st.datetimes(datetime(1990, 2, 1), datetime(2037, 1, 1), timezones=st.just(UTC))


def calendar(step: PartitionStep, zone: str = "UTC", **more: Any) -> Partitions:
    return Partitions(step, begin=BEGINS[step], timezone="UTC" if step is PartitionStep.HOUR else zone, **more)


@settings(max_examples=300)
@given(step=st.sampled_from(PartitionStep), zone=st.sampled_from(ZONES), moment=MOMENTS)
def test_each_moment_is_in_one_partition_which_follows_on_the_one_before(
    step: PartitionStep, zone: str, moment: datetime
) -> None:
    partitions = calendar(step, zone)
    partition = partitions.of(moment)
    assert partition.start <= moment < partition.end
    assert partitions.parse(partition.key) == partition
    following = partitions.after(partition)
    assert following.start == partition.end
    assert following.key > partition.key
    assert partitions.before(following) == partition
    assert [one.key for one in partitions.between(partition, following)] == [partition.key, following.key]
    assert period_of(partition.key) == partition.key[: {PartitionStep.HOUR: 10, PartitionStep.DAY: 7}.get(step, 4)]


@settings(max_examples=300)
@given(zone=st.sampled_from(ZONES), moment=MOMENTS)
def test_a_day_begins_with_the_first_moment_that_its_clocks_show(zone: str, moment: datetime) -> None:
    partition = calendar(PartitionStep.DAY, zone).of(moment)
    zoned = ZoneInfo(zone)
    assert partition.start.astimezone(zoned).date() == partition.value
    before = partition.start - timedelta(seconds=1)
    assert before.astimezone(zoned).date() < partition.value


@pytest.mark.parametrize(
    ("step", "key", "zone", "start", "hours", "value"),
    [
        (PartitionStep.DAY, "2026-10-25", "Europe/Berlin", "2026-10-24T22:00", 25, date(2026, 10, 25)),
        (PartitionStep.DAY, "2026-03-29", "Europe/Berlin", "2026-03-28T23:00", 23, date(2026, 3, 29)),
        (PartitionStep.DAY, "2018-11-04", "America/Sao_Paulo", "2018-11-04T03:00", 23, date(2018, 11, 4)),
        (PartitionStep.HOUR, "2026-10-25T02:00:00", "UTC", "2026-10-25T02:00", 1, "2026-10-25T02:00:00"),
        (PartitionStep.WEEK, "2026-W53", "UTC", "2026-12-28T00:00", 168, date(2026, 12, 28)),
        (PartitionStep.MONTH, "2026-10", "Europe/Berlin", "2026-09-30T22:00", 745, date(2026, 10, 1)),
    ],
)
def test_a_key_names_a_time(step: PartitionStep, key: str, zone: str, start: str, hours: int, value: object) -> None:
    partition = calendar(step, zone).parse(key)
    begins = datetime.fromisoformat(start).replace(tzinfo=UTC)
    assert (partition.start, partition.end) == (begins, begins + timedelta(hours=hours))
    assert partition.value == value


@pytest.mark.parametrize(
    ("step", "keys"),
    [
        (
            PartitionStep.DAY,
            [None, "", " ", "2026-1-2", "2026-11-31", "26-11-24", "2026-11-24 ", "2026-11-24T00:00:00", 20261124],
        ),
        (PartitionStep.HOUR, ["2026-11-24T05", "2026-11-24T05:30:00", "2026-11-24 05:00:00", "2026-11-24T24:00:00"]),
        (PartitionStep.WEEK, ["2026-48", "2026-W54", "2026-W00", "2025-W53", "2026-W48-1"]),
        (PartitionStep.MONTH, ["2026-13", "2026-1", "2026-11-01", "1989-12"]),
    ],
)
def test_a_key_is_written_in_one_way_and_not_before_the_first_one(step: PartitionStep, keys: list[Any]) -> None:
    for key in keys:
        with pytest.raises(ConfigurationError):
            calendar(step).parse(key)


def test_a_day_that_the_clocks_went_over_is_none() -> None:
    with pytest.raises(ConfigurationError, match="no day 2011-12-30"):
        calendar(PartitionStep.DAY, "Pacific/Apia").parse("2011-12-30")


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": "year"},
        {"step": "hour", "begin": BEGINS[PartitionStep.HOUR], "timezone": "Europe/Berlin"},
        {"begin": "2026-1-1"},
        {"begin": None},
        {"timezone": "Europe/Bärlin"},
        {"timezone": None},
        {"timezone": "localtime"},
        {"timezone": "right/UTC"},
        {"begin": date(2026, 1, 1)},
        {"column": "a b"},
        {"complete_after": "2 hours"},
        {"complete_after": -timedelta(hours=1)},
        {"complete_after": 3600},
        {"empty": "ignore"},
        {"gone": True},
        {"lookback": -1},
        {"lookback": "3"},
    ],
)
def test_a_wrong_calendar_is_refused_where_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises((PlanError, ConfigurationError)):
        Partitions(**{"step": "day", "begin": "2026-01-01", **wrong})


@pytest.mark.parametrize(
    ("now", "error"),
    [
        ("2026-10-26T00:59:59+01:00", IncompletePartitionError),  # the end, and two hours that are none of the zone's
        ("2026-10-26T02:00:00+01:00", None),
        ("2026-10-25T12:00:00+01:00", IncompletePartitionError),
        ("2026-10-24T12:00:00+02:00", IncompletePartitionError),
        ("2026-10-23T12:00:00+02:00", ConfigurationError),
    ],
)
def test_a_partition_is_waited_for_until_it_is_complete(now: str, error: type[TridentError] | None) -> None:
    days = calendar(PartitionStep.DAY, "Europe/Berlin", complete_after="2h")
    partition = days.parse("2026-10-25")
    if error is None:
        require_complete(days, partition, datetime.fromisoformat(now))
        return
    with pytest.raises(error, match="2026-10-26T01:00Z"):
        require_complete(days, partition, datetime.fromisoformat(now))


def test_a_topology_is_bound_as_a_whole() -> None:
    days = calendar(PartitionStep.DAY)
    with pytest.raises(PlanError, match="is bound to 'day'"):
        Topology("shop", partitions="day")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="exactly_once=False"):
        Topology("shop", partitions=days, exactly_once=False)
    with pytest.raises(PlanError, match="does not know where the data of a day are"):
        Topology("shop", partitions=days).new_stream("orders", FixedBatchSpout("a long", [1]))
    unbound, bound = Topology("shop").definition(), Topology("shop", partitions=days).definition()
    assert unbound.differences(bound) == ["the topology's partitions: none -> day of UTC in day"]


@given(
    step=st.sampled_from(PartitionStep),
    zone=st.sampled_from(ZONES),
    column=st.sampled_from(["", "in", "of day", "Tag"]),
    seconds=st.integers(0, 200_000),
)
def test_the_ledger_has_the_calendar_for_readers_without_the_topologys_code(
    step: PartitionStep, zone: str, column: str, seconds: int
) -> None:
    partitions = calendar(step, zone, column=column.replace(" ", "_"), complete_after=timedelta(seconds=seconds))
    definition = Topology("shop", partitions=partitions).definition()
    record = TopologyRecord(name="shop", incarnation="i", definition=definition)
    kept = decode_topology(encode_topology(record, op="o"), "/shop").definition
    assert kept == definition
    assert recorded(kept) == partitions


def test_a_topology_that_gets_another_begin_is_the_same_topology() -> None:
    earlier, later = (
        Topology("shop", partitions=Partitions("day", begin=begin)).definition()
        for begin in ("2026-01-01", "2026-02-01")
    )
    assert earlier != later
    assert earlier.differences(later) == []
    assert recorded(Topology("shop").definition()) is None
