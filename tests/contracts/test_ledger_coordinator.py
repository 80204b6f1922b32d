"""What every ledger promises of the coordinator's last outcome, over every implementation."""

from __future__ import annotations

import math
from typing import Any

import pytest

from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Set
from airflow_trident.protocol.outcomes import ERROR_CHARACTERS, CoordinatorOutcome, OutcomeKind
from airflow_trident.runtime.outcomes import lags_of
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, Place, begun, claim, lines

ERROR = CoordinatorOutcome(kind=OutcomeKind.ERROR, dag_id="dag", run_id="run-9", error="SourceChangedError: the file")
NOTHING = CoordinatorOutcome(kind=OutcomeKind.NOTHING_NEW, dag_id="dag", run_id="run-9")


def said(ledger: Ledger) -> tuple[str, str, str]:
    outcome = ledger.coordinator()
    assert outcome is not None
    assert outcome.time_ms > 0
    return str(outcome.kind), outcome.run_id, outcome.error


def test_nothing_is_said_of_a_topology_that_nobody_coordinated(ledger: Ledger) -> None:
    assert ledger.coordinator() is None


def test_a_new_transaction_is_the_last_outcome_and_takes_the_place_of_an_error(ledger: Ledger) -> None:
    begun(ledger, 1)
    assert said(ledger) == ("begun", "run-1", "")
    ledger.note_coordinator(ERROR)
    assert said(ledger) == ("error", "run-9", "SourceChangedError: the file")
    begun(ledger, 2)
    assert said(ledger) == ("begun", "run-2", "")


def test_a_claim_that_is_known_says_nothing(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.note_coordinator(ERROR)
    begun(ledger, 1)
    assert said(ledger)[0] == "error"


def test_whoever_speaks_last_is_heard_by_all(place: Place) -> None:
    one, two = place.registered(), place.registered()
    for ledger, outcome in ((one, ERROR), (two, NOTHING), (one, ERROR)):
        ledger.note_coordinator(outcome)
        assert said(place.registered())[0] == str(outcome.kind)


def test_the_lag_of_the_sources_is_kept_with_it_until_somebody_asks_them_again(ledger: Ledger) -> None:
    asked: list[object] = []

    def lag_of(position: dict[str, object]) -> dict[str, dict[str, int]]:
        asked.append(position)
        return {"lines": {"files": 3, "bytes": 1200}}

    single.begin(ledger, claim(1), lines, max_pending=9, lag_of=lag_of)
    assert asked == [{"lines": {"from": 0, "until": 1}}]
    for say in (lambda: ledger.note_coordinator(ERROR), lambda: begun(ledger, 2)):
        say()
        outcome = ledger.coordinator()
        assert outcome is not None
        assert outcome.lag == {"lines": {"files": 3, "bytes": 1200}}
        assert 0 < outcome.lag_ms <= outcome.time_ms
    ledger.note_coordinator(NOTHING)
    outcome = ledger.coordinator()
    assert outcome is not None
    assert (outcome.lag, outcome.lag_ms) == ({}, outcome.time_ms)


def test_a_source_that_counts_strangely_stops_nobody(ledger: Ledger) -> None:
    class Source:
        def __init__(self, count: object) -> None:
            self.count = count

        def lag(self, position: object) -> object:
            return {"files": self.count}

    sources: Any = {"halves": Source(1.5), "nan": Source(math.nan), "text": Source("many"), "object": Source(object())}
    single.begin(ledger, claim(1), lines, max_pending=9, lag_of=lags_of(sources))
    outcome = ledger.coordinator()
    assert outcome is not None
    assert outcome.lag == {"halves": {"files": 1}}


def test_a_run_that_waits_says_so_once(ledger: Ledger) -> None:
    waits = CoordinatorOutcome(kind=OutcomeKind.WAITING, dag_id="dag", run_id="run-9")
    ledger.note_coordinator(waits)
    first = ledger.coordinator()
    ledger.note_coordinator(waits)
    assert ledger.coordinator() == first


def test_a_long_error_is_cut_and_any_text_survives(ledger: Ledger) -> None:
    for error in ("x" * 100_000, "zeile\nzwei \udc80 \u2028 \U0001f600 <b>"):
        ledger.note_coordinator(CoordinatorOutcome(kind=OutcomeKind.ERROR, error=error))
        assert said(ledger)[2] == error[:ERROR_CHARACTERS]


@pytest.mark.parametrize("newer", [b"{}", b"no json", b'{"v": 9, "kind": "something new"}'])
def test_what_cannot_be_read_of_it_stops_nobody(newer: bytes) -> None:
    znodes = MemoryZNodes(MemoryTree())
    ledger = ZNodeLedger(znodes, "words")
    path = LedgerPaths(ledger._path, ledger.register(DEFINITION).incarnation).coordinator
    znodes.multi([Create(path, newer)])
    assert ledger.coordinator() is None
    begun(ledger, 1)
    assert said(ledger)[:2] == ("begun", "run-1")


def test_a_life_of_an_older_version_has_no_such_node_and_gets_it_with_the_first_word() -> None:
    tree = MemoryTree()
    ledger = ZNodeLedger(MemoryZNodes(tree), "words")
    incarnation = ledger.register(DEFINITION).incarnation
    path = LedgerPaths(ledger._path, incarnation).coordinator
    assert MemoryZNodes(tree).read([path]).nodes[path] is None
    begun(ledger, 1)
    assert MemoryZNodes(tree).read([path]).nodes[path] is not None


def test_it_costs_a_new_transaction_no_round_trip_and_is_never_in_head_or_commit() -> None:
    written: list[list[str]] = []

    class Watched(MemoryZNodes):
        def multi(self, ops: object) -> None:
            written.append([op.path.rpartition("/")[2] for op in ops if isinstance(op, Create | Set)])
            super().multi(ops)

    ledger = ZNodeLedger(Watched(MemoryTree()), "words")
    ledger.register(DEFINITION)
    ledger.view(0, ahead=True)
    before, written[:] = ledger.znodes.round_trips, []
    begun(ledger, 1)
    assert ledger.znodes.round_trips - before == 1
    assert "coordinator" in written[0]
    ledger.note_coordinator(NOTHING)
    assert ledger.znodes.round_trips - before == 2
    assert written[1:] == [["coordinator"]]
    ledger.note_coordinator(NOTHING)
    assert ledger.znodes.round_trips - before == 2
