"""Copy-on-write in topologies: processed again if somebody wrote before the commit, and once in the end."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.contracts.state import Marker
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    LateBatchError,
    UserCodeError,
)
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, process
from airflow_trident.states.tables.appending import AppendingState
from airflow_trident.testing import MemoryLedger
from tests.contracts.test_tables_on_s3 import FACTORIES
from tests.fixtures import single
from tests.fixtures.object_store import CONN_ID, VARIABLE, Lake
from tests.fixtures.outage import Outage
from tests.fixtures.rewrites import (
    KINDS,
    Row,
    appended,
    files_in,
    found,
    keyed,
)
from tests.fixtures.state import SINKS
from tests.fixtures.table import ForeignTable


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ForeignTable:
    return keyed(tmp_path, request.param)


# ---- in a topology ---------------------------------------------------------------------------------------------

BATCHES = [(1, "a", 1, False), (2, "b", 1, False), (2, "old", 1, False), (2, "c", 2, False), (1, None, 1, True),
           (3, "d", 1, None)]  # fmt: skip


def topology(table: ForeignTable, rows: list[Row], most: int = 2, into: Any = None, **options: Any) -> Topology:
    made = Topology("words")
    spout = FixedBatchSpout("id long, word string, at long, gone boolean", rows, most)
    stream = made.new_stream("changes", spout)
    stream.persist_table(into or SINKS[table.sink](table.folder), mode="rewrite", keys="id", **options)
    return made


def run(table: ForeignTable, rows: list[Row], engine: Any = None, **options: Any) -> None:
    with MemoryLedger("words") as ledger:
        LocalRunner(
            ledger=ledger,
            topology=topology(table, rows, **options),
            engine=engine or LocalEngine(),
            staging_root=str(table.folder / "staging"),
        ).run()


def marker_of(made: Topology) -> Marker:
    (spec,) = made.states.values()
    with spec.factory.make_state(spec) as state:
        marker = state.marker()
    assert marker is not None
    return marker


def test_a_topology_keeps_one_row_of_each_key(table: ForeignTable) -> None:
    run(table, BATCHES, order_by="at", deleted="gone")
    assert found(table) == [(2, "c"), (3, "d")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("spark_engine", kind) for kind in KINDS),
        *(pytest.param("connect_engine", kind, marks=pytest.mark.rare) for kind in KINDS),
    ],
)
def test_spark_writes_the_files_anew(name: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    table, spark_engine = keyed(tmp_path, kind), request.getfixturevalue(name)
    rows = [(number, f"first {number}", 1, False) for number in range(40)]
    rows += [(number, f"second {number}", 1, number % 2 == 0) for number in range(30, 50)]
    run(table, rows, spark_engine, most=20, deleted="gone")
    kept = {number: f"first {number}" for number in range(30)}
    kept |= {number: f"second {number}" for number in range(31, 50, 2)}
    assert found(table) == sorted(kept.items())
    assert marker_of(topology(table, rows, most=20, deleted="gone")).high == 3


@pytest.mark.parametrize(
    ("kind", "staging"),
    [
        ("delta", "a folder"),
        ("iceberg", "the bucket"),
        pytest.param("delta", "the bucket", marks=pytest.mark.rare),
        pytest.param("iceberg", "a folder", marks=pytest.mark.rare),
    ],
)
def test_a_table_in_a_bucket_is_rewritten_and_workers_without_its_connection_read_it(
    kind: str, staging: str, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topology(keyed(tmp_path), BATCHES, into=FACTORIES[kind](lake.name, tmp_path), order_by="at", deleted="gone")
    root = f"s3://{CONN_ID}@{lake.name}/staging" if staging == "the bucket" else str(tmp_path / "staging")
    monkeypatch.setattr(AppendingState, "_rewritten", None)  # the committer writes no file of the table anew
    with MemoryLedger("words") as ledger:
        LocalRunner(ledger=ledger, topology=made, engine=LocalEngine(), staging_root=root).run()
    spec = made.states["rows"]
    with spec.factory.make_state(spec) as state:
        sent = pickle.dumps(state.committed())
    monkeypatch.delenv(VARIABLE)
    read = pickle.loads(sent)
    rows = [row for place in range(len(read.paths)) for piece in read.pieces(place) for row in piece.to_pylist()]
    assert sorted((row["id"], row["word"]) for row in rows) == [(2, "c"), (3, "d")]


def test_null_keys_and_two_rows_of_a_key_are_one_error_of_processing(table: ForeignTable) -> None:
    with pytest.raises(UserCodeError, match=r"transaction 1 has no 'id', a key of .* \(id=None\).*is_not_null"):
        run(table, [(1, "a", 1, False), (None, "b", 1, False)])
    with pytest.raises(UserCodeError, match=r"same key of state 'rows' \(id=1\) in transaction 1 and nothing says"):
        run(table, [(1, "a", 1, False), (1, "b", 1, False)])


class Work:
    """A topology step by step, with one committer for each step."""

    def __init__(self, table: ForeignTable, ledger: Any, rows: list[Row]) -> None:
        self.table, self.ledger = table, ledger
        self.topology = topology(table, rows)
        self.root = str(table.folder / "staging")
        self.lines: list[str] = []
        self.runs = 0

    def process(self) -> int:
        self.runs += 1
        begun: Any = single.coordinate(self.ledger, self.topology, Claim(key=f"run-{self.runs}"))
        process(self.ledger, self.topology, begun.txid, LocalEngine(), self.root, Attempts(owner="test"))
        txid: int = begun.txid
        return txid

    def commit(self, txid: int) -> None:
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.root,
            attempts=Attempts(owner="test"),
            engine=LocalEngine,
            progress=self.lines.append,
        )
        committer.commit(txid, take_over=True)
        assert self.ledger.view(txid).tx.status is Status.COMMITTED


def test_a_batch_is_processed_again_if_somebody_wrote_before_its_commit(table: ForeignTable) -> None:
    with MemoryLedger("words") as ledger:
        work = Work(table, ledger, [(1, "a", 1, False), (2, "b", 1, False), (2, "c", 1, False)])
        work.commit(work.process())
        txid = work.process()
        appended(table, _foreign(2, "theirs"))
        work.commit(txid)
        assert ledger.view(txid).tx.attempt == 1
        assert any("others have written to the" in line for line in work.lines)
    assert found(table) == [(1, "a"), (2, "c")]


def test_a_commit_of_which_the_ledger_knows_only_the_gate_ends_as_one(
    table: ForeignTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has it, the ledger says COMMITTING, and then also the staged batch is gone: a replay finds it there."""
    with MemoryLedger("words") as ledger:
        work = Work(table, ledger, [(1, "a", 1, False), (2, "b", 1, False), (2, "c", 1, False), (3, "d", 1, False)])
        for txid in (1, 2):
            assert work.process() == txid
            with monkeypatch.context() as patch:
                patch.setattr(type(ledger), "committed", _dead)
                with pytest.raises(KeyboardInterrupt):
                    work.commit(txid)
            files = files_in(table)
            assert ledger.view(txid).tx.status is Status.COMMITTING
            shutil.rmtree(work.root)
            work.commit(txid)
            assert files_in(table) == files
    assert found(table) == [(1, "a"), (2, "c"), (3, "d")]


