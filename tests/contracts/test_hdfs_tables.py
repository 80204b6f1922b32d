"""A ParquetTable in a real HDFS: every request may be lost, and committers are killed and overtaken."""

from __future__ import annotations

import pickle
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import ParquetTable, TableSpout
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import Applied
from airflow_trident.contracts.upkeep import View, ViewDialect
from airflow_trident.engine.spark.views import publish_view
from airflow_trident.errors import ConfigurationError, FencedError, OutcomeUnknownError, TableChangedError
from airflow_trident.runtime.upkeep import latest_query
from airflow_trident.staging.hdfs_storage import LEFT_DAYS, UNFINISHED, HdfsStorage
from airflow_trident.staging.parquet_versions import DATA, LISTS, VERSIONS
from tests.contracts.test_parquet_table import rows, spec_of
from tests.contracts.test_table_upserts import changes, changes_table, three
from tests.faults.http_proxy import Verdict, pass_all
from tests.fixtures.hdfs import CONN_ID, VARIABLE, Cluster, Folder
from tests.fixtures.program import run_code
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import TABLES, ForeignParquetTable, before_the_commit, staged

pytestmark = pytest.mark.rare
_MANY = 40_000
"""Rows of a file of several parts."""


def table_on(uri: str, folder: Path) -> ForeignParquetTable:
    table = ForeignParquetTable(folder)
    table.spec = replace(table.spec, factory=ParquetTable(f"{uri}/sales"))
    return table


@pytest.mark.parametrize("verdict", [Verdict.UNAVAILABLE, Verdict.LOSE], ids=lambda one: one.name)
def test_every_request_of_a_commit_may_fail_once_and_it_is_there_once(
    folder: Folder, tmp_path: Path, verdict: Verdict
) -> None:
    factory, places = ParquetTable(f"{folder.uri}/sales"), 0
    with factory.make_state(spec_of(factory)) as state:
        for txid in range(1, 40):
            left = iter([Verdict.PASS] * (txid - 1) + [verdict])
            folder.proxy.harmed, folder.proxy.rule = 0, lambda request: next(left, Verdict.PASS)  # noqa: B023
            try:
                state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
            except OutcomeUnknownError:  # as tasks do
                assert state.apply_files(ticket(txid, fence=99), staged(tmp_path, ("a", txid))) in Applied
            folder.proxy.rule = pass_all
            assert rows(factory) == [("a", number) for number in range(1, txid + 1)]
            if not folder.proxy.harmed:
                break
            places += 1
    assert places > 9


