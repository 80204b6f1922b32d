"""Copy-on-write: a row replaces that of its key, whoever commits, dies or writes between processing and commit."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import DeltaTable, FixedBatchSpout, IcebergTable, MemoryLedger, ParquetTable, Topology
from airflow_trident.contracts.committed_table import ReplacedFiles
from airflow_trident.contracts.staged_batch import StagedFiles
from airflow_trident.contracts.state import Applied
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    LateBatchError,
    OutcomeUnknownError,
    PlanError,
    TableChangedError,
    UserCodeError,
)
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.limits import pending_of
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.staging.storage import storage_at
from airflow_trident.staging.table_rewrites import rewrites_of
from airflow_trident.types import parse_declared
from tests.fixtures.object_store import Bucket
from tests.fixtures.state import ticket
from tests.fixtures.table import ForeignParquetTable, after_the_commit, before_the_commit

FIELDS = parse_declared("id long, word string, gone boolean")
Row = tuple[Any, ...]


@pytest.fixture
def table(tmp_path: Path) -> ForeignParquetTable:
    return keyed(tmp_path)


def keyed(folder: Path, **options: Any) -> ForeignParquetTable:
    made = ForeignParquetTable(folder, FIELDS, **options)
    made.spec = replace(made.spec, keys=FIELDS[:1], values=FIELDS[1:], rewrites=True, deleted="gone")
    return made


def rows_of(*rows: Row) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("gone", pa.bool_())])
    found = [dict(zip(schema.names, (*row, None, None)[:3], strict=True)) for row in rows]
    return pa.Table.from_pylist(found, schema=schema)


def appended(table: ForeignParquetTable, *rows: Row) -> None:
    """By somebody else."""
    table.publish(files=[*table.named(table.version()), *table.written(rows_of(*rows))])


def found(table: ForeignParquetTable) -> list[tuple[int, str]]:
    return sorted((row["id"], row["word"]) for row in table.read().to_pylist())


def processed(table: ForeignParquetTable, state: Any, txid: int, *rows: Row) -> StagedFiles:
    """A batch as the processing phase leaves it, against the version of now."""
    slot = Slot(topology="words", incarnation="i1", txid=txid, attempt=len(list((table.folder / "st").rglob("*"))))
    storage = storage_at(str(table.folder / "st"))
    area = StagingArea(str(table.folder / "st"))
    file = area.write(slot, "rows", rows_of(*rows))
    committed = state.committed()
    (rewrite,) = rewrites_of(
        slot, storage, {"rows": committed}, [file], lambda work: work(range(len(work.table.paths)))
    )
    left = tuple(storage.at(one.path) for one in rewrite.files)
    replaces = ReplacedFiles(version=rewrite.version, gone=rewrite.gone, left=left)
    return StagedFiles(paths=(storage.at(file.path),), num_rows=len(rows), replaces=replaces)


def two(table: ForeignParquetTable, state: Any) -> None:
    """Two files: of the keys 1 and 2, and of 3 and 4."""
    state.apply_files(ticket(1), processed(table, state, 1, (1, "a"), (2, "b")))
    state.apply_files(ticket(2), processed(table, state, 2, (3, "c"), (4, "d")))


# ---- what is replaced ------------------------------------------------------------------------------------------


def test_a_row_replaces_that_of_its_key_and_files_without_such_keys_stay(table: ForeignParquetTable) -> None:
    with table.opened() as state:
        two(table, state)
        (first, second) = table.named(table.version())
        files = processed(table, state, 3, (2, "new"), (5, "e"))
        assert state.apply_files(ticket(3), files) is Applied.APPLIED
        assert state.apply_files(ticket(3, fence=99), files) is Applied.ALREADY
        paths = [one["path"] for one in table.named(table.version())]
        assert second["path"] in paths
        assert first["path"] not in paths
        assert found(table) == [(1, "a"), (2, "new"), (3, "c"), (4, "d"), (5, "e")]
        assert dict(state.items())[(2,)] == ("new", None)
        last = processed(table, state, 4, (1, "x"), (2, "y"), (5, None, True), (7, None, True))
        state.apply_files(ticket(4, fence=100), last)
    assert found(table) == [(1, "x"), (2, "y"), (3, "c"), (4, "d")]


def test_a_batch_that_nobody_compared_with_the_table_is_by_the_committer(table: ForeignParquetTable) -> None:
    with table.opened() as state:
        two(table, state)
        assert state.apply(ticket(3), rows_of((2, "new"), (3, None, True))) is Applied.APPLIED
        bare = replace(processed(table, state, 4, (4, "e")), replaces=None)
        assert state.apply_files(ticket(4), bare) is Applied.APPLIED
    assert found(table) == [(1, "a"), (2, "new"), (4, "e")]


def test_columns_of_others_stay_and_a_key_moves_between_partitions(tmp_path: Path) -> None:
    table = keyed(tmp_path, partition_by=("word",))
    with table.opened() as state:
        table.add_column()
        more = rows_of((1, "a"), (2, "a")).append_column("more", pa.array(["x", "y"]))
        table.publish(files=table.written(more))
        state.apply_files(ticket(1), processed(table, state, 1, (1, "b")))
        assert sorted(map(str, table.read().select(["id", "word", "more"]).to_pylist())) == [
            "{'id': 1, 'word': 'b', 'more': None}",
            "{'id': 2, 'word': 'a', 'more': 'y'}",
        ]
        state.apply(ticket(2), rows_of((2, "b")))
    assert found(table) == [(1, "b"), (2, "b")]


def test_keys_of_all_types_are_found_and_a_null_of_others_is_none(tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    values = {
        "string": "a", "int": 1, "boolean": True, "date": datetime.date(2024, 1, 2), "binary": b"x",
        "decimal(10,2)": Decimal("1.50"), "time": datetime.time(1, 2, 3),
        "timestamp": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC),
    }  # fmt: skip
    for place, (kind, value) in enumerate(values.items()):
        fields = parse_declared(f"k {kind}, n long")
        made = ForeignParquetTable(tmp_path / str(place), fields)
        made.folder.mkdir()
        made.spec = replace(made.spec, keys=fields[:1], values=fields[1:], rewrites=True)
        with made.opened() as state:
            schema = state.committed().schema()
            rows = [pa.Table.from_pylist([{"k": one, "n": n}], schema=schema) for one, n in ((value, 1), (None, 2))]
            made.publish(files=[one for row in rows for one in made.written(row)])
            state.apply(ticket(1), pa.Table.from_pylist([{"k": value, "n": 3}], schema=schema))
        assert sorted(made.read()["n"].to_pylist()) == [2, 3], kind


# ---- others, zombies and kills ---------------------------------------------------------------------------------


def test_rows_that_others_added_since_then_are_never_guessed_at(table: ForeignParquetTable) -> None:
    with table.opened() as state:
        two(table, state)
        for act in (lambda: appended(table, (2, "theirs")), table.compact, lambda: table.delete("b")):
            files = processed(table, state, 3, (2, "ours"))
            act()
            before = found(table)
            with pytest.raises(TableChangedError, match="others have written to the Parquet table"):
                state.apply_files(ticket(3), files)
            assert found(table) == before
            assert state.marker().high == 2
        state.apply_files(ticket(3), processed(table, state, 3, (2, "ours")))
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d")]
    assert len(table.data_files()) == len({path.name for path in table.data_files()})


def test_versions_without_other_files_are_as_good(table: ForeignParquetTable) -> None:
    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "ours"))
        table.publish()
        table.publish(files=[one for one in table.named(table.version()) if one["path"] in files.replaces.gone])
        assert state.apply_files(ticket(3), files) is Applied.APPLIED
    assert found(table) == [(1, "a"), (2, "ours")], "what they deleted stays deleted"


def test_who_writes_while_it_commits_is_seen(table: ForeignParquetTable, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.opened() as state:
        two(table, state)
        before_the_commit(table, state, monkeypatch, lambda: appended(table, (2, "theirs")))
        with pytest.raises(TableChangedError):
            state.apply_files(ticket(3), processed(table, state, 3, (2, "ours")))
        before_the_commit(table, state, monkeypatch, lambda: appended(table, (2, "theirs again")))
        assert state.apply(ticket(3), rows_of((2, "ours"))) is Applied.APPLIED
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d")]
    named = {one["path"].removeprefix("_data/") for one in table.named(table.version())}
    left = {path.name for path in table.data_files()} - named
    assert not [name for name in left if name.startswith("trident-0000000000000000003")], "nothing written in vain"


@pytest.mark.parametrize("by", ["files", "rows"])
def test_a_zombie_changes_nothing(table: ForeignParquetTable, monkeypatch: pytest.MonkeyPatch, by: str) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(3, attempt=1, fence=99), processed(table, other, 3, (2, "new"), (5, "e")))

    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "zombie"), (5, "zombie"))
        before_the_commit(table, state, monkeypatch, newer)
        apply = {"files": state.apply_files, "rows": state.apply}[by]
        with pytest.raises(FencedError):
            apply(ticket(3), files if by == "files" else rows_of((2, "zombie")))
        with pytest.raises(FencedError):
            state.apply_files(ticket(3, fence=40), files)
    assert found(table) == [(1, "a"), (2, "new"), (3, "c"), (4, "d"), (5, "e")]


@pytest.mark.parametrize("by", ["files", "rows"])
def test_a_commit_that_got_no_answer_is_there_once(
    table: ForeignParquetTable, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with table.opened() as state:
        two(table, state)
        files = processed(table, state, 3, (2, "ours"))
        after_the_commit(table, state, monkeypatch, table.lost, lambda: appended(table, (9, "theirs")))
        done = state.apply_files(ticket(3), files) if by == "files" else state.apply(ticket(3), rows_of((2, "ours")))
        assert done in (Applied.APPLIED, Applied.ALREADY)
        assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d"), (9, "theirs")]
        after_the_commit(table, state, monkeypatch, OSError("lost"))
        files = processed(table, state, 4, (9, "ours"))
        with pytest.raises(OutcomeUnknownError, match="without an answer"):
            state.apply_files(ticket(4), files)
        assert state.apply_files(ticket(4, fence=50), files) is Applied.ALREADY
    assert found(table)[-1] == (9, "ours")


WORKER = """
import sys
from pathlib import Path
from tests.contracts.test_table_rewrites import keyed, processed
from tests.fixtures.object_store import Bucket
from tests.fixtures.state import ticket
from tests.fixtures.table import die_at

