"""Tables of changes: the latest row of a key counts, whoever commits, compacts or writes meanwhile."""

from __future__ import annotations

import datetime
import math
import signal
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import FixedBatchSpout, MemoryLedger, Topology
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import Applied
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, CorruptRecordError, PlanError, UserCodeError
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.states.tables.upserts import latest_rows
from airflow_trident.types import parse_declared
from tests.fixtures.state import SINKS, ticket
from tests.fixtures.table import TABLES, ForeignTable, after_the_commit, before_the_commit
from tests.unit.test_docs import DOCS, fenced_blocks

FIELDS = parse_declared("id long, word string, gone boolean, _txid long")
Change = tuple[int, str | None, bool | None]


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ForeignTable:
    return changes_table(TABLES[request.param], tmp_path)


def changes_table(kind: type[ForeignTable], folder: Path, **options: Any) -> ForeignTable:
    made = kind(folder, FIELDS, **options)
    made.spec = replace(made.spec, keys=FIELDS[:1], values=FIELDS[1:], deleted="gone")
    return made


def changes(folder: Path, txid: int, *rows: Change) -> StagedFiles:
    """As they are staged for a transaction."""
    path = folder / f"staged-{txid}-{len(list(folder.glob('staged-*')))}.parquet"
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("gone", pa.bool_()), ("_txid", pa.int64())])
    found = [dict(zip(schema.names, (*row, txid), strict=True)) for row in rows]
    pq.write_table(pa.Table.from_pylist(found, schema=schema), path)
    return StagedFiles(paths=(str(path),), num_rows=len(rows))


def latest(table: ForeignTable) -> dict[int, str]:
    factory: Any = table.spec.factory
    rows = factory.latest().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["word"] for row in rows}


def three(state: Any, folder: Path) -> None:
    state.apply_files(ticket(1), changes(folder, 1, (1, "a", False), (2, "b", None)))
    state.apply_files(ticket(2), changes(folder, 2, (1, "c", False), (3, "d", False)))
    state.apply_files(ticket(3), changes(folder, 3, (2, None, True)))


# ---- what counts -----------------------------------------------------------------------------------------------


def test_the_latest_row_of_a_key_counts_before_and_after_a_compaction(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        for number in (5, 2):
            assert latest(table) == {1: "c", 3: "d"}
            assert sorted(state.items()) == [((1,), ("c", False, 2)), ((3,), ("d", False, 2))]
            assert table.read().num_rows == number
            assert state.compact() is (number == 5)
        state.apply_files(ticket(4), changes(tmp_path, 4, (2, "back", None)))
        assert state.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (2, "again", None))) is Applied.ALREADY
    assert latest(table) == {1: "c", 2: "back", 3: "d"}


