"""A Delta table that others may write, too: staged files become its own, once, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Count, DeltaTable, FixedBatchSpout, MemoryLedger, Topology
from airflow_trident.contracts.state import Applied, StagedFiles, StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    PlanError,
    StagingError,
)
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.states.delta.table import META, OpenDeltaTable
from airflow_trident.types import parse_declared
from tests.fixtures.state import ticket

FIELDS = parse_declared("word string, n long")


def spec_of(folder: Path) -> StateSpec:
    factory = DeltaTable(str(folder / "sales"))
    return StateSpec(topology="words", name="rows", keys=(), values=FIELDS, staged=FIELDS, factory=factory)


@pytest.fixture
def spec(tmp_path: Path) -> StateSpec:
    return spec_of(tmp_path)


def opened(spec: StateSpec) -> OpenDeltaTable:
    state = spec.factory.make_state(spec)
    assert isinstance(state, OpenDeltaTable)
    return state


def staged(folder: Path, *rows: tuple[Any, ...], files: int = 1) -> StagedFiles:
    """Each file with all of the rows."""
    table = pa.table({"word": [row[0] for row in rows], "n": pa.array([row[1] for row in rows], pa.int64())})
    paths = []
    for number in range(files):
        path = folder / f"staged-{number}-{len(os.listdir(folder))}.parquet"
        pq.write_table(table, path)
        paths.append(str(path))
    return StagedFiles(paths=tuple(paths), num_rows=table.num_rows * files)


def rows_of(spec: StateSpec) -> list[tuple[Any, ...]]:
    """As somebody reads the table who knows nothing of this package."""
    table = deltalake.DeltaTable(str(spec.factory.path))  # type: ignore[attr-defined]
    return sorted((row["word"], row["n"]) for row in table.to_pyarrow_table().to_pylist())


def foreign(spec: StateSpec) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(str(spec.factory.path))  # type: ignore[attr-defined]


# ---- by reference ----------------------------------------------------------------------------------------------


def test_staged_files_become_the_tables_once_and_no_data_are_copied(spec: StateSpec, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1), ("b", 2), files=2)
    with opened(spec) as state:
        assert state.apply_files(ticket(1), files) is Applied.APPLIED
        assert state.apply_files(ticket(1), files) is Applied.ALREADY
        assert state.apply_files(ticket(2), StagedFiles(paths=(), num_rows=0)) is Applied.APPLIED
    assert rows_of(spec) == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]
    inside = {os.stat(path).st_ino for path in (tmp_path / "sales").glob("*.parquet")}
    assert inside == {os.stat(path).st_ino for path in files.paths}


def test_what_the_log_says_of_a_file_leaves_nothing_out(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", -3), (None, 5)))
        state.apply_files(ticket(2), staged(tmp_path, ("x" * 100, 7)))
    table = foreign(spec)
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert sorted(one["num_records"] for one in found) == [1, 2]
    assert {(one["min.n"], one["max.n"]) for one in found} == {(-3, 5), (None, None)}
    assert sorted(one["null_count.word"] for one in found) == [0, 1]
    for name, value in (("word", "x" * 100), ("word", "a"), ("n", 5), ("n", 7)):
        assert table.to_pyarrow_table(filters=[(name, "=", value)]).num_rows == 1, "a reader finds it by its statistics"


def test_a_staged_file_that_is_gone_changes_nothing(spec: StateSpec, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1), files=2)
    os.remove(files.paths[1])
    with opened(spec) as state:
        with pytest.raises(StagingError, match=r"is missing.*emitted again"):
            state.apply_files(ticket(1), files)
        assert state.marker() is None
        assert not list((tmp_path / "sales").glob("*.parquet"))


def test_a_table_on_another_file_system_gets_copies(spec: StateSpec, tmp_path: Path, monkeypatch: Any) -> None:
    def other_device(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    files = staged(tmp_path, ("a", 1))
    with opened(spec) as state:
        monkeypatch.setattr(os, "link", other_device)
        state.apply_files(ticket(1), files)
    os.remove(files.paths[0])
    assert rows_of(spec) == [("a", 1)]


# ---- crashes and races -----------------------------------------------------------------------------------------

WORKER = """
import os, signal, sys
from pathlib import Path
from tests.contracts.test_delta_table import opened, spec_of, staged
from tests.fixtures.state import ticket

