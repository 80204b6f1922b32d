"""SqlSpout in topologies that are bound to partitions: rows by their time."""

from __future__ import annotations

import datetime
import itertools
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import MemoryState, Partitions, SqlSpout, Sum, Topology
from airflow_trident.contracts.spout import Spout
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, DamagedInputError, PlanError, SourceChangedError
from airflow_trident.io.connections import Connection
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.postgres import running

BERLIN = Partitions("day", begin="2026-01-01", timezone="Europe/Berlin")
UTC_DAYS = Partitions("day", begin="2026-01-01")
LONG_DAY, SHORT_DAY = "2026-10-25", "2026-03-29"
"""Of 25 and of 23 hours."""


class Table:
    """A table of orders in SQLite."""

    def __init__(self, path: Path, kind: str = "TEXT") -> None:
        self.path = path
        self.do(f"CREATE TABLE orders (shop TEXT, cents INTEGER, at {kind})")

    def do(self, statement: str, *parameters: Any) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(statement, parameters)

    def put(self, *rows: tuple[str, int, str]) -> None:
        for row in rows:
            self.do("INSERT INTO orders VALUES (?, ?, ?)", *row)

    def spout(self, **options: Any) -> SqlSpout:
        connection = Connection(conn_type="sqlite", host=str(self.path))
        return SqlSpout(
            "db", table="orders", fields="shop string, cents long", time="at", connection=connection, **options
        )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "orders.db")


def looked_at(spout: Spout, partitions: Partitions, key: str) -> Any:
    return json.loads(json.dumps(spout.bound(partitions).coordinator().partition(partitions.parse(key))))


def cents_of(spout: Spout, partitions: Partitions, key: str) -> list[int]:
    metadata = looked_at(spout, partitions, key)
    if metadata is None:
        return []
    emitter = spout.bound(partitions).emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return sorted(cents for batch in batches for cents in batch.column("cents").to_pylist())