def test_what_comes_late_is_older_also_behind_a_compaction_and_a_deletion(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        state.apply_files(ticket(1), changes(tmp_path, 1, (1, "a", None), (2, "b", None), (3, "c", None)))
        state.apply_files(ticket(3), changes(tmp_path, 3, (1, "new", None), (2, None, True)))
        assert state.compact()
        late = changes(tmp_path, 2, (1, "late", None), (2, "late", None), (3, "late", None))
        assert state.apply_files(ticket(2, late=True, fence=40), late) is Applied.APPLIED
        assert latest(table) == {1: "new", 3: "late"}
        assert state.compact()
    assert latest(table) == {1: "new", 3: "late"}
    assert table.read().num_rows == 2, "nothing older can come for the key that was deleted"


def test_a_key_that_moves_to_another_partition_is_gone_from_the_first(table: ForeignTable, tmp_path: Path) -> None:
    parts = changes_table(type(table), tmp_path, partition_by=("word",))
    with parts.opened() as state:
        state.apply_files(ticket(1), changes(tmp_path, 1, (1, "a", None), (2, "a", None)))
        state.apply_files(ticket(2), changes(tmp_path, 2, (1, "b", None)))
        assert latest(parts) == {1: "b", 2: "a"}
        assert state.compact()
    assert sorted((row["id"], row["word"]) for row in parts.read().to_pylist()) == [(1, "b"), (2, "a")]


def test_spark_finds_the_same_rows(spark_session: Any) -> None:
    rows = [(1, "a", False, 1), (1, "c", False, 2), (2, "b", None, 1), (2, None, True, 3), (3, "old", None, None)]
    frame = spark_session.createDataFrame(rows, "id long, word string, gone boolean, _txid long")
    assert sorted(map(tuple, latest_rows(frame, "id", "gone").collect())) == [(1, "c", False), (3, "old", None)]
    arrow = latest_rows(frame.toArrow(), "id", "gone")
    assert sorted(tuple(row.values()) for row in arrow.to_pylist()) == [(1, "c", False), (3, "old", None)]
    for name in ("_place", "_Place"):
        odd = frame.withColumnRenamed("word", name)
        assert sorted(map(tuple, latest_rows(odd, "id", "gone").collect())) == [(1, "c", False), (3, "old", None)]
        for found in (latest_rows(odd, name).toArrow(), latest_rows(odd.toArrow(), name)):
            assert sorted(map(str, found.column(name).to_pylist())) == ["None", "a", "b", "c", "old"]


def test_nan_is_one_key_and_so_are_both_zeros_as_in_spark(spark_session: Any) -> None:
    negative_nan = struct.unpack("<d", b"\0\0\0\0\0\0\xf8\xff")[0]
    ids = pa.array([0.0, -0.0, math.nan, negative_nan, None, None, 5.0], pa.float64())
    rows = pa.table({"id": ids, "word": list("abcdefg"), "_txid": [1, 2, 1, 2, 1, 2, 1]})
    frame = spark_session.createDataFrame(rows)
    for found in (latest_rows(rows, "id"), latest_rows(frame, "id").toArrow()):
        assert sorted(found.column("word").to_pylist()) == ["b", "d", "f", "g"]


# ---- compactions meet others -----------------------------------------------------------------------------------


def test_what_is_applied_while_a_compaction_commits_stays(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def applied() -> None:
        with table.opened() as other:
            other.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (1, "newer", None), (5, "e", None)))

    with table.opened() as state:
        three(state, tmp_path)
        before_the_commit(table, state, monkeypatch, applied)
        assert state.compact()
        assert state.marker().fence == 99, "a compaction is of no committer"
        assert latest(table) == {1: "newer", 3: "d", 5: "e"}
        assert state.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (1, "x", None))) is Applied.ALREADY
    assert table.read().num_rows == 4


