"""FileSpout on a real HDFS: which files are meant, what a replay reads, and files that are moved in late."""

from __future__ import annotations

import json
import pickle
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Count, FileSpout, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError
from airflow_trident.runtime.drains.order import connections_of
from tests.faults.http_proxy import each_fails_once
from tests.fixtures.file import begin, lines, names
from tests.fixtures.hdfs import CONN_ID, VARIABLE, Folder, ask
from tests.integration.test_file_spout import MEANT, TREE
from tests.integration.test_file_spout_on_s3 import run
from tests.integration.test_staging_on_s3 import contents

pytestmark = pytest.mark.rare


def move(folder: Folder, name: str, to: str) -> None:
    ask(folder.server, "PUT", f"/{folder.name}/{name}", f"RENAME&destination={quote(f'/{folder.name}/{to}')}")


def touch(folder: Folder, name: str, at_ms: int) -> None:
    """As if the file had been closed at this time."""
    client = f"SETTIMES&modificationtime={at_ms}"
    path = f"/{folder.name}/{name}"
    ask(folder.server, "PUT", path, client)


def test_a_folder_and_a_pattern_mean_the_files_that_they_mean_on_a_disk(folder: Folder) -> None:
    for name in TREE:
        folder.put(f"in/{name}", "x\n")
    folder.put("inside/a.txt", "x\n")
    for path, recursive, expected in MEANT:
        if path in ("x[1].txt", "c.txt.tmp"):
            continue  # a pattern, here; and what is still being written cannot be meant by one
        spout = FileSpout(f"{folder.uri}/in/{path}", recursive=recursive)
        if path in TREE:
            with pytest.raises(ConfigurationError, match=r"is a file.*Write a pattern that means it") as caught:
                begin(spout)
            spout = FileSpout(caught.value.cure.split("'")[1])
        assert sorted(names(begin(spout))) == sorted(expected), path


def test_names_are_those_of_hdfs_and_an_empty_file_has_no_rows(folder: Folder) -> None:
    strange = ["a b+c%20é&=#.txt", "[1]*?.txt", "{x}^`|\\'.txt"]
    for name in strange:
        folder.put(f"in/{name}", f"{name}\n")
    folder.put("in/empty", "")
    spout = FileSpout(f"{folder.uri}/in")
    assert sorted(lines(spout, begin(spout))) == sorted(strange)


def test_what_is_not_there_or_not_allowed_is_one_error_with_its_cure(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SourceUnavailableError, match=r"there is no 'hdfs://files@/folder-.*/in'.*Make it"):
        begin(FileSpout(f"{folder.uri}/in"))
    folder.put("in/a", "1\n")
    ask(folder.server, "PUT", f"/{folder.name}/in", "SETPERMISSION&permission=700")
    monkeypatch.setenv(VARIABLE, json.dumps({**json.loads(folder.connection()), "login": "nobody"}))
    with pytest.raises(ConfigurationError, match=r"list the files.*AccessControlException.*Give the user"):
        begin(FileSpout(f"{folder.uri}/in"))


# ---- what a replay reads ---------------------------------------------------------------------------------------


def test_a_file_that_was_written_anew_is_an_error_until_it_is_back_or_is_taken(folder: Folder) -> None:
    folder.put("in/a.txt", "1\n2\n")
    spout = FileSpout(f"{folder.uri}/in", split_bytes=2)
    metadata = begin(spout)
    assert lines(spout, metadata) == ["1", "2"]
    move(folder, "in/a.txt", "trash")
    with pytest.raises(SourceChangedError, match=r"a\.txt', which the transaction recorded, is gone"):
        lines(spout, metadata)
    folder.put("in/a.txt", "3\n4\n")
    with pytest.raises(SourceChangedError, match=r"written again.*Put it back as it was.*rename.*accept-source"):
        lines(spout, metadata)
    with pytest.raises(SourceChangedError, match="was consumed by an earlier transaction and changed since"):
        begin(spout, metadata)
    accepted = spout.coordinator().accept_source(metadata)
    assert lines(spout, accepted) == ["3", "4"]
    assert begin(spout, accepted) is None
    folder.remove("in/a.txt")
    move(folder, "trash", "in/a.txt")
    assert lines(spout, metadata) == ["1", "2"]


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(folder: Folder) -> None:
    folder.put("in/a.txt", "1\n" * 100)
    spout = FileSpout(f"{folder.uri}/in")
    emitter, metadata = spout.emitter(), begin(spout)
    [split] = emitter.splits(metadata)
    reading = emitter.read(split)
    next(reading)
    folder.put("in/a.txt", "2\n" * 100)
    with pytest.raises(SourceChangedError, match="written again"):
        list(reading)


