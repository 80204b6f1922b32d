"""`airflow_trident.testing`: what a user's tests call, and that its suites find what breaks a promise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident import Count, FixedBatchSpout, MemoryState, SqliteState, Topology
from airflow_trident.contracts.state import Applied, StateFactory, StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import LedgerBehindStateError, TridentError
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.states.memory import OpenMemoryState
from airflow_trident.testing import MemoryLedger, SpoutCase, contents, local_runner, spout_suite, state_suite
from airflow_trident.topology.stream_base import StateHandle

WORDS = ["cow", "moon", "cow"]
COUNTED = {("cow",): (2,), ("moon",): (1,)}


def counting(name: str = "trial", factory: StateFactory | None = None) -> tuple[Topology, StateHandle]:
    topology = Topology(name)
    words = topology.new_stream("words", FixedBatchSpout("word", WORDS, max_batch_size=2))
    counts = words.group_by("word").persistent_aggregate(factory or MemoryState("trials"), Count(), "n")
    return topology, counts


# ---- runs ------------------------------------------------------------------------------------------------------


def test_a_topology_runs_twice_in_one_process_and_begins_anew_each_time() -> None:
    other, of_other = counting("another")
    with local_runner(other) as runner:
        runner.run()
    for _ in range(2):
        topology, counts = counting()
        with local_runner(topology) as runner:
            assert runner.run() == [1, 2]
            assert runner.run() == []
            assert contents(counts) == COUNTED
    assert contents(of_other) == COUNTED


def test_so_does_one_whose_ledger_and_engine_the_caller_opens(tmp_path: Path) -> None:
    for _ in range(2):
        topology, counts = counting()
        with MemoryLedger("trial") as ledger, LocalEngine() as engine:
            LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=tmp_path).run()
        assert contents(counts) == COUNTED


def test_a_ledger_of_the_caller_goes_on_where_it_was() -> None:
    with MemoryLedger("trial") as ledger:
        for expected in ([1], [2]):
            topology, counts = counting()
            with local_runner(topology, ledger=ledger) as runner:
                assert runner.run(max_transactions=1) == expected
        assert contents(counts) == COUNTED


def test_what_a_durable_state_holds_is_not_dropped_for_a_new_ledger(tmp_path: Path) -> None:
    topology, counts = counting(factory=SqliteState(str(tmp_path / "states.db")))
    with local_runner(topology) as runner:
        runner.run()
    with local_runner(topology) as runner, pytest.raises(LedgerBehindStateError):
        runner.run()
    assert contents(counts) == COUNTED


# ---- suites ----------------------------------------------------------------------------------------------------

ROWS = [(number,) for number in range(9)]


def fixed(rows: list[tuple[int, ...]]) -> FixedBatchSpout:
    return FixedBatchSpout("n long", rows, max_batch_size=4)


def test_the_suite_of_spouts_passes_one_that_keeps_its_promises_and_names_the_broken_one() -> None:
    spout_suite(lambda: SpoutCase(fixed(ROWS), ROWS, lambda: fixed(ROWS[:3])))
    with pytest.raises(AssertionError, match="S3: the batches have"):
        spout_suite(lambda: SpoutCase(fixed(ROWS[:-1]), ROWS, lambda: fixed(ROWS[:3])))
    with pytest.raises(AssertionError, match=r"S4: after take_away .* SourceChangedError or DamagedInputError"):
        spout_suite(lambda: SpoutCase(fixed(ROWS), ROWS, lambda: fixed(ROWS)))
    with pytest.raises(AssertionError, match="fills one batch"):
        spout_suite(lambda: SpoutCase(fixed(ROWS[:2]), ROWS[:2], lambda: fixed(ROWS[:1])))


class Broken(MemoryState):
    """:param broken: the promise that it breaks."""

    broken = ""

    def make_state(self, spec: StateSpec) -> OpenMemoryState:
        opened = super().make_state(spec)
        return BROKEN[self.broken](opened._store, spec)


class Twice(OpenMemoryState):
    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        answer = super().apply(ticket, batch)
        if answer is Applied.ALREADY:
            self._kept.marker = None
            super().apply(ticket, batch)
        return answer


class Unfenced(OpenMemoryState):
    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        marker = self._kept.marker
        if marker is not None and ticket.fence < marker.fence:
            object.__setattr__(ticket, "fence", marker.fence)
        return super().apply(ticket, batch)


class Trusting(OpenMemoryState):
    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        marker = self._kept.marker
        if marker is not None:
            object.__setattr__(ticket, "incarnation", marker.incarnation)
        return super().apply(ticket, batch)


class InOrderOfItsOwn(OpenMemoryState):
    def get_many(self, keys: Any) -> list[Any]:
        return super().get_many(sorted(keys, key=repr))


class Shared(OpenMemoryState):
    def __init__(self, store: Any, spec: StateSpec) -> None:
        super().__init__(store, spec)
        self._kept = store.states.setdefault(("", ""), self._kept)


class Partial(OpenMemoryState):
    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        try:
            return super().apply(ticket, batch)
        except TridentError:
            self._kept.data.setdefault(("c",), (1,))
            raise


BROKEN: dict[str, type[OpenMemoryState]] = {
    "T1": Partial,
    "T2": Twice,
    "T3": Unfenced,
    "T4": Trusting,
    "T8": InOrderOfItsOwn,
    "a new state has a marker": Shared,
}


@pytest.fixture
def names() -> Iterator[Any]:
    made: list[str] = []

    def fresh(kind: type[MemoryState] = MemoryState) -> MemoryState:
        made.append(f"suite {len(made)} of a test")
        return kind(made[-1])

    yield fresh
    for name in made:
        MemoryState(name).forget()


@pytest.mark.parametrize("promise", BROKEN)
def test_the_suite_of_states_names_the_broken_promise(promise: str, names: Any) -> None:
    kind = type("Broken", (Broken,), {"broken": promise})
    with pytest.raises(AssertionError, match=promise):
        state_suite(lambda: names(kind))


def test_the_suite_of_states_passes_those_that_keep_them(names: Any, tmp_path: Path) -> None:
    state_suite(names)
    numbers = itertools.count()
    state_suite(lambda: SqliteState(str(tmp_path / f"{next(numbers)}.db")))