WRITTEN: dict[str, Callable[[datetime.datetime], str]] = {
    "a space": lambda at: at.strftime("%Y-%m-%d %H:%M:%S"),
    "Z": lambda at: at.strftime("%Y-%m-%dT%H:%M:%SZ"),
    "an offset": lambda at: at.isoformat(timespec="milliseconds"),
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize(("key", "hours"), [(LONG_DAY, 25), (SHORT_DAY, 23), ("2026-06-01", 24)])
def test_a_day_of_a_zone_has_its_hours(table: Table, how: str, key: str, hours: int) -> None:
    """A row for each half hour of the days around it."""
    partition = BERLIN.parse(key)
    at = partition.start - datetime.timedelta(hours=2)
    while at < partition.end + datetime.timedelta(hours=2):
        table.put(("a", int(partition.start <= at < partition.end), WRITTEN[how](at)))
        at += datetime.timedelta(minutes=30)
    assert cents_of(table.spout(), BERLIN, key) == [1] * 2 * hours


def test_local_times_without_a_zone_on_the_day_of_25_hours(table: Table) -> None:
    table.put(
        ("a", 1, "2026-10-24 23:59:59.999"),
        ("a", 2, "2026-10-25 00:00:00"),
        ("a", 3, "2026-10-25 02:30:00"),
        ("a", 4, "2026-10-25 02:30:00"),
        ("a", 5, "2026-10-25 23:59:59.999"),
        ("a", 6, "2026-10-26 00:00:00"),
    )
    assert cents_of(table.spout(time_zone="Europe/Berlin"), BERLIN, LONG_DAY) == [2, 3, 4, 5]


def test_a_column_of_days_has_the_partitions_own_day(table: Table) -> None:
    table.put(("a", 1, "2026-10-24"), ("a", 2, "2026-10-25"), ("a", 3, "2026-10-26"))
    assert cents_of(table.spout(), BERLIN, LONG_DAY) == [2]
    hours = Partitions("hour", begin="2026-01-01T00:00:00")
    with pytest.raises(ConfigurationError, match="has days, and no times within them"):
        looked_at(table.spout(), hours, "2026-10-25T05:00:00")


@pytest.mark.parametrize("value", ["yesterday", "2026-10-25 05:00:00+02:00", "1766000000"])
def test_a_column_without_times_is_refused(table: Table, value: str) -> None:
    table.put(("a", 1, value))
    with pytest.raises(ConfigurationError, match="the column 'at' holds"):
        looked_at(table.spout(), UTC_DAYS, "2026-10-25")


def test_a_row_without_a_time_is_an_error_as_it_is_in_no_partition(table: Table) -> None:
    table.put(("a", 1, "2026-10-25 05:00:00"))
    table.do("INSERT INTO orders VALUES ('b', 2, NULL)")
    with pytest.raises(DamagedInputError, match="a row has no 'at', so it is in no partition"):
        looked_at(table.spout(), UTC_DAYS, "2026-10-25")
    table.do("DELETE FROM orders WHERE at IS NULL")
    assert cents_of(table.spout(), UTC_DAYS, "2026-10-25") == [1]


FORMS = ["2026-10-{} 05:00:00", "2026-10-{}T05:00:00", "2026-10-{}T05:00:00Z", "2026-10-{}", "{}/10/2026 05:00:00", ""]


def test_texts_of_times_that_are_written_in_two_ways_are_an_error(tmp_path: Path) -> None:
    """Their order is not that of their times: a row could be in no partition, or in another one."""
    cases = itertools.product(itertools.permutations(FORMS, 2), [(24, 25), (25, 25)])
    for number, ((form, other), days) in enumerate(cases):
        table = Table(tmp_path / f"{number}.db")
        table.put(("a", 1, form.format(days[0])), ("b", 2, other.format(days[1])))
        with pytest.raises((DamagedInputError, ConfigurationError), match="the column 'at' holds"):
            [cents_of(table.spout(), UTC_DAYS, f"2026-10-{day}") for day in range(23, 27)]


def test_a_look_finds_what_came_went_and_changed(table: Table) -> None:
    table.put(("a", 1, "2026-06-01 10:00:00"), ("b", 2, "2026-06-01 11:00:00"), ("b", 9, "2026-06-02 11:00:00"))
    coordinator = table.spout().bound(UTC_DAYS).coordinator()
    before = looked_at(table.spout(), UTC_DAYS, "2026-06-01")
    for change in (
        "UPDATE orders SET cents = 3 WHERE shop = 'a'",
        "INSERT INTO orders VALUES ('c', 1, '2026-06-01 12:00:00')",
        "DELETE FROM orders WHERE shop = 'a'",
    ):
        assert not coordinator.compared(before, looked_at(table.spout(), UTC_DAYS, "2026-06-01"))
        table.do(change)
        now = looked_at(table.spout(), UTC_DAYS, "2026-06-01")
        assert coordinator.compared(before, now)
        before = now


@pytest.mark.parametrize("changed_by", ["", "version"])
def test_rows_that_change_behind_a_look_are_noticed_by_the_read(table: Table, changed_by: str) -> None:
    table.do("ALTER TABLE orders ADD COLUMN version INTEGER DEFAULT 1")
    table.do("INSERT INTO orders VALUES ('a', 1, '2026-06-01 10:00:00', 1)")
    spout = table.spout(changed_by=changed_by)
    metadata = looked_at(spout, UTC_DAYS, "2026-06-01")
    table.do("UPDATE orders SET cents = 3, version = 2")
    emitter = spout.bound(UTC_DAYS).emitter()
    with pytest.raises(SourceChangedError, match="have changed since they were looked at"):
        list(emitter.read(emitter.splits(metadata)[0]))


def test_corrected_rows_replace_the_day(table: Table, tmp_path: Path) -> None:
    topology = Topology("shop", partitions=BERLIN)
    orders = topology.new_stream("orders", table.spout())
    sums = orders.group_by("day, shop").persistent_aggregate(
        MemoryState(str(tmp_path)), "cents", Sum(), "cents", name="sums"
    )
    table.put(("a", 1, "2026-06-01 10:00:00"), ("b", 2, "2026-06-01 11:00:00"), ("b", 9, "2026-06-02 11:00:00"))
    with MemoryLedger("shop") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        runner.run(partitions=["2026-06-01", "2026-06-02"])
        table.do("DELETE FROM orders WHERE shop = 'a'")
        table.put(("b", 5, "2026-06-01 09:00:00"))
        assert runner.run(partitions=["2026-06-01", "2026-06-02"], redo="changed") == [3]
        with sums.spec.factory.make_state(sums.spec) as state:
            found = {(str(day), shop): cents for (day, shop), (cents,) in state.items()}
    assert found == {("2026-06-01", "b"): 7, ("2026-06-02", "b"): 9}


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp"])
def test_instants_of_postgresql(kind: str) -> None:
    postgres, name = running(), f"bound_{kind}"
    times = ["21:59:59.999", "22:00:00", "22:30:00"]
    rows = [f"('a', {place}, '2026-10-24 {at}')" for place, at in enumerate(times, 1)]
    rows += [f"('a', {place}, '2026-10-25 {at}')" for place, at in enumerate(["22:59:59.999", "23:00:00"], 4)]
    with postgres.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        connection.execute(f"CREATE TABLE {name} (shop text, cents int8, at {kind})")
        connection.execute(f"INSERT INTO {name} VALUES {', '.join(rows)}")
        spout = SqlSpout("db", table=name, fields="shop string, cents long", time="at", connection=postgres.connection)
        assert cents_of(spout, BERLIN, LONG_DAY) == [2, 3, 4]
        connection.execute(f"DROP TABLE {name}")


def test_what_does_not_fit_is_refused_when_the_dag_is_built(table: Table) -> None:
    with pytest.raises(PlanError, match="nothing says in which day a row is"):
        Topology("shop", partitions=BERLIN).new_stream("orders", SqlSpout("db", table="x", fields="n long"))
    with pytest.raises(PlanError, match="topology 'shop' is not bound to partitions"):
        Topology("shop").new_stream("orders", table.spout())
    hours = Topology("shop", partitions=Partitions("hour", begin="2026-01-01T00:00:00"))
    with pytest.raises(PlanError, match="an hour comes twice"):
        hours.new_stream("orders", table.spout(time_zone="Europe/Berlin"))
    with pytest.raises(PlanError, match="there is no time zone 'Berlin'"):
        table.spout(time_zone="Berlin")
    with pytest.raises(ConfigurationError, match="without time"):
        SqlSpout("db", table="x", fields="n long", changed_by="version")