WORKER = """
import os, signal, sys
from pathlib import Path
from tests.contracts.test_hdfs_tables import table_on
from tests.fixtures.state import ticket
from tests.fixtures.table import staged

uri, folder, when = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
table = table_on(uri, folder)
state = table.opened()
owner = table.steps[table.decisive](state)
step = getattr(owner, table.decisive)


def stepped(*args, **kwargs):
    if when == "after":
        step(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)


setattr(owner, table.decisive, stepped)
state.apply_files(ticket(1), staged(folder, ("a", 1)))
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_committer_killed_around_its_commit_leaves_all_or_nothing(folder: Folder, tmp_path: Path, when: str) -> None:
    table = table_on(folder.uri, tmp_path)
    table.opened().close()
    killed = run_code(WORKER, folder.uri, tmp_path, when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert rows(table.spec.factory) == ([("a", 1)] if when == "after" else [])
    with table.opened() as state:
        answer = state.apply_files(ticket(1, fence=50), staged(tmp_path, ("a", 1)))
    assert answer is (Applied.ALREADY if when == "after" else Applied.APPLIED)
    assert rows(table.spec.factory) == [("a", 1)]


def test_a_zombie_changes_nothing(folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_on(folder.uri, tmp_path)

    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(1, fence=9), staged(tmp_path, ("a", 1)))

    with table.opened() as state:
        before_the_commit(table, state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=8), staged(tmp_path, ("zombie", 1)))
    assert rows(table.spec.factory) == [("a", 1)]


def test_a_spout_reads_it_where_nobody_knows_the_connection(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory: Any = ParquetTable(f"{folder.uri}/sales")
    spec = spec_of(factory)
    with factory.make_state(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), files=2))
        state.apply(ticket(2), batch(spec, ("b", 2)))
    spout = TableSpout(factory, fields="word string, n long")
    metadata = spout.coordinator().initialize_transaction(1, None)
    sent = pickle.dumps((factory, spout.emitter()))
    monkeypatch.delenv(VARIABLE)
    received, emitter = pickle.loads(sent)
    read = [part for split in emitter.splits(metadata) for part in emitter.read(split)]
    assert sorted(tuple(row.values()) for part in read for row in part.to_pylist()) == rows(received)
    assert rows(received) == [("a", 1), ("a", 1), ("b", 2)]
    with pytest.raises(ConfigurationError, match="there is no connection 'files'"):
        rows(ParquetTable(f"{folder.uri}/sales"))


def test_of_a_large_file_the_needed_parts_are_read_and_a_file_that_is_gone_is_said_so(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got, get = list[int](), HdfsStorage.get

    def counted(self: HdfsStorage, name: str, *part: Any) -> bytes:
        content = get(self, name, *part)
        got.append(len(content) if name.startswith("_data/") else 0)
        return content

    monkeypatch.setattr(HdfsStorage, "get", counted)
    factory: Any = ParquetTable(f"{folder.uri}/sales")
    words = [f"{number * 2654435761 % 2**32:08x}" * 4 for number in range(_MANY)]
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"word": words, "n": pa.array(range(_MANY), pa.int64())}), path, row_group_size=10_000)
    with factory.make_state(spec_of(factory)) as state:
        state.apply_files(ticket(1), StagedFiles(paths=(str(path),), num_rows=_MANY))
        assert factory.dataset().to_table(columns=["n"])["n"].to_pylist() == list(range(_MANY))
        assert 0 < sum(got) < path.stat().st_size
        assert factory.dataset().to_table()["word"].to_pylist() == words
        committed = pickle.loads(pickle.dumps(state._committed(state._known())))
        (one,) = committed.paths
        folder.remove(f"sales/{one}")
        with pytest.raises(TableChangedError, match="is gone"):
            list(committed.pieces(0))
    with pytest.raises(FileNotFoundError):
        factory.dataset().to_table()


def test_a_batch_replaces_what_is_in_its_partitions(folder: Folder, tmp_path: Path) -> None:
    factory: Any = ParquetTable(f"{folder.uri}/sales", partition_by=("word",))
    with factory.make_state(spec_of(factory, overwrites=True)) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("b", 2)))
        assert state.apply_files(ticket(2), staged(tmp_path, ("a", 3))) is Applied.APPLIED
        assert state.apply_files(ticket(2, fence=99), staged(tmp_path, ("a", 4))) is Applied.ALREADY
    assert rows(factory) == [("a", 3), ("b", 2)]


def test_what_killed_committers_left_goes_with_old_versions(folder: Folder, tmp_path: Path) -> None:
    factory, now = ParquetTable(f"{folder.uri}/sales", keep_versions=1), f"{UNFINISHED}now"
    with factory.make_state(spec_of(factory)) as state:
        for place in (DATA, LISTS, VERSIONS):
            for name, days in ((f"{UNFINISHED}before", LEFT_DAYS + 1), (now, 0)):
                folder.put(f"sales/{place}/{name}", "PAR1")
                folder.age(f"sales/{place}/{name}", days)
        for txid in (1, 2, 3):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    for place in (DATA, LISTS, VERSIONS):
        assert [name for name in folder.all_names(f"sales/{place}") if name.startswith(UNFINISHED)] == [now]
    assert rows(factory) == [("a", 1), ("a", 2), ("a", 3)]


@pytest.mark.spark
def test_spark_reads_the_latest_rows_by_a_view(
    hdfs: Cluster, folder: Folder, tmp_path: Path, spark_session: Any
) -> None:
    """By Hadoop's own client, not by WebHDFS and our connection."""
    table, view = changes_table(TABLES["parquet"], tmp_path, partition_by=("word",)), View(name="hdfs_views.latest")
    place = f"hdfs://{CONN_ID}@{hdfs.hadoop.setting('trident.rpc-address.0')}/{folder.name}"
    factory: Any = ParquetTable(f"{place}/sales", partition_by=("word",))
    table.spec, said = replace(table.spec, factory=factory), list[str]()
    session = spark_session.newSession()

    def shown() -> list[tuple[Any, ...]]:
        publish_view(session, view, latest_query(table.spec, ViewDialect.SPARK), ("words", "rows"), said.append)
        found = sorted((tuple(row) for row in session.table(view.name).collect()), key=repr)
        assert found == sorted((tuple(row.values()) for row in factory.latest().to_pylist()), key=repr)
        return found

    session.sql("CREATE SCHEMA hdfs_views")
    try:
        with table.opened() as state:
            assert shown() == []
            three(state, tmp_path)
            assert shown() == [(1, "c", False), (3, "d", False)]
            assert state.compact()
            assert shown() == [(1, "c", False), (3, "d", False)]
            assert len(said) == 3
            late = changes(tmp_path, 4, (1, None, True), (4, "e's", None))
            assert state.apply_files(ticket(4, fence=99), late) is Applied.APPLIED
            assert shown() == [(3, "d", False), (4, "e's", None)]
        (one, *_) = factory.files()
        folder.remove(one.split(f"/{folder.name}/")[1])
        with pytest.raises(Exception, match="PATH_NOT_FOUND"):
            session.table(view.name).collect()
    finally:
        session.sql("DROP SCHEMA hdfs_views CASCADE")


def test_a_view_for_spark_of_a_table_at_an_address_of_webhdfs_is_refused(folder: Folder, tmp_path: Path) -> None:
    table = changes_table(TABLES["parquet"], tmp_path)
    table.spec = replace(table.spec, factory=ParquetTable(f"webhdfs://{folder.server}/{folder.name}/sales"))
    with table.opened() as state:
        three(state, tmp_path)
    with pytest.raises(ConfigurationError, match=r"spark cannot name what is at 'webhdfs://.*--table schema\.name"):
        latest_query(table.spec, ViewDialect.SPARK)
