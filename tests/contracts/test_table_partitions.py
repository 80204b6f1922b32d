"""Tables with partitions: a file has rows of one; and batches that replace what is in theirs."""

from __future__ import annotations

import datetime
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction
from pyiceberg.expressions.visitors import _ManifestEvalVisitor, visit
from pyiceberg.transforms import BucketTransform, IdentityTransform

from airflow_trident import FixedBatchSpout, Topology
from airflow_trident.contracts.state import Applied
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.workers import WriteParts
from airflow_trident.errors import ConfigurationError, FencedError, LateBatchError, PlanError
from airflow_trident.io.place import PosixPlace
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.staging.manifest import Slot
from airflow_trident.testing import MemoryLedger
from airflow_trident.types import parse_declared
from tests.fixtures.program import run_code
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import FIELDS, TABLES, ForeignIcebergTable, ForeignTable, before_the_commit, staged

ODD = "a b/c=%20ü'"


@pytest.fixture(params=TABLES)
def kind(request: pytest.FixtureRequest) -> type[ForeignTable]:
    return TABLES[request.param]


@pytest.fixture
def table(kind: type[ForeignTable], tmp_path: Path) -> ForeignTable:
    """Partitioned by word."""
    return kind(tmp_path, partition_by=("word",))


@pytest.fixture
def owned(kind: type[ForeignTable], tmp_path: Path) -> ForeignTable:
    """What a batch has of a word replaces what is there."""
    return kind(tmp_path, partition_by=("word",), overwrites=True)


# ---- files of one partition each -------------------------------------------------------------------------------


def test_rows_of_every_type_of_partition_column_are_read_back_and_compacted(
    kind: type[ForeignTable], tmp_path: Path
) -> None:
    fields = parse_declared("n long, word string, many int, yes boolean, d date")
    table = kind(tmp_path, fields, partition_by=("d", "word", "yes", "many"))
    day = datetime.date(1969, 2, 28)
    rows = [(1, "a", 1, True, day), (2, ODD, -7, False, None), (3, None, None, None, day), (4, ODD, -7, False, None)]
    with table.opened() as state:
        assert state.apply(ticket(1), batch(table.spec, *rows)) is Applied.APPLIED
        assert sorted((row for _, row in state.items()), key=repr) == sorted(rows, key=repr)
    assert len(table.data_files()) == 3
    for _ in ("as written", "compacted"):
        found = table.read().select(["n", "word", "many", "yes", "d"]).to_pylist()
        assert sorted((tuple(row.values()) for row in found), key=repr) == sorted(rows, key=repr)
        table.compact()
    table.delete("a")
    assert sorted(table.read()["n"].to_pylist()) == [2, 3, 4]


def test_a_staged_file_of_one_partition_is_linked_and_one_of_several_is_written_again(
    table: ForeignTable, tmp_path: Path
) -> None:
    one, several = staged(tmp_path, ("a", 1), ("a", 2)), staged(tmp_path, ("b", 3), ("c", 4), ("b", 5))
    with table.opened() as state:
        state.apply_files(ticket(1), one)
        state.apply_files(ticket(2), several)
    assert table.rows() == [("a", 1), ("a", 2), ("b", 3), ("b", 5), ("c", 4)]
    links = sorted(os.stat(path).st_nlink for path in table.data_files())
    assert links == [1, 1, 2]


def test_engines_stage_files_of_one_partition_each(table: ForeignTable, tmp_path: Path) -> None:
    topology = Topology("words")
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1), ("b", 2), ("a", 3)]))
    words.persist_table(table.spec.factory, name="sales")
    with MemoryLedger("words") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(1), staging_root=str(tmp_path / "st"))
        runner.run()
    assert table.rows() == [("a", 1), ("a", 3), ("b", 2)]
    assert {os.stat(path).st_nlink for path in table.data_files()} == {2}, "the staged files themselves"


def test_workers_of_spark_stage_files_of_one_partition_each(tmp_path: Path) -> None:
    slot = Slot(topology="words", incarnation="i1", txid=1, attempt=0)
    write = WriteParts(place=PosixPlace(str(tmp_path)), slot=slot, state="rows", schema=FIELDS, split_by=("word",))
    batches = [pa.record_batch({"word": ["a", None, "b"], "n": [number, 2, 3]}) for number in (1, 4)]
    parts = [part for found in write(batches) for part in found.to_pylist()]
    read = [pq.read_table(tmp_path / part["path"]).to_pydict() for part in parts]
    assert sorted((one["word"] for one in read), key=repr) == [["a", "a"], ["b", "b"], [None, None]]
    assert sorted(n for one in read for n in one["n"]) == [1, 2, 2, 3, 3, 4]
    assert [part["rows"] for part in parts] == [2, 2, 2]