folder, where = Path(sys.argv[1]), sys.argv[2]
state = opened(spec_of(folder))


def killed(kind, name):
    step = getattr(kind, name)

    def stepped(*args, **kwargs):
        if where == f"before {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        found = step(*args, **kwargs)
        if where == f"after {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, name, stepped)


killed(os, "link")
killed(type(state), "_write_marker")
killed(type(state._table), "create_write_transaction")
killed(type(state), "_delete")
state.apply_files(ticket(3), staged(folder, ("b", 2)))
"""


@pytest.mark.parametrize("step", ["link", "_write_marker", "create_write_transaction", "_delete"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_committer_killed_anywhere_leaves_all_or_nothing(
    spec: StateSpec, tmp_path: Path, when: str, step: str
) -> None:
    with opened(spec) as state:
        for txid in (1, 2):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    dead = subprocess.run([sys.executable, "-c", WORKER, str(tmp_path), f"{when} {step}"], check=False)
    assert dead.returncode == -signal.SIGKILL
    is_applied = step == "_delete" or (when, step) == ("after", "create_write_transaction")
    assert (("b", 2) in rows_of(spec)) is is_applied
    with opened(spec) as state:
        answer = state.apply_files(ticket(3, fence=50), staged(tmp_path, ("b", 2)))
        assert answer is (Applied.ALREADY if is_applied else Applied.APPLIED)
    assert rows_of(spec) == [("a", 1), ("a", 2), ("b", 2)]


def before_the_commit(state: OpenDeltaTable, monkeypatch: Any, act: Callable[[], Any]) -> None:
    """`act` comes between the decision and the commit, once."""
    write = OpenDeltaTable._write_marker

    def others_first(self: OpenDeltaTable, *args: Any) -> None:
        monkeypatch.setattr(OpenDeltaTable, "_write_marker", write)
        write(self, *args)
        act()

    monkeypatch.setattr(OpenDeltaTable, "_write_marker", others_first)


def test_a_committer_that_was_stopped_before_its_commit_changes_nothing(
    spec: StateSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer() -> None:
        with opened(spec) as other:
            other.apply_files(ticket(1, fence=9), staged(tmp_path, ("a", 1)))

    with opened(spec) as state:
        before_the_commit(state, monkeypatch, newer)
        with pytest.raises(FencedError):
            state.apply_files(ticket(1, fence=8), staged(tmp_path, ("zombie", 1)))
        assert state.apply_files(ticket(1, fence=10), staged(tmp_path, ("a", 1))) is Applied.ALREADY
    assert rows_of(spec) == [("a", 1)]
    assert len(list((tmp_path / "sales").glob("*.parquet"))) == 1, "what was brought in vain is removed"
    assert len(list((tmp_path / "sales" / META).rglob("*.json"))) <= 2


def test_of_three_committers_one_appends(spec: StateSpec, tmp_path: Path) -> None:
    opened(spec).close()
    files = staged(tmp_path, ("a", 1))

    def commit(_: int) -> Applied:
        with opened(spec) as state:
            return state.apply_files(ticket(1), files)

    with ThreadPoolExecutor(3) as pool:
        answers = sorted(pool.map(commit, range(3)))
    assert answers == [Applied.ALREADY, Applied.ALREADY, Applied.APPLIED]
    assert rows_of(spec) == [("a", 1)]


# ---- what others do meanwhile ----------------------------------------------------------------------------------


def appended(spec: StateSpec) -> None:
    deltalake.write_deltalake(
        foreign(spec), pa.table({"word": ["other"], "n": pa.array([0], pa.int64())}), mode="append"
    )


def test_appends_and_compactions_of_others_between_decision_and_commit_are_no_harm(
    spec: StateSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        before_the_commit(state, monkeypatch, lambda: appended(spec))
        assert state.apply_files(ticket(2), staged(tmp_path, ("b", 2))) is Applied.APPLIED
        before_the_commit(state, monkeypatch, foreign(spec).optimize.compact)
        assert state.apply_files(ticket(3), staged(tmp_path, ("c", 3))) is Applied.APPLIED
    assert rows_of(spec) == [("a", 1), ("b", 2), ("c", 3), ("other", 0)]


def test_the_marker_survives_compaction_vacuum_and_clean_up_of_the_log(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        for txid in (1, 2):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    table = foreign(spec)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table.create_checkpoint()
    table.cleanup_metadata()
    with opened(spec) as state:
        assert state.apply_files(ticket(2, fence=50), staged(tmp_path, ("a", 2))) is Applied.ALREADY
        assert state.apply_files(ticket(3, fence=50), staged(tmp_path, ("a", 3))) is Applied.APPLIED
    assert rows_of(spec) == [("a", 1), ("a", 2), ("a", 3)]


def test_rows_that_others_delete_do_not_come_back(spec: StateSpec, tmp_path: Path) -> None:
    files = staged(tmp_path, ("a", 1))
    with opened(spec) as state:
        state.apply_files(ticket(1), files)
        foreign(spec).delete("word = 'a'")
        assert state.apply_files(ticket(1, fence=50), files) is Applied.ALREADY
    assert rows_of(spec) == []


def test_a_table_that_was_restored_below_the_marker_is_refused_until_it_is_restored_again(
    spec: StateSpec, tmp_path: Path
) -> None:
    with opened(spec) as state:
        for txid in (1, 2):
            state.apply_files(ticket(txid), staged(tmp_path, ("a", txid)))
    version = foreign(spec).version()
    foreign(spec).restore(version - 1)
    for act in (lambda state: state.marker(), lambda state: state.apply_files(ticket(3), staged(tmp_path, ("a", 3)))):
        with pytest.raises(CorruptRecordError, match=rf"restored to version {version - 1}.*Restore it to version"):
            act(OpenDeltaTable(spec.factory._place(), spec))  # type: ignore[attr-defined]
    foreign(spec).restore(version)
    assert rows_of(spec) == [("a", 1), ("a", 2)]


# ---- tables that are there -------------------------------------------------------------------------------------


def made(spec: StateSpec, ddl: list[Any], **options: Any) -> deltalake.DeltaTable:
    return deltalake.DeltaTable.create(str(spec.factory.path), deltalake.Schema(ddl), **options)  # type: ignore[attr-defined]


def column(name: str, kind: str, *, nullable: bool = True, **metadata: Any) -> deltalake.Field:
    return deltalake.Field(name, deltalake.schema.PrimitiveType(kind), nullable, metadata)


WORD, N = column("word", "string"), column("n", "long")
REFUSED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "a column less": ([WORD], {}, "has no column n"),
    "another type": ([WORD, column("n", "integer")], {}, "its column n is integer, and the field long"),
    "a column more without nulls": ([WORD, N, column("x", "long", nullable=False)], {}, "x takes no nulls"),
    "partitions": ([WORD, N], {"partition_by": ["word"]}, "is partitioned by word"),
    "a retention of transactions": (
        [WORD, N],
        {"configuration": {"delta.setTransactionRetentionDuration": "interval 30 days"}},
        "forgets what was applied",
    ),
    "an invariant": (
        [WORD, column("n", "long", **{"delta.invariants": '{"expression":{"expression":"n > 0"}}'})],
        {},
        "its column n has delta.invariants",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_files_cannot_be_added_to_is_refused(spec: StateSpec, case: str) -> None:
    fields, options, text = REFUSED[case]
    made(spec, fields, **options)
    with pytest.raises(ConfigurationError) as caught:
        opened(spec)
    assert text in str(caught.value)
    assert caught.value.cure


def test_a_constraint_that_comes_later_is_refused_when_it_is_there(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        foreign(spec).alter.add_constraint({"positive": "n > 0"})
        with pytest.raises(ConfigurationError, match="it has the constraint positive"):
            state.apply_files(ticket(2), staged(tmp_path, ("a", -1)))
    assert rows_of(spec) == [("a", 1)]


def test_columns_that_the_stream_lacks_are_null_and_those_without_nulls_get_none(
    spec: StateSpec, tmp_path: Path
) -> None:
    made(spec, [column("n", "long", nullable=False), WORD, column("more", "string")])
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
        with pytest.raises(ConfigurationError, match=r"column 'n' .* takes no nulls, and the batch has some"):
            state.apply_files(ticket(2), staged(tmp_path, ("b", None)))
        marker = state.marker()
        assert marker is not None
        assert marker.high == 1
    assert foreign(spec).to_pyarrow_table().select(["n", "word", "more"]).to_pylist() == [
        {"n": 1, "word": "a", "more": None}
    ]


def test_two_topologies_append_to_one_table(spec: StateSpec, tmp_path: Path) -> None:
    from dataclasses import replace

    for topology in ("words", "others"):
        with opened(replace(spec, topology=topology)) as state:
            assert state.apply_files(ticket(1), staged(tmp_path, (topology, 1))) is Applied.APPLIED
    assert rows_of(spec) == [("others", 1), ("words", 1)]


def test_a_marker_that_is_lost_or_damaged_is_not_guessed_at(spec: StateSpec, tmp_path: Path) -> None:
    with opened(spec) as state:
        state.apply_files(ticket(1), staged(tmp_path, ("a", 1)))
    (path,) = (tmp_path / "sales" / META).rglob("*.json")
    content = json.loads(path.read_text())
    for text in ("", "[]", json.dumps({**content, "of": ["other", "rows"]})):
        path.write_text(text)
        with pytest.raises(CorruptRecordError, match="is damaged"):
            opened(spec)
    path.unlink()
    with pytest.raises(CorruptRecordError, match="has no file"):
        opened(spec)


# ---- in a topology ---------------------------------------------------------------------------------------------


def test_a_topology_appends_its_stream_to_a_table(tmp_path: Path) -> None:
    topology = Topology("words")
    words = topology.new_stream("words", FixedBatchSpout("word string, n long", [("a", 1), ("b", 2)]))
    words.persist_table(DeltaTable(str(tmp_path / "sales")), name="sales")
    with MemoryLedger("words") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "st"))
        runner.run()
    assert deltalake.DeltaTable(str(tmp_path / "sales")).to_pyarrow_table().to_pylist() == [
        {"word": "a", "n": 1},
        {"word": "b", "n": 2},
    ]
    links = {os.stat(path).st_nlink for path in (tmp_path / "sales").glob("*.parquet")}
    assert links == {2}, "the staged files themselves"


def test_what_is_no_table_and_other_modes_are_refused_when_the_dag_is_built(tmp_path: Path) -> None:
    words = Topology("words").new_stream("words", FixedBatchSpout("word string", ["a"]))
    with pytest.raises(PlanError, match="persist_table got mode='upsert'"):
        words.persist_table(DeltaTable(str(tmp_path)), mode="upsert")
    with pytest.raises(PlanError, match="persist_table got"):
        words.persist_table("sales")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="only appends"):
        words.group_by("word").persistent_aggregate(DeltaTable(str(tmp_path)), Count(), "n")
    with pytest.raises(ConfigurationError, match="neither times nor intervals"):
        words.each("word", lambda word: [None], "at time").persist_table(DeltaTable(str(tmp_path)))