def test_a_transaction_that_was_skipped_cannot_come_late(table: ForeignTable) -> None:
    with MemoryLedger("words") as ledger:
        work = Work(table, ledger, [(1, "a", 1, False), (2, "b", 1, False), (2, "c", 1, False), (3, "d", 1, False)])
        txid = work.process()
        ledger.skip(txid, "a person said so")
        work.commit(work.process())
        with pytest.raises(LateBatchError, match="depends on the order"):
            process(ledger, work.topology, txid, LocalEngine(), work.root, Attempts(owner="test"))
    assert found(table) == [(2, "c"), (3, "d")]


class OutageBeforeTheSecond(FixedBatchSpout):
    """`begin` is called when the second batch is chosen."""

    begin: Callable[[], None]

    def coordinator(self) -> Any:
        made, begin = super().coordinator(), self.begin

        class Choosing(type(made)):  # type: ignore[misc]
            def initialize_transaction(self, txid: int, previous: Any) -> Any:
                found = super().initialize_transaction(txid, previous)
                if txid == 2 and found is not None:
                    begin()
                return found

        return Choosing(made.total_rows, made.max_batch_size)


def test_an_attempt_of_a_drain_that_cannot_read_the_table_fails_and_is_tried_again(tmp_path: Path) -> None:
    table, outage, said = keyed(tmp_path), Outage(tmp_path / "sales" / "_delta_log"), list[str]()
    table.opened().close()
    made = Topology("words")
    spout = OutageBeforeTheSecond("id long, word string, gone boolean", [(1, "a", None), (1, "b", None)], 1)
    spout.begin = outage.begin
    stream = made.new_stream("changes", spout)
    stream.persist_table(SINKS[table.sink](tmp_path), mode="rewrite", keys="id", deleted="gone")

    def progress(line: str) -> None:
        said.append(line)
        if "attempt 0 failed" in line:
            outage.end()

    with MemoryLedger("words") as ledger:
        done = Drain(
            ledger=ledger,
            topology=made,
            engine=LocalEngine(),
            staging_root=str(tmp_path / "staging"),
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain"),
            progress=progress,
        ).run()
        tx = ledger.view(2).tx
        assert tx is not None
        assert (done.committed, tx.attempt) == ((1, 2), 1)
    assert any("transaction 2, attempt 0 failed: " in line and "cannot be read" in line for line in said), said
    assert found(table) == [(1, "b")]


def _foreign(key: int, word: str) -> pa.Table:
    return pa.table({"id": [key], "word": [word], "at": [0], "gone": [False]})


def _dead(*_args: Any, **_options: Any) -> None:
    raise KeyboardInterrupt