def test_a_compaction_whose_files_another_one_has_rewritten_begins_anew(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        before_the_commit(table, state, monkeypatch, table.compact)
        assert state.compact()
    assert latest(table) == {1: "c", 3: "d"}
    assert table.read().num_rows == 2
    left = [path for path in table.data_files() if path.name.startswith("trident-compacted-")]
    assert len(left) == 1, "what was written in vain is removed"


def test_a_compaction_that_got_no_answer_is_there_or_not(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        after_the_commit(table, state, monkeypatch, table.lost)
        assert state.compact()
        assert not state.compact()
    assert table.read().num_rows == 2


def test_a_compaction_that_is_called_lost_after_others_went_on_from_it_keeps_its_files(
    table: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (5, "e", None)))

    with table.opened() as state:
        three(state, tmp_path)
        after_the_commit(table, state, monkeypatch, table.lost, newer)
        assert state.compact()
    assert latest(table) == {1: "c", 3: "d", 5: "e"}
    assert table.read().num_rows == 3


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_rows_of_others_without_a_transaction_are_the_oldest_and_what_they_delete_uncovers_older_ones(
    tmp_path: Path, kind: str
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
        foreign: Any = table.table  # type: ignore[attr-defined]
        row = {"id": [1, 9], "word": ["old", "theirs"], "gone": [None, None], "_txid": [None, None]}
        rows = pa.table(row, schema=pq.read_schema(next(tmp_path.glob("staged-*"))))
        if kind == "delta":
            deltalake.write_deltalake(foreign, rows, mode="append")
        else:
            foreign.append(rows)
        assert latest(table) == {1: "c", 3: "d", 9: "theirs"}
        table.delete("c")
        assert latest(table) == {1: "a", 3: "d", 9: "theirs"}
        assert state.compact()
        assert latest(table) == {1: "a", 3: "d", 9: "theirs"}
        state.apply_files(ticket(4), changes(tmp_path, 4, (9, "ours", None)))
    assert latest(table) == {1: "a", 3: "d", 9: "ours"}


WORKER = """
import sys
from pathlib import Path
from tests.contracts.test_table_upserts import changes_table
from tests.fixtures.table import TABLES, die_at
from pyiceberg.table.update.snapshot import _OverwriteFiles

folder, kind, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = changes_table(TABLES[kind], folder)
state = table.opened()
owner = type(state) if name == "_write" else table.steps[name](state)
owner = _OverwriteFiles if name == "commit" else owner
die_at(owner, name, when)
state.compact()
"""
CUTS = [
    (kind, when, step)
    for kind, made in TABLES.items()
    for step in ("_write", *(one for one in made.steps if one not in ("link", "clean")))
    for when in ("before", *(["after"] if step == made.decisive else []))
]


@pytest.mark.parametrize(("kind", "when", "step"), CUTS, ids=[" ".join(cut) for cut in CUTS])
def test_a_compaction_killed_anywhere_changes_nothing_that_counts(
    tmp_path: Path, kind: str, when: str, step: str
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
    dead = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path), kind, when, step], check=False)
    assert dead.returncode == -signal.SIGKILL
    steps = ["_write", *table.steps]
    is_there = steps.index(step) + (when == "after") > steps.index(table.decisive)
    assert latest(table) == {1: "c", 3: "d"}
    assert table.read().num_rows == (2 if is_there else 5)
    with table.opened() as state:
        assert state.compact() is not is_there
        assert state.apply_files(ticket(4), changes(tmp_path, 4, (1, "e", None))) is Applied.APPLIED
    assert latest(table) == {1: "e", 3: "d"}


# ---- whose it is -----------------------------------------------------------------------------------------------