# ---- what cannot be --------------------------------------------------------------------------------------------


def test_a_table_with_other_partitions_is_refused_with_what_to_say(kind: type[ForeignTable], tmp_path: Path) -> None:
    kind(tmp_path, partition_by=("word",)).opened().close()
    with pytest.raises(ConfigurationError, match=r"is partitioned by word, .* not. Say partition_by=\['word'\]"):
        kind(tmp_path).opened()
    with pytest.raises(ConfigurationError, match=r"is partitioned by word, and should be so by n"):
        kind(tmp_path, partition_by=("n",)).opened()


def test_partitions_by_a_transform_are_refused(tmp_path: Path) -> None:
    table = ForeignIcebergTable(tmp_path)
    table.opened().close()
    with table.table.update_spec() as update:
        update.add_field("word", BucketTransform(4))
    with pytest.raises(ConfigurationError, match=r"partitioned by bucket\[4\] of word.*Append to another table"):
        ForeignIcebergTable(tmp_path, partition_by=("word",)).opened()


def test_an_empty_text_that_a_delta_table_would_make_a_null_is_refused(tmp_path: Path) -> None:
    table = TABLES["delta"](tmp_path, partition_by=("word",))
    with table.opened() as state:
        with pytest.raises(ConfigurationError, match="empty text in 'word'"):
            state.apply_files(ticket(1), staged(tmp_path, ("a", 1), ("", 2)))
        assert state.marker() is None
    assert table.data_files() == []


def test_what_cannot_be_partitioned_by_is_refused_when_the_dag_is_built(table: ForeignTable) -> None:
    factory: Any = table.spec.factory
    words = Topology("words").new_stream("words", FixedBatchSpout("word string, x double", [("a", 1.0)]))
    with pytest.raises(ConfigurationError, match=r"partitioned by 'day', and sink 'rows' has no such field.*word, x"):
        words.persist_table(replace(factory, partition_by="day"))
    with pytest.raises(ConfigurationError, match="partitioned by 'x', which is double"):
        words.persist_table(replace(factory, partition_by=["word", "x"]))
    with pytest.raises(PlanError, match=r"mode='overwrite' and .*no partitions.*partition_by='day'"):
        words.persist_table(replace(factory, partition_by=()), mode="overwrite")


# ---- batches that replace --------------------------------------------------------------------------------------


def test_a_batch_replaces_what_is_in_its_partitions_whoever_wrote_it(owned: ForeignTable, tmp_path: Path) -> None:
    with owned.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1), (ODD, 2), (None, 3)))
        for word in ("other", ODD):
            owned.append(word)
        assert sorted(row[1] for _, row in state.items()) == [0, 0, 1, 2, 3]
        state.apply_files(ticket(2), staged(tmp_path, (ODD, 4), (ODD, 5), (None, 6)))
        assert sorted(owned.read().to_pylist(), key=repr) == sorted(
            [{"word": word, "n": n} for word, n in (("a", 1), (ODD, 4), (ODD, 5), (None, 6), ("other", 0))], key=repr
        )
        state.apply_files(ticket(3), staged(tmp_path, ("other", 7), (None, 8)))
        state.apply(ticket(4), batch(owned.spec))
    assert sorted(row["n"] for row in owned.read().to_pylist()) == [1, 4, 5, 7, 8]


def test_a_repeated_commit_replaces_nothing(owned: ForeignTable, tmp_path: Path) -> None:
    files = staged(tmp_path, ("other", 1))
    with owned.opened() as state:
        state.apply_files(ticket(1), files)
        owned.append()
        assert state.apply_files(ticket(1, fence=99), files) is Applied.ALREADY
    assert owned.rows() == [("other", 0), ("other", 1)]


