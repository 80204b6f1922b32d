"""Keys that are given out again, and rows that come among those that were read: noticed, and the ways out."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from airflow_trident import Count, SqliteState, SqlSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, SourceChangedError, TransitionError
from airflow_trident.io.connections import Connection
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import coordinate
from airflow_trident.runtime.repair import accept_source
from airflow_trident.types import Json


class Table:
    """A table whose keys begin at 1, and what spouts begin with it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rows.db"
        self.database = sqlite3.connect(self.path, isolation_level=None)
        self.database.execute("CREATE TABLE t (id integer, v text)")

    def put(self, *keys: int) -> None:
        self.database.executemany("INSERT INTO t VALUES (?, ?)", [(key, f"v{key}") for key in keys])

    def remove(self, where: str) -> None:
        self.database.execute(f"DELETE FROM t WHERE {where}")

    def spout(self, **options: str) -> SqlSpout:
        where = Connection(conn_type="sqlite", host=str(self.path))
        source = options.pop("query", None)
        what = {"query": source} if source else {"table": "t"}
        return SqlSpout("db", fields="id long, v string", connection=where, **what, **options)  # type: ignore[arg-type]

    def begin(self, previous: Json, **options: str) -> Json:
        return self.spout(**options).coordinator().initialize_transaction(2, previous)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    table = Table(tmp_path)
    with closing(table.database):
        yield table


READ: Json = {"from": None, "to": 5, "rows": 5}


@pytest.mark.parametrize("query", ["", "SELECT * FROM t"])
def test_a_database_that_lost_its_last_writes_is_noticed_before_its_keys_are_given_out_again(
    table: Table, query: str
) -> None:
    table.put(1, 2, 3, 4, 5)
    assert table.begin(None, query=query) == READ
    assert table.begin(READ, query=query) is None
    table.remove("id > 2")
    with pytest.raises(SourceChangedError, match=r"highest key of SqlSpout.* is 2, and the keys up to 5 were read"):
        table.begin(READ, query=query)
    with pytest.raises(SourceChangedError, match="is 2, and the keys up to 5 were read"):
        table.spout(query=query).coordinator().is_ready(READ)
    assert not table.spout(query=query, on_data_loss="continue").coordinator().is_ready(READ)
    table.put(3, 4)
    with pytest.raises(SourceChangedError, match=r"is 4, and .* Let its keys go on above 5, and give such keys"):
        table.begin(READ, query=query)
    table.database.execute("UPDATE t SET id = id + 3 WHERE id > 2")  # as the error says
    assert table.begin(READ, query=query) == {"from": 5, "to": 7, "rows": 2}


def test_rows_that_were_read_may_be_removed_from_the_front_or_all(table: Table) -> None:
    table.put(1, 2, 3, 4, 5)
    table.remove("id < 5")
    assert table.begin(READ) is None
    table.remove("true")
    assert table.begin(READ) is None
    table.put(6, 7)
    assert table.begin(READ) == {"from": 5, "to": 7, "rows": 2}


@pytest.mark.parametrize("late", [3, 5])
def test_a_row_that_comes_among_the_last_ones_that_were_read_is_not_left_out_silently(table: Table, late: int) -> None:
    table.put(1, 2, 3, 4, 5)
    table.put(late, 6)
    with pytest.raises(SourceChangedError, match=r"1 rows of .* with keys up to 5 after .*recorded 5 there"):
        table.begin(READ)
    table.database.execute("UPDATE t SET id = 7 WHERE rowid = 6")  # as the error says
    assert table.begin(READ) == {"from": 5, "to": 7, "rows": 2}


def test_a_person_may_go_on_without_such_rows_and_their_number_is_recorded(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.put(1, 2, 3, 4, 5)
    table.put(5, 5)
    assert table.begin(READ, on_data_loss="continue") is None
    table.put(6)
    with caplog.at_level(logging.WARNING):
        passed = table.begin(READ, on_data_loss="continue")
    assert passed == {"from": 5, "to": 6, "rows": 1, "lost": 2}
    assert "2 rows of SqlSpout" in caplog.text
    [split] = table.spout().emitter().splits(passed)
    assert [batch.to_pylist() for batch in table.spout().emitter().read(split)] == [[{"id": 6, "v": "v6"}]]
    assert table.begin(passed) is None, "nobody needs to say it again"
    table.remove("id > 2")
    assert table.begin(passed, on_data_loss="continue") is None
    with pytest.raises(ConfigurationError, match="Use one of error, continue"):
        table.spout(on_data_loss="hide")


def test_a_transaction_that_is_not_committed_takes_the_rows_that_are_there_now(table: Table, tmp_path: Path) -> None:
    ledger, topology = MemoryLedger("rows"), Topology("rows")
    counted = topology.new_stream("rows", table.spout()).group_by("v")
    counted.persistent_aggregate(SqliteState(str(tmp_path / "state.db")), Count(), "count", name="counts")
    table.put(1, 2, 3)
    coordinate(ledger, topology, [Claim(key="first")])
    with pytest.raises(TransitionError, match="as it was recorded"):
        accept_source(ledger, topology, 1, "nothing has changed")
    table.put(3, 4)
    with pytest.raises(SourceChangedError, match=r"if that transaction is not committed.*accept-source"):
        coordinate(ledger, topology, [Claim(key="second")])

    accept_source(ledger, topology, 1, "a row came late")
    Backfill(
        ledger=ledger, topology=topology, engine=LocalEngine, staging_root=str(tmp_path / "staging"), owner="backfill"
    ).run(Selection(failed=True))
    record = ledger.view(1).tx
    assert record is None or record.status is Status.COMMITTED
    with LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        assert runner.run() == [2]
    with closing(sqlite3.connect(tmp_path / "state.db")) as state:
        assert dict(state.execute("SELECT v, count FROM rows_counts")) == {"v1": 1, "v2": 1, "v3": 2, "v4": 1}


def test_where_no_recorded_row_is_left_there_is_nothing_to_take(table: Table) -> None:
    coordinator = table.spout().coordinator()
    table.put(2)
    assert coordinator.accept_source({**READ, "lost": 1}) == {"from": None, "to": 5, "rows": 1, "lost": 1}
    table.remove("true")
    with pytest.raises(SourceChangedError, match="has 0 rows"):
        coordinator.accept_source(READ)