# ---- files that are moved in late ------------------------------------------------------------------------------

LONG_AGO_MS = 1_000_000_000_000


def test_a_file_that_is_moved_in_late_with_an_old_time_is_read_once(folder: Folder) -> None:
    for name in ("old", "sub/older"):
        folder.put(f"away/{name}", f"{name}\n")
        touch(folder, f"away/{name}", LONG_AGO_MS)
    folder.put("in/a", "a\n")
    spout = FileSpout(f"{folder.uri}/in", recursive=True)
    first = begin(spout)
    move(folder, "away/old", "in/old")
    second = begin(spout, first)
    assert lines(spout, second) == ["old"]
    move(folder, "away/sub", "in/sub")
    third = begin(spout, second)
    assert lines(spout, third) == ["sub/older"]
    folder.remove("in/a")
    assert begin(spout, third) is None


# ---- transactions ----------------------------------------------------------------------------------------------


def sums(folder: Folder, state: str) -> Topology:
    """Six files of which two make a batch."""
    for number in range(6):
        table = pa.table({"k": [f"k{n % 3}" for n in range(number)], "n": pa.array(range(number), pa.int64())})
        sink = pa.BufferOutputStream()
        pq.write_table(table.cast(pa.schema([("k", pa.string()), ("n", pa.int64())])), sink)
        folder.put(f"in/{number}.parquet", sink.getvalue().to_pybytes())
    made = Topology("sums")
    spout = FileSpout(f"{folder.uri}/in/*.parquet", format="parquet", fields="k string, n long", max_files=2)
    made.new_stream("lines", spout).group_by("k").persistent_aggregate(
        SqliteState(state), "n", Sum(), "sum", name="sums"
    )
    return made


SUMS = {"k0": 6, "k1": 8, "k2": 6}


def test_every_request_may_fail_once_and_nothing_else_comes_of_it(folder: Folder, tmp_path: Any) -> None:
    made, seen = sums(folder, str(tmp_path / "s.db")), set[tuple[str, str]]()
    folder.proxy.rule = each_fails_once(seen)
    assert run(made, LocalEngine(), str(tmp_path / "staging")) == [1, 2, 3]
    assert contents(made, "sums") == SUMS
    assert folder.proxy.harmed == len(seen) > 7


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["spark_engine", "connect_engine"])
def test_spark_reads_files_and_stages_beside_them(
    engine: str, folder: Folder, tmp_path: Any, request: pytest.FixtureRequest
) -> None:
    made, chosen = sums(folder, str(tmp_path / "s.db")), request.getfixturevalue(engine)
    assert isinstance(chosen, Engine)
    assert run(made, chosen, f"{folder.uri}/staging") == [1, 2, 3]
    assert contents(made, "sums") == SUMS


def test_a_dag_is_built_without_a_request_and_executors_need_no_connection(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.put("in/a", "1\n")
    spout = FileSpout(f"{folder.uri}/in")
    made = Topology("words")
    made.new_stream("lines", spout).persistent_aggregate(SqliteState("c.db"), Count(), "count")
    assert spout.describe() == f"FileSpout(text, {folder.uri}/in)"
    assert not folder.proxy.asked
    assert set(connections_of(made)) == {CONN_ID}
    emitter, metadata = pickle.dumps(spout.emitter()), begin(spout)
    monkeypatch.delenv(VARIABLE)
    there = pickle.loads(emitter)
    [split] = there.splits(metadata)
    assert [batch.num_rows for batch in there.read(split)] == [1]
