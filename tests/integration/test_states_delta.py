"""Delta states over what the contract does not ask: folding, kills, other writers and readers, what a commit costs."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    FencedError,
    UserCodeError,
)
from airflow_trident.operations.aggregators import Max, Sum
from airflow_trident.states.delta.runs import Runs, runs_of
from airflow_trident.states.delta.state import DeltaState, OpenDeltaState
from tests.fixtures.program import run_code
from tests.fixtures.state import (
    appended,
    batch,
    combined,
    content,
    counts,
    keep_longest,
    parse_declared,
    product,
    ticket,
)


def opened(folder: Path, make: Callable[[Any], StateSpec] = counts, **options: Any) -> tuple[OpenDeltaState, StateSpec]:
    spec = make(DeltaState(str(folder), **options))
    state = spec.factory.make_state(spec)
    assert isinstance(state, OpenDeltaState)
    return state, spec


def longest(factory: Any) -> StateSpec:
    spec = combined(factory, "word string", "line string")
    return replace(spec, updater=keep_longest, staged=parse_declared("word string, line string"))


# ---- folding ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fold_at", [None, 2, 5])
@pytest.mark.parametrize("opaque", [False, True])
def test_folding_changes_files_and_no_value(tmp_path: Path, fold_at: int | None, opaque: bool) -> None:
    state, spec = opened(tmp_path, lambda factory: replace(counts(factory), opaque=opaque), fold_at=fold_at)
    for txid in range(1, 31):
        state.apply(ticket(txid), batch(spec, ("a", 1), (f"w{txid % 7}", txid)))
    before = state.marker(), content(state)
    state.fold()
    assert (state.marker(), content(state)) == before
    assert before[1][("a",)] == (30,)
    assert len(files_of(state)) == (2 if opaque else 1)
    assert content(spec.factory.make_state(spec)) == before[1]
    assert state.apply(ticket(30), batch(spec, ("a", 1))) is Applied.ALREADY


def test_the_number_of_files_stays_small(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, fold_at=6)
    most = 0
    for txid in range(1, 80):
        state.apply(ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(txid, txid + 20))))
        most = max(most, len(files_of(state)))
    assert most <= 12
    assert sum(value for (value,) in content(state).values()) == 79 * 20


@pytest.mark.parametrize(
    "limit", [{"fold_max_rows": 60}, {"fold_max_bytes": 3_000}, {"fold_max_rows": 60, "fold_max_bytes": 10**9}]
)
def test_a_commit_folds_no_more_than_its_limit_and_files_beyond_it_stay(tmp_path: Path, limit: dict[str, int]) -> None:
    state, spec = opened(tmp_path, fold_at=4, **limit)
    most = 0
    for txid in range(1, 25):
        state.apply(ticket(txid), batch(spec, *((f"w{txid}-{number}", 1) for number in range(20))))
        files = files_of(state)
        most = max(most, *(run.rows for run in files))
        assert all(run.bytes <= limit.get("fold_max_bytes", run.bytes) for run in files)
    assert 20 < most <= limit.get("fold_max_rows", most)
    assert len(files_of(state)) > 2
    assert len(content(state)) == 24 * 20
    assert state.fold()
    assert len(files_of(state)) == 1
    assert len(content(state)) == 24 * 20


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_what_is_too_large_for_a_commit_to_fold_is_not_read_and_the_warning_names_the_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, spec = opened(tmp_path, fold_at=4, fold_max_rows=30)
    with monkeypatch.context() as patched:
        patched.setattr(Runs, "read", lambda *_: pytest.fail("a file was read"))
        for txid in range(1, 9):
            state.apply(ticket(txid), batch(spec, *((f"w{number}", 1) for number in range(20))))
    assert len(files_of(state)) == 8
    (said,) = warned(caplog)
    assert "4 files with 80 rows" in said
    assert f"airflow trident state fold {spec.topology} {spec.name}" in said
    assert state.fold()
    state.apply(ticket(9), batch(spec, ("w0", 1)))
    assert content(state)[("w0",)] == (9,)
    assert warned(caplog) == [said]


@pytest.mark.parametrize(
    "error", [pa.ArrowMemoryError("malloc of size 99 failed"), pa.ArrowInvalid("malloc: offset overflow, 2 GiB")]
)
def test_a_commit_is_applied_though_its_state_cannot_be_folded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def short_of_memory(*_: object) -> pa.Table:
        raise error

    state, spec = opened(tmp_path, fold_at=2)
    monkeypatch.setattr(Runs, "read", short_of_memory)
    for txid in (1, 2):
        assert state.apply(ticket(txid), batch(spec, ("a", 1))) is Applied.APPLIED
    assert re.search(r"Transaction 2 is applied, and its state was not folded: .*malloc", caplog.text)


@pytest.mark.parametrize("name", ["fold_max_rows", "fold_max_bytes"])
def test_a_limit_of_folding_that_takes_nothing_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}=0"):
        opened(tmp_path, **{name: 0})


def test_folding_forgets_what_was_removed_and_keeps_the_order_of_updates(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, longest, fold_at=None)
    batches = ([("a", "x"), ("b", "y")], [("a", None), ("b", "yyy")], [("c", "z")], [("c", None)])
    for txid, rows in enumerate(batches, 1):
        state.apply(ticket(txid), batch(spec, *rows))
        if txid == 3:
            state.fold(at=3)
    assert content(state) == {("b",): ("yyy",)}
    state.fold()
    assert content(state) == {("b",): ("yyy",)}
    assert [run.rows for run in files_of(state)] == [1]


def test_a_fold_and_a_batch_at_once_lose_nothing(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, fold_at=None)
    other, _ = opened(tmp_path, fold_at=None)
    for txid in (1, 2, 3):
        state.apply(ticket(txid), batch(spec, ("a", 1)))
    snapshot = other._snapshot

    def overtaken() -> Any:
        """After the other has seen its snapshot, and before it commits."""
        other._snapshot = snapshot  # type: ignore[method-assign]
        seen = snapshot()
        state.apply(ticket(4), batch(spec, ("a", 10)))
        return seen

    other._snapshot = overtaken  # type: ignore[method-assign]
    assert other.fold()
    assert content(other) == {("a",): (13,)}
    assert len(files_of(other)) == 1


def test_a_zombie_that_saw_an_older_snapshot_is_fenced(tmp_path: Path) -> None:
    state, spec = opened(tmp_path)
    zombie, _ = opened(tmp_path)
    state.apply(ticket(1), batch(spec, ("a", 1)))
    snapshot = zombie._snapshot

    def paused() -> Any:
        zombie._snapshot = snapshot  # type: ignore[method-assign]
        seen = snapshot()
        state.apply(ticket(2, fence=22), batch(spec, ("a", 10)))
        return seen

    zombie._snapshot = paused  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        zombie.apply(ticket(2, fence=21), batch(spec, ("a", 10)))
    assert content(state) == {("a",): (11,)}


def test_a_file_of_its_own_that_is_gone_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, fold_at=None)
    for txid in (1, 2):
        state.apply(ticket(txid), batch(spec, ("a", txid)))
    first, last = files_of(state)
    for gone, ask in ((first, lambda: content(state)), (last, lambda: state.apply(ticket(3), batch(spec, ("a", 3))))):
        path = Path(state.place.where) / gone.path
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(
            CorruptRecordError, match=rf"{gone.path}.* with 1 rows of its commit {gone.commit}, is gone"
        ):
            ask()
        path.write_bytes(data)
    assert content(state) == {("a",): (3,)}


# ---- what a commit costs ---------------------------------------------------------------------------------------


def files_of(state: OpenDeltaState) -> list[Any]:
    return state._snapshot()[0]


def sizes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


class Opened:
    """Counts what a state reads."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self.bytes = 0

    def open_input_file(self, path: str) -> Any:
        self.bytes += self._files.get_file_info(path).size
        return self._files.open_input_file(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def test_t6_a_commit_reads_and_writes_as_much_however_large_the_state_is(tmp_path: Path) -> None:
    cost = []
    for keys in (1_000, 1_000_000):
        folder = tmp_path / str(keys)
        state, spec = opened(folder, fold_at=None)
        words = pa.array([f"w{number}" for number in range(keys)])
        for txid in (1, 2):
            state.apply(ticket(txid), pa.table({"word": words, "n": pa.array([1] * keys, pa.int64())}))
        state.fold()
        for txid in (3, 4):
            state.apply(ticket(txid), batch(spec, *((f"w{number * 7}", 1) for number in range(50))))
        before = sizes(folder)
        state._files = Opened(state._files)  # type: ignore[assignment]
        state.apply(ticket(5), batch(spec, *((f"w{number * 7}", 1) for number in range(50))))
        written = {path: size for path, size in sizes(folder).items() if path not in before}
        cost.append((len(written), sum(written.values()), state._files.bytes))
        assert state.get_many([("w7",), ("w8",), ("none",)]) == [(5,), (2,), None]
    (files, written, read), large = cost
    assert files == large[0] == 2, "one of rows, one of the log"
    assert abs(large[1] - written) < 0.05 * written
    assert abs(large[2] - read) < 0.05 * read


def test_t8_a_look_up_reads_the_row_groups_that_may_have_the_key(tmp_path: Path) -> None:
    from airflow_trident.states.delta.runs import _groups

    state, spec = opened(tmp_path)
    state.apply(ticket(1), batch(spec, *((f"w{number:06}", number) for number in range(50_000))))
    (run,) = files_of(state)
    metadata = pq.ParquetFile(tmp_path / "words_counts" / run.path).metadata
    assert metadata.num_row_groups == 7
    assert _groups(metadata, ["w000000", "w049999"]) == [0, 6]
    assert _groups(metadata, ["x"]) == []
    assert _groups(metadata, [None]) == list(range(7))


# ---- sums --------------------------------------------------------------------------------------------------------


def test_a_sum_that_overflows_is_found_though_nothing_is_read_as_long_as_it_cannot(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, lambda factory: combined(factory, "k string", "s long, m long", Sum(), Max()))
    state.apply(ticket(1), batch(spec, ("a", 2**62, 2**63 - 1)))
    state.apply(ticket(2), batch(spec, ("a", 2**62 - 1, 5)))
    with pytest.raises(UserCodeError, match=r"does not fit its field: s long"):
        state.apply(ticket(3), batch(spec, ("a", 1, 1)))
    state.apply(ticket(3), batch(spec, ("b", 1, 1)))
    state.fold()
    assert content(state) == {("a",): (2**63 - 1, 2**63 - 1), ("b",): (1, 1)}


# ---- others ------------------------------------------------------------------------------------------------------


def test_anybody_can_read_the_table(tmp_path: Path) -> None:
    state, spec = opened(tmp_path, fold_at=None)
    for txid in (1, 2):
        state.apply(ticket(txid), batch(spec, ("a", txid), ("b", 1)))
    rows = DeltaTable(tmp_path / "words_counts").to_pyarrow_table()
    assert sorted(rows.column_names) == ["_commit", "_order", "_txid", "n", "word"]
    assert sorted(rows.group_by("word").aggregate([("n", "sum")]).to_pylist(), key=str) == [
        {"word": "a", "n_sum": 3},
        {"word": "b", "n_sum": 2},
    ]


def test_a_table_that_somebody_else_wrote_to_is_refused(tmp_path: Path) -> None:
    state, spec = opened(tmp_path)
    state.apply(ticket(1), batch(spec, ("a", 1)))
    more = {"word": ["x"], "n": [1], "_commit": [9], "_order": [9], "_txid": [9]}
    write_deltalake(tmp_path / "words_counts", pa.table(more), mode="append")
    with pytest.raises(CorruptRecordError, match=r"at commit 1 and has files up to 9.*restore"):
        state.apply(ticket(2), batch(spec, ("a", 1)))


def foreign_rows(table: DeltaTable, commit: int) -> None:
    more = {"word": ["a"], "n": [1], "_commit": [commit], "_order": [commit], "_txid": [commit]}
    write_deltalake(table, pa.table(more), mode="append")


def added_twice(table: DeltaTable, commit: int) -> None:
    """A file of the state under a second name, with its footer."""
    (run,) = (one for one in runs_of(table) if one.commit == commit)
    folder = Path(table.table_uri.removeprefix("file://"))
    shutil.copy(folder / run.path, folder / "copy.parquet")
    entry = AddAction("copy.parquet", run.bytes, run.partition, 0, True, run.stats)
    table.create_write_transaction([entry], mode="append", schema=table.schema())


CHANGES: dict[str, Callable[[DeltaTable, int], object]] = {
    "rows with the marks of a commit": foreign_rows,
    "a copy of a file": added_twice,
    "a file is removed": lambda table, commit: table.delete(f"_commit = {commit}"),
    "a file is written again": lambda table, commit: table.update({"n": "n + 1"}, predicate=f"_commit = {commit}"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("commit", [1, 2, 3])
def test_files_that_another_program_adds_copies_removes_or_rewrites_are_refused(
    tmp_path: Path, change: str, commit: int
) -> None:
    state, spec = opened(tmp_path)
    for txid in (1, 2, 3):
        state.apply(ticket(txid), batch(spec, ("a", 1)))
    CHANGES[change](DeltaTable(tmp_path / "words_counts"), commit)
    for ask in (
        state.marker,
        lambda: content(state),
        lambda: state.apply(ticket(4), batch(spec, ("a", 1))),
        state.fold,
    ):
        with pytest.raises(CorruptRecordError, match=r"(?i)restore"):
            ask()
    DeltaTable(tmp_path / "words_counts").restore(3)
    assert state.apply(ticket(4), batch(spec, ("a", 1))) is Applied.APPLIED
    assert state.fold()
    assert content(state) == {("a",): (4,)}


def test_a_table_of_another_state_or_of_other_fields_is_refused(tmp_path: Path) -> None:
    opened(tmp_path, table="t")
    factory = DeltaState(str(tmp_path), table="t")
    with pytest.raises(ConfigurationError, match="belongs to state 'counts' of topology 'words', not to state 'two'"):
        factory.make_state(counts(factory, name="two"))
    with pytest.raises(DefinitionChangedError, match="word string -> n double"):
        factory.make_state(combined(factory, "word string", "n double", Sum()))
    write_deltalake(tmp_path / "other", pa.table({"a": [1]}))
    other = DeltaState(str(tmp_path), table="other")
    with pytest.raises(ConfigurationError, match="belongs to something else"):
        other.make_state(counts(other))


def test_fields_that_are_no_columns_beside_each_other_are_refused(tmp_path: Path) -> None:
    factory = DeltaState(str(tmp_path))
    with pytest.raises(ConfigurationError, match="the field 'N'"):
        factory.make_state(combined(factory, "n string", "N long", Sum()))


def test_options_and_their_secrets_are_shown_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", "aws://key-id:not-for-logs@/?endpoint_url=http%3A%2F%2F127.0.0.1%3A1")
    options = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "none", "max_retries": "0", "retry_timeout": "1s"}
    factory = DeltaState("s3://bucket/states", conn_id="lake", storage_options=options)
    with pytest.raises(Exception, match="cannot be read or written") as caught:
        factory.make_state(counts(factory))
    assert "not-for-logs" not in f"{factory!r} {factory.describe()} {caught.value} {caught.value.__cause__}"


# ---- kills -------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys
from airflow_trident.states.delta.runs import Runs
from airflow_trident.states.delta.state import DeltaState, OpenDeltaState
from airflow_trident.states.delta import runs as delta_runs
from tests.fixtures.state import appended, batch, counts, product, ticket
folder, kind, where, txid = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
spec = {"counts": counts, "product": product, "appended": appended}[kind](DeltaState(folder, fold_at=2))
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
if where == "before the commit":
    write = delta_runs.Runs.write
    def dies_after(*arguments, **more):
        write(*arguments, **more)
        die()
    delta_runs.Runs.write = dies_after
if where == "before the fold":
    OpenDeltaState.fold = die
rows = [("a", "x", 1)] if kind == "appended" else [("a", 2), ("b", 3)]
if where == "in the fold":
    OpenDeltaState._bounds = die
spec.factory.make_state(spec).apply(ticket(txid), batch(spec, *rows))
if where == "after all":
    die()
"""


@pytest.mark.parametrize("where", ["before the commit", "before the fold", "in the fold", "after all"])
def test_a_kill_at_any_point_leaves_all_of_a_batch_or_nothing(tmp_path: Path, where: str) -> None:
    make, rows = counts, [("a", 2), ("b", 3)]
    state, spec = opened(tmp_path, make, fold_at=2)
    state.apply(ticket(1), batch(spec, *rows))
    assert run_code(PROGRAM, tmp_path, "counts", where, 2).returncode == -signal.SIGKILL
    nothing = where == "before the commit"
    assert content(state) == ({("a",): (2,), ("b",): (3,)} if nothing else {("a",): (4,), ("b",): (6,)})
    again = state.apply(ticket(2, fence=21), batch(spec, *rows))
    assert again is (Applied.APPLIED if nothing else Applied.ALREADY)
    state.apply(ticket(3), batch(spec, *rows))
    assert content(state) == {("a",): (6,), ("b",): (9,)}


@pytest.mark.parametrize("make", [product, appended])
def test_what_must_be_read_first_is_merged_as_well(tmp_path: Path, make: Callable[[Any], StateSpec]) -> None:
    state, spec = opened(tmp_path, make, fold_at=3)
    rows = [("a", "x", 1), ("b", "y", 1)] if make is appended else [("a", 2), ("b", 3)]
    for txid in range(1, 8):
        state.apply(ticket(txid), batch(spec, *rows))
    assert content(state) == (
        {("a",): ("x" * 7,), ("b",): ("y" * 7,)} if make is appended else {("a",): (2**7,), ("b",): (3**7,)}
    )