def test_another_topology_other_keys_and_rows_without_keys_are_refused(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        three(state, tmp_path)
    spec = table.spec
    for other, text in (
        (replace(spec, topology="others"), "has the changes of state 'rows' of topology 'words'"),
        (replace(spec, keys=(), values=FIELDS, deleted=None), "has the changes of state 'rows'"),
        (replace(spec, deleted=None), r"by the keys \['id'\], deleted where gone, and not"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            spec.factory.make_state(other)


def test_a_table_that_gets_rows_as_they_are_takes_no_changes_and_has_no_latest_ones(
    table: ForeignTable, tmp_path: Path
) -> None:
    plain: Any = replace(table.spec, keys=(), values=FIELDS, deleted=None)
    with plain.factory.make_state(plain) as state:
        state.apply_files(ticket(1), changes(tmp_path, 1, (1, "a", None)))
        with pytest.raises(ConfigurationError, match='mode="upsert"'):
            state.compact()
    with pytest.raises(ConfigurationError, match="was not made for changes by key"):
        table.opened()
    with pytest.raises(ConfigurationError, match="no changes by key"):
        plain.factory.latest()


def test_the_latest_rows_of_a_table_that_no_commit_has_made_yet_are_refused_and_nothing_is_made(
    table: ForeignTable,
) -> None:
    factory: Any = table.spec.factory
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"there is no .* table .* yet\. The first commit of a state"):
            factory.latest()


def test_a_table_that_was_taken_back_is_not_compacted(table: ForeignTable, tmp_path: Path) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        undo = table.take_back()
        with pytest.raises(CorruptRecordError):
            state.compact()
        undo()
        assert state.compact()


# ---- in a topology ---------------------------------------------------------------------------------------------


def run(table: ForeignTable, folder: Path, rows: list[Any], **options: Any) -> None:
    """In batches of three."""
    topology = Topology("words")
    spout = FixedBatchSpout("id long, word string, at long, gone boolean", rows, 3)
    topology.new_stream("changes", spout).persist_table(
        SINKS[table.sink](table.folder), mode="upsert", keys="id", **options
    )
    with MemoryLedger("words") as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(folder / "st")).run()


def test_a_topology_upserts_its_stream(table: ForeignTable, tmp_path: Path) -> None:
    first = [(1, "old", 1, False), (1, "a", 2, False), (2, "b", 1, False)]
    run(table, tmp_path, [*first, (2, None, 3, True), (3, "c", 3, False)], order_by="at", deleted="gone")
    assert latest(table) == {1: "a", 3: "c"}
    assert sorted(table.read()["_txid"].to_pylist()) == [1, 1, 2, 2]


def test_null_keys_and_two_rows_of_a_key_are_one_error_of_processing(table: ForeignTable, tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"transaction 1 has no 'id', a key of .* \(id=None\).*is_not_null"):
        run(table, tmp_path, [(1, "a", 1, False), (None, "b", 1, False), (None, "c", 1, False)])
    with pytest.raises(UserCodeError, match=r"same key of state 'rows' \(id=1\) in transaction 1 and nothing says"):
        run(table, tmp_path, [(1, "a", 1, False), (1, "b", 1, False)])
    run(table, tmp_path, [(1, "a", 1, False), (1, "a", 1, False)])
    assert latest(table) == {1: "a"}


def test_the_upserts_of_the_guide_are_written_read_and_compacted(
    spark_engine: Any, spark_session: Any, tmp_path: Path
) -> None:
    def here(text: str) -> str:
        return text.replace('"/lake', f'"{tmp_path}/lake').replace('"/data', f'"{tmp_path}/data')

    blocks = fenced_blocks(DOCS / "how-to" / "write-to-a-table.md")
    (query,) = [text for language, text in blocks if language == "sql"]
    python = [here(text) for language, text in blocks if language == "python"]
    words = ('mode="upsert"', "latest()", 'action="compact"')
    upserts, reads, compacts = (next(one for one in python if word in one) for word in words)
    source = tmp_path / "data" / "changes"
    source.mkdir(parents=True)
    names: dict[str, Any] = {}
    exec(f"from airflow_trident import DeltaTable, FileSpout, Topology\n{upserts}", names)
    with MemoryLedger("customers") as ledger:
        for day, changed in ((1, [(1, "a", None), (2, "b", None)]), (2, [(1, "c", False), (2, None, True)])):
            at = datetime.datetime(2026, 1, day, tzinfo=datetime.UTC)
            rows = [{"id": key, "name": name, "changed_at": at, "gone": gone} for key, name, gone in changed]
            pq.write_table(pa.Table.from_pylist(rows), source / f"{day}.parquet")
            topology, staging = names["customers"], str(tmp_path / "st")
            LocalRunner(ledger=ledger, topology=topology, engine=spark_engine, staging_root=staging).run()
    table = deltalake.DeltaTable(f"{tmp_path}/lake/customers")
    assert sorted(table.to_pyarrow_table()["_txid"].to_pylist()) == [1, 1, 2, 2]
    exec(reads, names)
    assert [(row["id"], row["name"]) for row in names["rows"].to_pylist()] == [(1, "c")]
    spark_session.createDataFrame(table.to_pyarrow_table()).createOrReplaceTempView("customers")
    assert [(row.id, row.name) for row in spark_session.sql(query).collect()] == [(1, "c")]
    exec(compacts, names)
    names["dag"].task_dict["compact"].execute({})
    table.update_incremental()
    assert table.to_pyarrow_table()["name"].to_pylist() == ["c"]


def test_what_does_not_go_together_is_refused_when_the_dag_is_built(table: ForeignTable) -> None:
    words = Topology("words").new_stream("words", FixedBatchSpout("id long, word string, _txid long", []))
    sink: Any = SINKS[table.sink](table.folder)
    for text, options in (
        ("mode='upsert' and no keys", {"mode": "upsert"}),
        ("mode='append' and keys, deleted", {"keys": "id", "deleted": "word"}),
        ("no such boolean field", {"mode": "upsert", "keys": "id", "deleted": "word"}),
        ("the field _txid", {"mode": "upsert", "keys": "id"}),
    ):
        with pytest.raises(PlanError, match=text):
            words.persist_table(sink, **options)
