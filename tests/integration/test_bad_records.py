"""A record that a function cannot take: the ways out, as docs/how-to/red-run.md describes them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_trident import Count, FileSpout, SpooledSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import SourceChangedError, TransitionError, TridentError, UserCodeError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.runtime.repair import accept_source
from airflow_trident.spouts import CallableSource, Spout


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = MemoryLedger("fruit")
        self.topology = Topology("fruit")
        lines = self.topology.new_stream("lines", FileSpout(str(folder / "in"), max_files=1))
        numbers = lines.each("line", lambda line: (int(line),), "n long")
        numbers.group_by("n").persistent_aggregate(SqliteState(str(folder / "a.db")), Count(), "count", name="counts")
        (folder / "in").mkdir()

    def put(self, name: str, content: str) -> None:
        (self.folder / "in" / name).write_text(content)

    def run(self) -> list[int]:
        with LocalEngine() as engine:
            return LocalRunner(
                ledger=self.ledger, topology=self.topology, engine=engine, staging_root=str(self.folder / "staging")
            ).run()

    def replay(self) -> None:
        Backfill(
            ledger=self.ledger,
            topology=self.topology,
            engine=LocalEngine,
            staging_root=str(self.folder / "staging"),
            owner="backfill",
        ).run(Selection(failed=True))

    def counts(self) -> dict[int, int]:
        with closing(sqlite3.connect(self.folder / "a.db")) as db:
            return dict(db.execute("SELECT n, count FROM fruit_counts"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.put("1.txt", "1\n2\n")
    world.put("2.txt", "1\ntwo\n3\n")
    with pytest.raises(UserCodeError, match=r"line='two'.*accept-source"):
        world.run()
    return world


def test_a_file_that_is_mended_in_its_place_is_taken_after_a_persons_word(world: World) -> None:
    world.put("2.txt", "1\n22\n3\n")
    world.replay()
    record = world.ledger.view(2).tx
    assert record is not None
    assert record.status is Status.FAILED
    assert "changed since the transaction recorded it" in record.error
    assert "accept-source" in record.error
    assert "line='two'" in record.first_error, "what was wrong first is still known"
    accept_source(world.ledger, world.topology, 2, "line 2 was no number")
    world.replay()
    assert world.counts() == {1: 2, 2: 1, 22: 1, 3: 1}
    world.put("3.txt", "3\n")
    assert world.run() == [3], "the mended file is a read one, and nothing stands in the way"
    assert world.counts() == {1: 2, 2: 1, 22: 1, 3: 2}
    with pytest.raises(TransitionError, match="it is COMMITTED"):
        accept_source(world.ledger, world.topology, 2, "again")


def test_later_transactions_that_were_begun_before_know_the_mended_file(world: World) -> None:
    world.put("3.txt", "3\n")
    coordinate(world.ledger, world.topology, [Claim(key="while 2 is FAILED")])
    assert world.ledger.view(3).tx is not None
    world.put("2.txt", "2\n")
    accept_source(world.ledger, world.topology, 2, "rewritten")
    world.replay()
    world.put("4.txt", "4\n")
    world.run()
    assert world.counts() == {1: 1, 2: 2, 3: 1, 4: 1}


def test_a_skipped_one_comes_again_under_a_new_name(world: World) -> None:
    world.ledger.skip(2, "line 2 is no number")
    (world.folder / "in" / "2.txt").unlink()
    world.put("2-mended.txt", "1\n22\n3\n")
    world.run()
    assert world.counts() == {1: 2, 2: 1, 22: 1, 3: 1}


def test_a_file_that_is_gone_cannot_be_accepted(world: World) -> None:
    (world.folder / "in" / "2.txt").unlink()
    with pytest.raises(SourceChangedError, match="is gone"):
        accept_source(world.ledger, world.topology, 2, "gone")


# ---- rows that nobody else may read ----------------------------------------------------------------------------

SECRET = "iban=DE00 1234"


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("where", ["function", "file", "commit", "source"])
def test_rows_are_kept_out_of_the_ledger_where_that_is_asked_for(tmp_path: Path, where: str, rows: bool) -> None:
    ledger, topology = MemoryLedger("pay"), Topology("pay")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text(f"n\n{SECRET}\n")
    staging, attempts = str(tmp_path / "staging"), Attempts(owner="it", last_try=True, rows_in_errors=rows)

    def refuse(*_: object) -> bool:
        raise ValueError(f"cannot use {SECRET}")

    if where == "source":
        spout: Spout = SpooledSpout(CallableSource(refuse, "n string"), str(tmp_path / "spool"))
    else:
        kind = "long" if where == "file" else "string"
        spout = FileSpout(str(tmp_path / "in"), format="csv", fields=f"n {kind}")
    stream = topology.new_stream("s", spout)
    if where == "function":
        stream = stream.filter("n", refuse)
    counted = stream.group_by("n").persistent_aggregate(SqliteState(str(tmp_path / "a.db")), Count(), "c", name="a")
    if where == "commit":
        told = counted.new_values_stream().filter("n", refuse)
        told.group_by("n").persistent_aggregate(SqliteState(str(tmp_path / "b.db")), Count(), "c", name="b")
    ledger.register(topology.definition())
    with LocalEngine() as engine:
        committer = Committer(
            ledger=ledger, topology=topology, staging_root=staging, attempts=attempts, engine=lambda: engine
        )
        with pytest.raises(TridentError):
            run_one(ledger, topology, engine, committer)
    kept = json.dumps(ledger.export()) + str(ledger.coordinator())
    assert (SECRET in kept) == rows
    assert ("is in the task's log alone" in kept) == (not rows)


def run_one(ledger: MemoryLedger, topology: Topology, engine: LocalEngine, committer: Committer) -> None:
    attempts = committer.attempts
    coordinate(ledger, topology, [Claim(key="r")], rows_in_errors=attempts.rows_in_errors)
    process(ledger, topology, 1, engine, committer.staging_root, attempts)
    committer.commit(1)
