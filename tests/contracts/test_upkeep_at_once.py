"""Two upkeep commands, and a committer, on one state at the same time: each has decided before any of them commits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident.contracts.state import Applied, StateSpec, Upkeep
from airflow_trident.errors import ConfigurationError
from airflow_trident.runtime.upkeep import keep_up
from airflow_trident.states.delta.state import DeltaState
from tests.fixtures.state import batch, content, counts, ticket

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


def test_removing_what_another_one_is_about_to_commit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"keep_removed_h=0.*about to commit"):
        DeltaState("/srv/states", keep_removed_h=0)