def test_rows_that_come_to_a_partition_between_decision_and_commit_are_replaced_too(
    owned: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with owned.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("other", 1), ("a", 2)))
        before_the_commit(owned, state, monkeypatch, owned.append)
        state.apply_files(ticket(2), staged(tmp_path, ("other", 3)))
        before_the_commit(owned, state, monkeypatch, owned.compact)
        state.apply_files(ticket(3), staged(tmp_path, ("other", 4)))
    assert owned.rows() == [("a", 2), ("other", 4)]


def test_threads_that_read_manifests_of_an_overwrite_do_not_judge_each_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = TABLES["iceberg"](tmp_path, partition_by=("word",), overwrites=True)
    words = ("a", "b", "b")
    # Each thread looks at the bounds of its manifest when all have taken theirs, that of "a" last.
    taken = threading.Barrier(len(words), timeout=60.0)
    looked: list[str] = []

    def eval_together(self: Any, manifest: Any) -> Any:
        word = manifest.partitions[0].lower_bound.decode()
        together = threading.current_thread() is not threading.main_thread() and len(looked) < len(words)
        if together and word == "a":
            taken.wait()
        self.partition_fields = manifest.partitions
        if together and word != "a":
            taken.wait()
        if together:
            taken.wait()
            looked.append(word)
        return visit(self.partition_filter, self)

    with owned.opened() as state:
        for txid, word in enumerate(words[:2], start=1):
            state.apply_files(ticket(txid), staged(tmp_path, (word, txid)))
        owned.append(words[2])
        monkeypatch.setattr(_ManifestEvalVisitor, "eval", eval_together)
        state.apply_files(ticket(3), staged(tmp_path, ("b", 3)))
    assert sorted(looked) == ["a", "b", "b"]
    assert owned.rows() == [("a", 1), ("b", 3)]


WORKER = """
import sys
from pathlib import Path
from pyiceberg.table.update.snapshot import _OverwriteFiles
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, die_at, staged

folder, kind, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = TABLES[kind](folder, partition_by=("word",), overwrites=True)
state = table.opened()
die_at(_OverwriteFiles if name == "commit" else table.steps[name](state), name, when)
state.apply_files(ticket(3), staged(folder, ("b", 3)))
"""


def cuts() -> list[Any]:
    """Before a step is little else than after the one before it."""
    found = [(kind, when, step) for kind, made in TABLES.items() for step in made.steps for when in ("before", "after")]
    rare = {cut for cut in found if cut[1] == "before" and cut[2] != TABLES[cut[0]].decisive}
    return [pytest.param(*cut, marks=pytest.mark.rare if cut in rare else (), id=" ".join(cut)) for cut in found]


@pytest.mark.parametrize(("kind", "when", "step"), cuts())
def test_a_committer_killed_anywhere_has_replaced_all_or_nothing(
    tmp_path: Path, kind: str, when: str, step: str
) -> None:
    table = TABLES[kind](tmp_path, partition_by=("word",), overwrites=True)
    with table.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        state.apply_files(ticket(2), staged(tmp_path, ("b", 2)))
    table.append("b")
    dead = run_code(WORKER, tmp_path, kind, when, step)
    assert dead.returncode == -signal.SIGKILL, dead.stdout
    steps = list(table.steps)
    is_applied = steps.index(step) + (when == "after") > steps.index(table.decisive)
    assert table.rows() == [("a", 1), *([("b", 3)] if is_applied else [("b", 0), ("b", 2)])]
    table.append("b")
    with table.opened() as state:
        answer = state.apply_files(ticket(3, fence=50), staged(tmp_path, ("b", 3)))
    assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
    assert table.rows() == [("a", 1), *([("b", 0)] if is_applied else []), ("b", 3)]


