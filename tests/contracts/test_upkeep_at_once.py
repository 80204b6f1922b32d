"""Two upkeep commands, and a committer, on one state at the same time: each has decided before any of them commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident.contracts.state import Applied, StateSpec
from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.errors import ConfigurationError, CorruptRecordError, TableChangedError
from airflow_trident.runtime.upkeep import keep_up
from airflow_trident.staging.table_compaction import Compacted, CompactedFile, CompactionWork
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.states.tables.upserts import latest_changes
from tests.contracts.test_table_upserts import changes, changes_table, latest, three
from tests.fixtures.state import batch, content, counts, ticket
from tests.fixtures.table import TABLES, before_the_commit

Act = Callable[[], Any]


def at_once(monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, *acts: Act) -> list[Any]:
    """What each gives. None goes beyond its first `step`, in which it commits, before all are there."""
    together, there, original = threading.Barrier(len(acts), timeout=120), threading.local(), getattr(owner, step)

    def stepped(*args: Any, **options: Any) -> Any:
        if not getattr(there, "was", False):
            there.was = True
            together.wait()
        return original(*args, **options)

    with monkeypatch.context() as patch, ThreadPoolExecutor(len(acts)) as pool:
        patch.setattr(owner, step, stepped)
        return [one.result() for one in [pool.submit(act) for act in acts]]


def kept_up(spec: StateSpec, act: Upkeep) -> Act:
    """As the command and the operator do it."""
    return lambda: keep_up(spec, act, lambda line: None)


@pytest.mark.parametrize("kind", TABLES)
def test_two_compactions_and_a_commit_at_once_leave_the_latest_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
        owner = table.steps[table.decisive](state)
    newer = changes(tmp_path, 4, (1, "newer", None), (5, "e", None))

    def committed() -> Applied:
        with table.opened() as state:
            return state.apply_files(ticket(4), newer)

    compact = kept_up(table.spec, Upkeep.COMPACT)
    *compacted, applied = at_once(monkeypatch, owner, table.decisive, compact, compact, committed)
    assert applied is Applied.APPLIED
    assert True in compacted
    assert latest(table) == {1: "newer", 3: "d", 5: "e"}
    while compact():
        pass
    assert latest(table) == {1: "newer", 3: "d", 5: "e"}
    assert table.read().num_rows == 3
    with table.opened() as state:
        assert state.apply_files(ticket(4, fence=99), newer) is Applied.ALREADY


@pytest.mark.parametrize("kind", TABLES)
def test_a_compaction_that_others_overtake_twice_removes_no_file_for_which_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """First somebody adds a column, so that all is made anew; while that goes on, a file of others is gone."""
    table, works = changes_table(TABLES[kind], tmp_path), list[CompactionWork]()

    def by(work: CompactionWork) -> Compacted:
        works.append(work)
        if len(works) == 2:
            state.apply_files(ticket(4), changes(tmp_path, 4, (4, "e", None)))
            raise TableChangedError("a file that others had is gone", "A newer version is read.")
        places = range(len(work.table.paths))
        rows = pa.Table.from_batches((one for place in places for one in work.table.pieces(place)), work.table.schema())
        path = tmp_path / f"compacted-{len(works)}.parquet"
        pq.write_table(latest_changes(rows, ("id",), "gone"), path)
        return Compacted(gone=tuple(places), files=(CompactedFile(path=str(path), place=0),))

    with table.opened() as state:
        three(state, tmp_path)
        before_the_commit(table, state, monkeypatch, table.add_column)
        assert state.compact(by=by)
    assert latest(table) == {1: "c", 3: "d", 4: "e"}
    assert len(works) == 3


@pytest.mark.parametrize("kind", TABLES)
def test_a_compaction_here_decides_anew_if_its_files_were_replaced_and_removed_and_else_names_the_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
        read = type(state)._read

        def others_first(self: Any, *args: Any) -> Any:
            monkeypatch.setattr(type(state), "_read", read)
            table.forget()
            return read(self, *args)

        monkeypatch.setattr(type(state), "_read", others_first)
        assert state.compact()
        assert latest(table) == {1: "c", 3: "d"}
        state.apply_files(ticket(4), changes(tmp_path, 4, (1, "e", None)))
        next(path for path in table.data_files() if f"-{4:019d}-" in path.name).unlink()
        with pytest.raises(CorruptRecordError, match=r"trident-.* is gone, and no other.*Bring the file back"):
            state.compact()


@pytest.mark.parametrize("acts", [("fold", "fold"), ("fold", "publish"), ("publish", "publish")], ids=" and ".join)
def test_two_upkeeps_of_a_delta_state_and_a_commit_at_once_leave_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acts: tuple[str, str]
) -> None:
    spec = counts(DeltaState(str(tmp_path), table="n", fold_at=None, keep_removed_h=1))
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2, 3):
            state.apply(ticket(txid), batch(spec, ("a", 1), (f"w{txid}", txid)))

    def committed() -> Applied:
        with spec.factory.make_state(spec) as state:
            applied: Applied = state.apply(ticket(4), batch(spec, ("a", 10)))
            return applied

    *done, applied = at_once(
        monkeypatch,
        deltalake.DeltaTable,
        "create_write_transaction",
        *(kept_up(spec, Upkeep(act)) for act in acts),
        committed,
    )
    assert applied is Applied.APPLIED
    assert True in done
    found = {("a",): (13,), ("w1",): (1,), ("w2",): (2,), ("w3",): (3,)}
    for act in (Upkeep.FOLD, Upkeep.PUBLISH):
        kept_up(spec, act)()
    with spec.factory.make_state(spec) as state:
        assert content(state) == found
        assert state.apply(ticket(4, fence=99), batch(spec, ("a", 10))) is Applied.ALREADY
    published = deltalake.DeltaTable(str(tmp_path / "n_latest")).to_pyarrow_table().to_pylist()
    assert {(row["word"],): (row["n"],) for row in published} == found


@pytest.mark.parametrize("hours", [0, -1])
def test_removing_what_another_one_is_about_to_commit_is_refused(hours: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"keep_removed_h={hours}.*about to commit"):
        DeltaState("/srv/states", keep_removed_h=hours)
