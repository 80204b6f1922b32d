"""A value that is larger than its store takes is refused in our words, before anything is applied."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, DeltaState, FixedBatchSpout, PostgresState, RedisState, SqliteState, Topology
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, HeldError, Outcome
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.plan.commit.window_updater import _encode
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.repair import accept_definition, take_back
from airflow_trident.types import parse_declared

SALES = [("apple", place * 1_000) for place in range(120)]


def topology_of(
    store: StateFactory, rows: list[tuple[Any, ...]], slide_s: int = 1, name: str | None = None, *, counts: bool = False
) -> Topology:
    """:param counts: beside the windows there is a state that takes everything, before them."""
    topology = Topology("large")
    sales = topology.new_stream("sales", FixedBatchSpout("fruit string, at long", rows, 40))
    if counts:
        sales.group_by("fruit").persistent_aggregate(store, Count(), "many", name="counts")
    slide, minute = timedelta(seconds=slide_s), timedelta(minutes=1)
    minutes = sales.sliding_window(
        minute, slide, store, Count(), "n", time="at", max_ahead=None, bounds=True, name=name
    )
    minutes.partition_persist(store, "window_start, n", keys="window_start", name="minutes")
    return topology


def run(topology: Topology, folder: Path, ledger: MemoryLedger) -> None:
    with LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(folder / "staging")).run()


def test_a_window_that_is_larger_than_its_store_takes_is_refused_and_goes_on_where_it_takes_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteState(str(tmp_path / "w.db"))
    topology, ledger = topology_of(store, SALES), MemoryLedger("large")
    with monkeypatch.context() as patched:
        patched.setattr(SqliteState, "max_value_bytes", 4_000)
        with pytest.raises(ConfigurationError) as refused:
            run(topology, tmp_path, ledger)
    error = refused.value
    assert error.outcome is Outcome.FAIL
    assert "WindowUpdater of state 'n_window' gave the key (part='fired', pane=0, chunk=0) a value of " in error.message
    assert error.message.endswith("takes 4,000")
    assert "larger slide" in error.cure
    with store.make_state(topology.states["n_window"]) as state:
        marker = state.marker()
        assert marker is None or marker.high == 0
    run(topology, tmp_path, ledger)
    with store.make_state(topology.states["n_window"]) as state:
        marker = state.marker()
        assert marker is not None
        assert marker.high == 3


@pytest.mark.parametrize("held", [False, True])
def test_a_transaction_whose_window_is_refused_for_good_is_skipped_or_goes_on_with_another_window(
    held: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteState(str(tmp_path / "w.db"))
    monkeypatch.setattr(SqliteState, "max_value_bytes", 4_000)
    topology, ledger = topology_of(store, SALES, counts=held), MemoryLedger("large")
    with pytest.raises(ConfigurationError, match="airflow trident take-back"):
        run(topology, tmp_path, ledger)
    (stuck,) = ledger.transactions()
    assert stuck.status is Status.COMMITTING
    if held:  # a state that was before the window has it
        with pytest.raises(HeldError, match="'counts' holds transaction 1"):
            take_back(ledger, topology, 1, owner="somebody", reason="a window beyond its store")
        ahead = topology_of(store, SALES, 30, "halves", counts=True)
        accept_definition(ledger, ahead)
    else:
        take_back(ledger, topology, 1, owner="somebody", reason="a window beyond its store")
        ledger.skip(1, "a window beyond its store")
        ahead = topology
        monkeypatch.undo()
    run(ahead, tmp_path, ledger)
    committed = Status.COMMITTED
    assert [one.status for one in ledger.transactions()] == [
        committed if held else Status.SKIPPED,
        committed,
        committed,
    ]


@pytest.mark.parametrize(
    ("store", "wall_bytes"),
    [(PostgresState, 2**29), (SqliteState, 10**9), (RedisState, 2**29), (DeltaState, 2**31)],
)
def test_the_limit_is_just_below_the_one_of_the_store(store: type[StateFactory], wall_bytes: int) -> None:
    most = store.max_value_bytes
    assert most is not None
    assert 0.93 * wall_bytes < most < wall_bytes


def test_what_a_tuple_of_a_window_takes() -> None:
    """docs/scale.md reckons with it: a number and a moment, and in what fired the two ends of the window."""
    rows: list[tuple[Any, ...]] = [(place, place * 1_000) for place in range(10_000)]
    stored = len(_encode(parse_declared("n long, at long"), rows)) / len(rows)
    ends = [(0, 60_000, *row) for row in rows]
    fired = len(_encode(parse_declared("window_start long, window_end long, n long, at long"), ends)) / len(rows)
    assert 16 <= stored < 16.5
    assert 32 <= fired < 32.5