def test_a_zombie_replaces_nothing(owned: ForeignTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def newer() -> None:
        with owned.opened() as other:
            other.apply_files(ticket(2, fence=30), staged(tmp_path, ("a", 2)))
            other.apply_files(ticket(3, fence=31), staged(tmp_path, ("a", 3)))

    with owned.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        before_the_commit(owned, state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(2), staged(tmp_path, ("a", 2)))
    assert owned.rows() == [("a", 3)]


def test_a_late_batch_does_not_replace_a_later_one(owned: ForeignTable, tmp_path: Path) -> None:
    assert not owned.spec.commutes
    with owned.opened() as state:
        state.apply_files(ticket(2), staged(tmp_path, ("a", 2)))
        with pytest.raises(LateBatchError):
            state.apply_files(ticket(1, fence=30, late=True), staged(tmp_path, ("a", 1)))
    assert owned.rows() == [("a", 2)]


def test_a_table_that_others_made_append_only_is_not_overwritten(tmp_path: Path) -> None:
    owned = TABLES["delta"](tmp_path, partition_by=("word",), overwrites=True)
    with owned.opened() as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        table = deltalake.DeltaTable(str(tmp_path / "sales"))
        table.alter.set_table_properties({"delta.appendOnly": "true"})
        with pytest.raises(ConfigurationError, match="append-only"):
            state.apply_files(ticket(2), staged(tmp_path, ("a", 2)))
    assert owned.rows() == [("a", 1)]


def test_files_from_before_the_partitions_are_not_taken_for_one(tmp_path: Path) -> None:
    plain = ForeignIcebergTable(tmp_path)
    plain.opened().close()
    plain.table.append(pa.table({"word": ["a", "b"], "n": pa.array([1, 2], pa.int64())}))
    with plain.table.update_spec() as update:
        update.add_field("word", IdentityTransform())
    owned = ForeignIcebergTable(tmp_path, partition_by=("word",), overwrites=True)
    with owned.opened() as state:
        with pytest.raises(ConfigurationError, match=r"has files of another partitioning.*Rewrite"):
            state.apply_files(ticket(1), staged(tmp_path, ("a", 3)))
        assert state.marker() is None
    assert owned.rows() == [("a", 1), ("b", 2)]


def test_a_file_of_a_delta_table_whose_name_would_be_written_otherwise_is_not_removed_by_half(tmp_path: Path) -> None:
    owned = TABLES["delta"](tmp_path, partition_by=("word",), overwrites=True)
    owned.opened().close()
    pq.write_table(pa.table({"n": pa.array([1], pa.int64())}), tmp_path / "sales" / "by a person.parquet")
    table = deltalake.DeltaTable(str(tmp_path / "sales"))
    size = os.path.getsize(tmp_path / "sales" / "by a person.parquet")
    added = AddAction("by a person.parquet", size, {"word": "a"}, 1, True, "{}")
    table.create_write_transaction([added], mode="append", schema=table.schema(), partition_by=["word"])
    with owned.opened() as state:
        with pytest.raises(ConfigurationError, match="cannot be removed safely"):
            state.apply_files(ticket(1), staged(tmp_path, ("a", 2)))
        state.apply_files(ticket(1), staged(tmp_path, ("b", 3)))
    assert owned.rows() == [("a", 1), ("b", 3)]


# ---- the page --------------------------------------------------------------------------------------------------


def test_the_page_about_tables_writes_to_them(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "write-to-a-table.md").read_text()
    for folder in ("/lake", "/data"):
        text = text.replace(folder, f"{tmp_path}{folder}")
    (tmp_path / "lake").mkdir()
    days = [datetime.date(2024, 2, day) for day in (28, 29)]
    for source in ("orders", "daily", "totals"):
        (tmp_path / "data" / source).mkdir(parents=True)
        rows = pa.table({"day": days, "shop": ["a", "b"], "cents": pa.array([1, 2], pa.int64())})
        columns = ["day", "cents"] if source == "totals" else ["day", "shop", "cents"]
        pq.write_table(rows.select(columns), tmp_path / "data" / source / "one.parquet")
    names: dict[str, Any] = {}
    exec("\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)), names)
    topology = names["topology"]
    with MemoryLedger("sales") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "st"))
        for again in (False, True):
            runner.run()
            if not again:
                newer = pa.table({"day": days[:1], "shop": ["c"], "cents": pa.array([5], pa.int64())})
                for source in ("orders", "daily"):
                    pq.write_table(newer, tmp_path / "data" / source / "two.parquet")
                pq.write_table(newer.drop(["shop"]), tmp_path / "data" / "totals" / "two.parquet")
    read = {name: deltalake.DeltaTable(str(tmp_path / "lake" / name)) for name in ("orders", "daily", "totals")}
    assert {name: sorted(table.to_pyarrow_table()["cents"].to_pylist()) for name, table in read.items()} == {
        "orders": [1, 2, 5],
        "daily": [1, 2, 5],
        "totals": [2, 5],
    }
    assert read["daily"].metadata().partition_columns == ["day"]
    assert {state.factory.describe() for state in topology.states.values()} >= {"IcebergTable(sales.orders, default)"}