folder, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = keyed(folder)
state = table.opened()
files = processed(table, state, 3, (2, "ours"), (5, "e"))
die_at(table.steps[name](state), name, when)
state.apply_files(ticket(3), files)
"""
CUTS = [(when, step) for step in ForeignParquetTable.steps for when in ("before", "after")]


@pytest.mark.parametrize(("when", "step"), CUTS, ids=[" ".join(cut) for cut in CUTS])
def test_a_commit_killed_anywhere_is_there_whole_or_not_at_all(
    table: ForeignParquetTable, when: str, step: str
) -> None:
    with table.opened() as state:
        two(table, state)
    dead = subprocess.run([sys.executable, "-c", WORKER, str(table.folder), when, step], check=False)
    assert dead.returncode == -signal.SIGKILL
    steps = list(table.steps)
    is_there = steps.index(step) + (when == "after") > steps.index(table.decisive)
    assert ((2, "ours") in found(table)) is is_there
    with table.opened() as state:
        again = processed(table, state, 3, (2, "ours"), (5, "e"))
        done = state.apply_files(ticket(3, attempt=1, fence=77), again)
    assert done is (Applied.ALREADY if is_there else Applied.APPLIED)
    assert found(table) == [(1, "a"), (2, "ours"), (3, "c"), (4, "d"), (5, "e")]


# ---- in a topology ---------------------------------------------------------------------------------------------

BATCHES = [(1, "a", 1, False), (2, "b", 1, False), (2, "old", 1, False), (2, "c", 2, False), (1, None, 1, True),
           (3, "d", 1, None)]  # fmt: skip


def topology(
    table: ForeignParquetTable, rows: list[Row], most: int = 2, into: ParquetTable | None = None, **options: Any
) -> Topology:
    made = Topology("words")
    spout = FixedBatchSpout("id long, word string, at long, gone boolean", rows, most)
    stream = made.new_stream("changes", spout)
    stream.persist_table(into or ParquetTable(str(table.root)), mode="rewrite", keys="id", **options)
    return made


def run(table: ForeignParquetTable, rows: list[Row], engine: Any = None, **options: Any) -> None:
    with MemoryLedger("words") as ledger:
        LocalRunner(
            ledger=ledger,
            topology=topology(table, rows, **options),
            engine=engine or LocalEngine(),
            staging_root=str(table.folder / "staging"),
        ).run()


def test_a_topology_keeps_one_row_of_each_key(table: ForeignParquetTable) -> None:
    run(table, BATCHES, order_by="at", deleted="gone")
    assert found(table) == [(2, "c"), (3, "d")]


def test_spark_writes_the_files_anew(spark_engine: Any, table: ForeignParquetTable) -> None:
    rows = [(number, f"first {number}", 1, False) for number in range(40)]
    rows += [(number, f"second {number}", 1, number % 2 == 0) for number in range(30, 50)]
    run(table, rows, spark_engine, most=20, deleted="gone")
    kept = {number: f"first {number}" for number in range(30)}
    kept |= {number: f"second {number}" for number in range(31, 50, 2)}
    assert found(table) == sorted(kept.items())


@pytest.mark.parametrize("staging", ["a folder", "the bucket"])
def test_a_table_in_a_bucket_is_rewritten_by_whoever_sees_the_staged_files(
    bucket: Bucket, table: ForeignParquetTable, staging: str
) -> None:
    factory = ParquetTable(f"{bucket.uri}/sales")
    made = topology(table, BATCHES, into=factory, order_by="at", deleted="gone")
    root = f"{bucket.uri}/staging" if staging == "the bucket" else str(table.folder / "staging")
    with MemoryLedger("words") as ledger:
        LocalRunner(ledger=ledger, topology=made, engine=LocalEngine(), staging_root=root).run()
    assert sorted((row["id"], row["word"]) for row in factory.dataset().to_table().to_pylist()) == [(2, "c"), (3, "d")]


def test_null_keys_and_two_rows_of_a_key_are_one_error_of_processing(table: ForeignParquetTable) -> None:
    with pytest.raises(UserCodeError, match=r"transaction 1 has no 'id', a key of .* \(id=None\).*is_not_null"):
        run(table, [(1, "a", 1, False), (None, "b", 1, False)])
    with pytest.raises(UserCodeError, match=r"same key of state 'rows' \(id=1\) in transaction 1 and nothing says"):
        run(table, [(1, "a", 1, False), (1, "b", 1, False)])


class Work:
    """A topology step by step, with one committer for each step."""

    def __init__(self, table: ForeignParquetTable, ledger: Any, rows: list[Row]) -> None:
        self.table, self.ledger = table, ledger
        self.topology = topology(table, rows)
        self.root = str(table.folder / "staging")
        self.lines: list[str] = []
        self.runs = 0

    def process(self) -> int:
        self.runs += 1
        begun: Any = coordinate(self.ledger, self.topology, Claim(key=f"run-{self.runs}"))
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


def test_a_batch_is_processed_again_if_somebody_wrote_before_its_commit(table: ForeignParquetTable) -> None:
    with MemoryLedger("words") as ledger:
        work = Work(table, ledger, [(1, "a", 1, False), (2, "b", 1, False), (2, "c", 1, False)])
        work.commit(work.process())
        txid = work.process()
        table.publish(files=[*table.named(table.version()), *table.written(_foreign(2, "theirs"))])
        work.commit(txid)
        assert ledger.view(txid).tx.attempt == 1
        assert any("others have written to the Parquet table" in line for line in work.lines)
    assert found(table) == [(1, "a"), (2, "c")]


def test_a_commit_of_which_the_ledger_knows_only_the_gate_ends_as_one(
    table: ForeignParquetTable, monkeypatch: pytest.MonkeyPatch
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
            version = table.version()["version"]
            assert ledger.view(txid).tx.status is Status.COMMITTING
            shutil.rmtree(work.root)
            work.commit(txid)
            assert len(table.named(table.version())) == len(table.named(table.version(version)))
    assert found(table) == [(1, "a"), (2, "c"), (3, "d")]


def test_a_transaction_that_was_skipped_cannot_come_late(table: ForeignParquetTable) -> None:
    with MemoryLedger("words") as ledger:
        work = Work(table, ledger, [(1, "a", 1, False), (2, "b", 1, False), (2, "c", 1, False), (3, "d", 1, False)])
        txid = work.process()
        ledger.skip(txid, "a person said so")
        work.commit(work.process())
        with pytest.raises(LateBatchError, match="depends on the order"):
            process(ledger, work.topology, txid, LocalEngine(), work.root, Attempts(owner="test"))
    assert found(table) == [(2, "c"), (3, "d")]


def _foreign(key: int, word: str) -> pa.Table:
    return pa.table({"id": [key], "word": [word], "at": [0], "gone": [False]})


def _dead(*_args: Any, **_options: Any) -> None:
    raise KeyboardInterrupt


# ---- what is refused -------------------------------------------------------------------------------------------


def test_what_cannot_be_rewritten_is_refused_when_the_dag_is_built(tmp_path: Path) -> None:
    def persisted(into: Any, fields: str = "id long, word string, gone boolean", **options: Any) -> Topology:
        made = Topology("words")
        made.new_stream("s", FixedBatchSpout(fields, [], 1)).persist_table(into, mode="rewrite", **options)
        return made

    place = str(tmp_path / "t")
    for made, text in (
        (lambda: persisted(DeltaTable(place), keys="id"), "DeltaTable.*mode='rewrite'|mode='rewrite' and DeltaTable"),
        (lambda: persisted(IcebergTable("a.b"), keys="id"), "mode='rewrite' and IcebergTable"),
        (lambda: persisted(ParquetTable(place)), "mode='rewrite' and no keys"),
        (lambda: persisted(ParquetTable(place), keys="id", deleted="word"), "no such boolean field"),
        (lambda: persisted(ParquetTable(place), "id double, w string", keys="id"), "key id of type double"),
        (lambda: persisted(ParquetTable(place), "id array<long>, w string", keys="id"), "key id of type array"),
    ):
        with pytest.raises(PlanError, match=text):
            made()
    good = persisted(ParquetTable(place), keys="id")
    assert not good.compile().coalesces.passes
    assert "rewritten" in good.compile().coalesces.why
    assert pending_of(good.states, None) == pending_of(good.states, 1) == 1
    with pytest.raises(ConfigurationError, match="2 transactions at once, and state 'rows' has mode='rewrite'"):
        pending_of(good.states, 2)


def test_a_table_of_keys_has_one_writer(table: ForeignParquetTable, tmp_path: Path) -> None:
    with table.opened() as state:
        two(table, state)
    spec = table.spec
    for other, text in (
        (replace(spec, topology="others"), "has the rows of state 'rows' of topology 'words'|others writes to it"),
        (replace(spec, keys=(), values=FIELDS, rewrites=False, deleted=None), "has the rows of state 'rows'"),
        (replace(spec, deleted=None), r"rows by the keys \['id'\], deleted where gone, and not rows by"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            spec.factory.make_state(other)
    factory: Any = spec.factory
    with pytest.raises(ConfigurationError, match="no changes by key"):
        factory.latest()


def test_a_table_that_was_there_before_is_taken_unless_another_topology_writes_to_it(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    plain = replace(table.spec, keys=(), values=FIELDS, rewrites=False, deleted=None)
    with plain.factory.make_state(replace(plain, topology="others")) as other:
        appended(table, (1, "a"), (1, "again"), (2, "b"))
        with table.opened() as state:
            state.apply_files(ticket(1), processed(table, state, 1, (1, "ours")))
        assert found(table) == [(1, "ours"), (2, "b")]
        with pytest.raises(ConfigurationError, match="has the rows of state 'rows' of topology 'words'"):
            other.apply(ticket(1, topology="others"), rows_of((3, "theirs")))
    second = keyed(tmp_path / "second")
    with second.spec.factory.make_state(replace(plain, topology="others", factory=second.spec.factory)) as other:
        other.apply(ticket(1, topology="others"), rows_of((3, "theirs")))
    with pytest.raises(ConfigurationError, match="others/rows writes to it, too"):
        second.opened()


def test_a_rewritten_file_has_the_rows_in_few_row_groups(table: ForeignParquetTable, tmp_path: Path) -> None:
    with table.opened() as state:
        many = pa.table({"id": range(300_000), "word": ["w"] * 300_000, "gone": pa.nulls(300_000, pa.bool_())})
        table.publish(files=table.written(many))
        files = processed(table, state, 1, (7, "x"))
        (left,) = files.replaces.left
        assert pq.read_metadata(left).num_rows == 299_999
        assert pq.read_metadata(left).num_row_groups <= 3
