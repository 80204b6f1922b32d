"""Windows against a naive reference: whatever the batches are, each tuple is in its windows once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import gcd
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, MemoryState, SqliteState, Sum, Topology
from airflow_trident.contracts.state import Applied, State, StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import DefinitionChangedError, FieldError, LateBatchError, PlanError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.windows import (
    SlidingCountWindow,
    SlidingDurationWindow,
    TumblingCountWindow,
    TumblingDurationWindow,
    WindowConfig,
)
from airflow_trident.plan.commit.window_updater import COMMIT_TIME, WindowUpdater
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.types import names_of, parse_declared
from tests.fixtures.plan import PaperSpout, PaperState
from tests.fixtures.state import ticket

Fired = list[tuple[Any, ...]]
EPOCH = datetime.fromtimestamp(0, UTC)


def spec_of(
    config: WindowConfig, *, time: bool = False, lag_ms: int = 0, commits: bool = False, **more: Any
) -> StateSpec:
    topology = Topology("windows")
    spout = PaperSpout("n long, at long")
    options: dict[str, Any] = {"time": "at", "lag": timedelta(milliseconds=lag_ms)} if time else {}
    MemoryState("windows").forget()
    topology.new_stream("numbers", spout).window(
        config, MemoryState("windows"), "n", Sum(), "total", **options, **more
    ).partition_persist(PaperState(), "total", keys="", values="last long", updater=lambda state, tuples: None)
    spec = topology.states["total_window"]
    assert isinstance(spec.updater, WindowUpdater)
    assert (spec.updater.time == COMMIT_TIME) is commits
    return spec


def batch_of(spec: StateSpec, rows: Sequence[tuple[Any, ...]], begun_ms: int = 0) -> pa.Table:
    """With the tick behind, as the committer gives it to a window of time; rows that have one of their own stay."""
    width = len(spec.staged)
    if COMMIT_TIME in names_of(spec.staged) and all(len(row) < width for row in rows):
        rows = [*((*row, None) for row in rows), (*(None,) * (width - 1), begun_ms)]
    return rows_to_table(spec.staged, list(rows))


def fired_by(state: State, spec: StateSpec, txid: int, rows: Sequence[tuple[Any, ...]]) -> Fired:
    """Apply one batch, and once more as after a lost answer; what its windows hold."""
    assert isinstance(spec.updater, WindowUpdater)
    batch = batch_of(spec, rows)
    assert state.apply(ticket(txid), batch) is Applied.APPLIED
    before = table_to_rows(spec.updater.emitted(state.get_many))
    assert state.apply(ticket(txid, fence=10 * txid + 1), batch) is Applied.ALREADY
    assert table_to_rows(spec.updater.emitted(state.get_many)) == before
    return before


def run(spec: StateSpec, batches: Sequence[Sequence[tuple[Any, ...]]]) -> list[Fired]:
    with spec.factory.make_state(spec) as state:
        return [fired_by(state, spec, txid, rows) for txid, rows in enumerate(batches, 1)]


LENGTHS = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda pair: (max(pair), min(pair)))
SPLITS = st.lists(st.integers(0, 9), max_size=8)


@given(LENGTHS, SPLITS)
def test_a_count_window_holds_the_last_tuples_however_they_come_in_batches(
    lengths: tuple[int, int], splits: list[int]
) -> None:
    length, slide = lengths
    tuples = [(number,) for number in range(sum(splits))]
    edges = [sum(splits[:place]) for place in range(len(splits) + 1)]
    batches = [tuples[begin:end] for begin, end in pairwise(edges)]
    expected: list[Fired] = [[] for _ in batches]
    for end in range(slide, len(tuples) + 1, slide):
        number = next(place for place, edge in enumerate(edges[1:]) if edge >= end)
        first = max(end - length, 0)
        expected[number] += [(first, end, *row) for row in tuples[first:end]]
    assert run(spec_of(SlidingCountWindow(length, slide)), batches) == expected


def naive(length: int, slide: int, lag: int, batches: Sequence[Sequence[tuple[int, int]]]) -> list[Fired]:
    """Windows of time by going through every end."""
    taken: list[tuple[int, int]] = []
    results: list[Fired] = []
    done: int | None = None
    mark: int | None = None
    for batch in batches:
        ends_of = {row: [end for end in range(row[1] + 1, row[1] + length + 1) if end % slide == 0] for row in batch}
        taken += [row for row in batch if done is None or any(end > done for end in ends_of[row])]
        if batch:
            latest = max(at for _, at in batch) - lag
            mark = latest if mark is None else max(mark, latest)
        fired: Fired = []
        if mark is not None:
            for end in range(-20, mark + 1):
                if end % slide or (done is not None and end <= done):
                    continue
                inside = sorted((row for row in taken if end - length <= row[1] < end), key=_pane(length, slide))
                fired += [(_time(end - length), _time(end), n) for n, _ in inside]
            done = mark // slide * slide
        results.append(fired)
    return results


def _pane(length: int, slide: int) -> Any:
    return lambda row: row[1] // gcd(length, slide)


def _time(place: int) -> datetime:
    return EPOCH + timedelta(milliseconds=place)


EVENTS = st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 40)), max_size=5), max_size=6)


@given(LENGTHS, st.integers(0, 5), EVENTS)
def test_a_window_of_time_holds_the_tuples_of_its_time_that_came_before_it_fired(
    lengths: tuple[int, int], lag: int, batches: list[list[tuple[int, int]]]
) -> None:
    length, slide = lengths
    config = SlidingDurationWindow(timedelta(milliseconds=length), timedelta(milliseconds=slide))
    assert run(spec_of(config, time=True, lag_ms=lag), batches) == naive(length, slide, lag, batches)


def test_the_time_of_transactions_never_goes_back_and_moves_windows_without_tuples() -> None:
    spec = spec_of(TumblingDurationWindow(timedelta(seconds=1)), commits=True)
    times = (
        [(1, None), (None, 500)],
        [(2, None), (None, 100)],
        [(None, 900)],
        [(3, None), (None, 1000)],
        [(None, 3100)],
    )
    first, second = (_time(0), _time(1000)), (_time(1000), _time(2000))
    assert run(spec, times) == [[], [], [], [(*first, 1), (*first, 2)], [(*second, 3)]]


DAY = 86_400_000
YEAR_2099 = 4_102_444_800_000


@pytest.mark.parametrize("trusting", [False, True])
def test_one_wrong_clock_ends_no_window_before_its_time(trusting: bool) -> None:
    """Its tuple is kept for the window of its time; what is left out is counted."""
    options: dict[str, Any] = {"max_ahead": None} if trusting else {"max_ahead": timedelta(seconds=10)}
    spec = spec_of(TumblingDurationWindow(timedelta(seconds=1)), time=True, **options)
    assert isinstance(spec.updater, WindowUpdater)
    begun = 5_000
    batches = [
        [(1, 1_000), (2, YEAR_2099), (3, 1_500)],
        [(4, 1_700), (5, begun + 10_000), (6, 2_500)],
        [(7, 1_800), (8, begun + 10_001), (9, 16_000)],
        [],
    ]
    totals = []
    with spec.factory.make_state(spec) as state:
        for txid, rows in enumerate(batches, 1):
            state.apply(ticket(txid), batch_of(spec, rows, begun))
            fired = [row[2] for row in table_to_rows(spec.updater.emitted(state.get_many))]
            found = spec.updater.overlooked(state.get_many)
            totals.append((fired, found.late, found.ahead, found.late_in_all))
        if trusting:
            assert totals == [([1, 3], 0, 0, 0), ([], 3, 0, 3), ([], 3, 0, 6), ([], 0, 0, 6)]
            return
        assert totals == [([], 0, 1, 0), ([1, 3, 4, 6], 0, 0, 0), ([], 1, 2, 1), ([], 0, 0, 1)]
        state.apply(ticket(5), batch_of(spec, [(10, YEAR_2099 + 2_000)], YEAR_2099))
        fired = [row[2] for row in table_to_rows(spec.updater.emitted(state.get_many))]
        assert fired == [5, 8, 9, 2], "what was ahead of its time has come to it"


def test_windows_that_a_wrong_clock_has_closed_are_opened_again_once(tmp_path: Path) -> None:
    """By the verb, in a state that is there; each tuple is in one window, and what was left out before stays out."""
    state = SqliteState(str(tmp_path / "w.db"))

    def spec_with(**options: Any) -> StateSpec:
        stream = Topology("windows").new_stream("numbers", PaperSpout("n long, at long"))
        length = timedelta(seconds=1)
        window = stream.tumbling_window(length, state, "n", Sum(), "total", time="at", bounds=True, **options)
        window.partition_persist(PaperState(), "window_start, total", keys="window_start")
        return window.topology.states["total_window"]

    def fired(spec: StateSpec, txid: int, *rows: tuple[int, int]) -> tuple[list[int], int]:
        assert isinstance(spec.updater, WindowUpdater)
        with spec.factory.make_state(spec) as store:
            store.apply(ticket(txid), batch_of(spec, rows))
            late = spec.updater.overlooked(store.get_many).late
            return [row[2] for row in table_to_rows(spec.updater.emitted(store.get_many))], late

    trusting, open_again = spec_with(max_ahead=None), spec_with(max_ahead=None, reopen=_time(4_000))
    assert fired(trusting, 1, (1, 1_000), (2, YEAR_2099)) == ([1], 0)
    assert fired(trusting, 2, (3, 5_000)) == ([], 1)
    assert fired(open_again, 3, (4, 3_900), (5, 5_100), (6, 6_000)) == ([5], 1)
    assert fired(open_again, 4, (7, 5_200), (8, 7_000)) == ([6], 1)
    assert fired(trusting, 5, (9, 8_000)) == ([8], 0)
    assert fired(open_again, 6, (10, 7_100), (11, 9_000)) == ([9], 1), "it was opened once"
    assert fired(open_again, 7, (12, YEAR_2099 + 1_000)) == ([11, 2], 0), "what came too early has waited for its time"


def test_what_a_committed_window_left_out_is_said(tmp_path: Path) -> None:
    rows = [("a", 1_000), ("a", 61_000), ("a", 500), ("b", YEAR_2099), ("b", 62_000), ("b", 121_000), ("c", None)]
    topology = Topology("said")
    events = topology.new_stream("events", FixedBatchSpout("name string, at long", rows, 2))
    store = SqliteState(str(tmp_path / "w.db"))
    minutes = events.tumbling_window(timedelta(minutes=1), store, Count(), "n", time="at", bounds=True)
    minutes.partition_persist(store, "window_start, n", keys="window_start", name="minutes")
    lines: list[str] = []
    with MemoryLedger("said") as ledger, LocalEngine() as engine:
        staging = str(tmp_path / "staging")
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=staging, progress=lines.append).run()
    assert [line for line in lines if re.search("too late|after the transaction began|have no time", line)] == [
        "transaction 2: 1 tuples came too late for all their windows of state n_window and are left out (1 so far); a "
        "longer lag takes later ones, and reopen= opens windows that a wrong clock has closed",
        "transaction 2: 1 tuples of state n_window are of a time more than 300 s after the transaction began; they are "
        "kept, and fire no window",
        "transaction 4: 1 tuples of state n_window have no time in 'at', or one whose windows would begin before year "
        "1 or end after year 9999; they are in no window and left out. Drop or mend such tuples before the window (a "
        "long is milliseconds since 1970)",
    ]
    with store.make_state(topology.states["minutes"]) as state:
        assert sorted(value for _, (value,) in state.items()) == [1, 2]
    records = {record.txid: record for record in ledger.transactions()}
    assert [records[txid].late_rows for txid in (1, 2, 3, 4)] == [{}, {"n_window": 1}, {}, {"n_window": 1}]


@pytest.mark.parametrize("at", [None, -62_135_596_800_000, 253_402_300_799_500, YEAR_2099 * 1_000, -(2**63), 2**63 - 1])
def test_a_time_whose_windows_have_no_bounds_stops_nothing(at: int | None) -> None:
    """Null, the first and the last second, microseconds, and the ends of a long."""
    config = SlidingDurationWindow(timedelta(seconds=2), timedelta(seconds=1))
    spec = spec_of(config, time=True, max_ahead=None)
    assert isinstance(spec.updater, WindowUpdater)
    with spec.factory.make_state(spec) as state:
        assert fired_by(state, spec, 1, [(1, 1_000), (2, at)]) == []
        assert spec.updater.overlooked(state.get_many).untimed == 1
        assert [row[2] for row in fired_by(state, spec, 2, [(3, 5_000)])] == [1, 1]
        assert spec.updater.overlooked(state.get_many).untimed == 0


def test_a_gap_of_a_thousand_years_fires_no_empty_window() -> None:
    spec = spec_of(TumblingDurationWindow(timedelta(milliseconds=1)), time=True)
    far = 1000 * 365 * 86_400_000
    assert [len(fired) for fired in run(spec, [[(1, 0)], [(2, far)], [(3, far + 1)]])] == [0, 1, 1]


def test_what_no_window_needs_any_more_is_not_kept() -> None:
    spec = spec_of(SlidingCountWindow(4, 2))
    with spec.factory.make_state(spec) as state:
        for txid in range(1, 40):
            fired_by(state, spec, txid, [(number,) for number in range(3)])
            assert len(list(state.items())) <= 2 + 3


def test_a_window_refuses_late_batches() -> None:
    spec = spec_of(TumblingCountWindow(2))
    assert not spec.commutes
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(2), rows_to_table(spec.staged, [(1,)]))
        with pytest.raises(LateBatchError):
            state.apply(ticket(1, fence=30, late=True), rows_to_table(spec.staged, [(1,)]))


def with_other_types(spec: StateSpec, fields: str) -> StateSpec:
    """The window after the stream's fields got other types, and a person accepted that or the ledger has names only."""
    kept = parse_declared(fields)
    assert isinstance(spec.updater, WindowUpdater)
    return replace(spec, staged=kept, updater=replace(spec.updater, kept=kept))


def test_open_windows_are_not_read_as_another_type_than_they_were_kept_with() -> None:
    old = spec_of(SlidingCountWindow(3, 1))
    new = with_other_types(old, "n timestamp")
    with old.factory.make_state(old) as state:
        state.apply(ticket(1), rows_to_table(old.staged, [(1,), (2,)]))
        assert isinstance(new.updater, WindowUpdater)
        with pytest.raises(DefinitionChangedError, match=r"window_end int64, n int64\), and the topology's are"):
            new.updater.emitted(state.get_many)
    with new.factory.make_state(new) as state:
        words = r"'total_window' hold tuples of \(n int64\), and the topology's are \(n timestamp.*old types"
        with pytest.raises(DefinitionChangedError, match=words):
            state.apply(ticket(2), rows_to_table(new.staged, [(EPOCH,)]))
    with old.factory.make_state(old) as state:
        assert state.apply(ticket(2, fence=30), rows_to_table(old.staged, [(3,)])) is Applied.APPLIED


def test_windows_that_cannot_be_are_refused_on_the_users_line() -> None:
    stream = Topology("t").new_stream("numbers", PaperSpout("n long, name string"))
    state = PaperState()
    with pytest.raises(PlanError, match="slides by more than its length"):
        stream.sliding_window(2, 3, state, "n", Sum(), "total")
    with pytest.raises(PlanError, match="two numbers or two durations"):
        stream.sliding_window(timedelta(seconds=1), 3, state, "n", Sum(), "total")
    with pytest.raises(PlanError, match=r"length_rows\) got 0"):
        stream.tumbling_window(0, state, "n", Sum(), "total")
    with pytest.raises(PlanError, match="has no time"):
        stream.tumbling_window(2, state, "n", Sum(), "total", time="n")
    with pytest.raises(PlanError, match="no max_ahead"):
        stream.tumbling_window(2, state, "n", Sum(), "total", max_ahead=None)
    with pytest.raises(PlanError, match="from 0 up"):
        stream.tumbling_window(
            timedelta(seconds=1), state, "n", Sum(), "total", time="n", max_ahead=-timedelta(seconds=1)
        )
    with pytest.raises(PlanError, match="windows of time, and no others"):
        stream.tumbling_window(2, state, "n", Sum(), "total", reopen=EPOCH)
    with pytest.raises(PlanError, match="with its zone"):
        stream.tumbling_window(timedelta(seconds=1), state, "n", Sum(), "total", reopen=EPOCH.replace(tzinfo=None))
    with pytest.raises(FieldError, match="is no time"):
        stream.tumbling_window(timedelta(seconds=1), state, "n", Sum(), "total", time="name")
    with pytest.raises(PlanError, match="whole milliseconds"):
        stream.tumbling_window(timedelta(microseconds=1), state, "n", Sum(), "total")
