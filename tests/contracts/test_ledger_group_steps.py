"""How the ledger writes the steps of groups: in one request, of a bounded size, whose answer may be lost (L2, L3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from airflow_trident.ledger.answers import NextBatches
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.verbs import begin
from airflow_trident.ledger.verbs.begin import GROWS_BY_BYTES
from airflow_trident.ledger.verbs.group_steps import GROUP_BYTES
from airflow_trident.ledger.znodes import Create, Op, Set
from airflow_trident.protocol.records import Status, TxRecord
from airflow_trident.types import Json
from tests.contracts.test_ledger_groups import ALL, begun_many, gated_many, some_lines, staged
from tests.fixtures import single
from tests.fixtures.faulty_znodes import Fault, FaultyTree, FaultyZNodes
from tests.fixtures.ledger import DEFINITION, claim


def sent(ledger: ZNodeLedger) -> list[list[Op]]:
    """The requests that the ledger makes from now on."""
    found: list[list[Op]] = []
    multi = ledger.znodes.multi
    ledger.znodes.multi = lambda ops: found.append(list(ops)) or multi(ops)
    return found


def test_each_step_of_a_group_is_one_request_and_a_whole_one_is_two() -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    gated_many(ledger, 1, 2)
    requests = sent(ledger)
    result = ledger.committed(
        ledger.gate([1, 2], owner="drain"),
        then=NextBatches([claim(3), claim(4)], some_lines, max_pending=4, attempt_by="drain"),
    )
    assert len(requests) == 2
    for number in range(5, 25, 2):
        before = ledger.znodes.round_trips
        tickets = ledger.processed(staged([one.txid for one in result.begun]), gate_by="drain").tickets
        claims = [claim(number), claim(number + 1)]
        result = ledger.committed(tickets, then=NextBatches(claims, some_lines, max_pending=4, attempt_by="drain"))
        assert ledger.znodes.round_trips == before + 2


def test_every_record_of_a_step_has_its_op_id_and_none_is_written_twice() -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    requests = sent(ledger)
    tickets = gated_many(ledger, 1, 3)
    ledger.committed(tickets, then=NextBatches([claim(4)], some_lines, max_pending=9))
    for ops in requests:
        written = [op.path for op in ops if isinstance(op, Create | Set)]
        assert len(written) == len(set(written))
    ops_of = [{tx.op for tx in ledger.transactions(first, last)} for first, last in ((1, 3), (4, 4))]
    assert ops_of[0] == ops_of[1]
    assert len(ops_of[0]) == 1


def large_lines(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
    """As large as stays in a record."""
    return [{"lines": {"text": f"{txid + number}".zfill(8_000)}} for number in range(most)]


def test_a_step_takes_as_many_members_as_fit_and_the_next_one_takes_the_rest() -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    requests, claims = sent(ledger), [claim(number) for number in range(1, 101)]
    first = ledger.begin(NextBatches(claims, large_lines, max_pending=ALL, attempt_by="drain"))
    assert isinstance(first, tuple)
    fit = GROUP_BYTES // (8_500 + GROWS_BY_BYTES)
    assert len(first) in (fit, fit + 1)
    tickets = ledger.processed(staged([one.txid for one in first]), gate_by="drain").tickets
    assert len(tickets) == len(first)  # what one step began, one step takes on
    result = ledger.committed(tickets, then=NextBatches(claims[len(first) :], large_lines, max_pending=ALL))
    assert len(result.records) == len(first)
    rest = len(result.begun)
    assert rest * 8_000 < len(first) * GROWS_BY_BYTES  # there was room only for what these might have grown by
    second = ledger.begin(NextBatches(claims[len(first) + rest :], large_lines, max_pending=ALL))
    assert isinstance(second, tuple)
    assert [one.txid for one in second] == list(range(len(first) + rest + 1, 101))[: len(second)]
    for ops in requests:
        assert sum(len(op.data) for op in ops if isinstance(op, Create | Set)) < GROUP_BYTES + 64 * 1024


def test_a_step_that_is_full_of_what_it_commits_says_nothing_about_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    tickets = gated_many(ledger, 1, 2)
    monkeypatch.setattr(begin, "GROUP_BYTES", 100)
    result = ledger.committed(tickets, then=NextBatches([claim(3)], some_lines, max_pending=ALL))
    assert (len(result.records), result.begun, result.why_not) == (2, (), None)
    assert isinstance(ledger.begin(NextBatches([claim(3)], some_lines, max_pending=ALL)), tuple)


def one_window(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
    """Only the last one says where to go on."""
    inner: list[dict[str, Json]] = [{"lines": {"text": "".zfill(8_000)}} for _ in range(most - 1)]
    return [*inner, {"lines": {"goes_on": txid + most}}]


def test_of_what_does_not_fit_into_a_step_the_last_one_that_does_says_where_to_go_on() -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    claims = [claim(number) for number in range(1, 101)]
    first = ledger.begin(NextBatches(claims, one_window, max_pending=ALL))
    assert isinstance(first, tuple)
    assert 1 < len(first) < 100
    last = first[-1].record
    assert last is not None
    assert last.metadata == {"lines": {"goes_on": last.txid + 1}}


def test_members_that_do_not_fit_into_one_step_are_left_for_another() -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    for number in range(1, 101):
        single.begin(
            ledger, claim(number), lambda txid, _: large_lines(txid, {}, 1)[0], max_pending=ALL, attempt_by="drain"
        )
    requests, left = sent(ledger), list(range(1, 101))
    while left:
        left = left[len(ledger.processed(staged(left)).records) :]
    assert len(requests) == 2
    left = list(range(1, 101))
    while left:
        tickets = ledger.gate(left, owner="c")
        assert [ticket.txid for ticket in tickets] == left[: len(tickets)]
        left = left[len(ledger.committed(tickets).records) :]
    assert len(requests) == 6
    assert ledger.view(0).pointer.committed == 100


@pytest.mark.parametrize("fault", Fault)
def test_l15_l3_a_step_of_a_group_whose_answer_is_lost_happened_once_or_not_at_all(fault: Fault) -> None:
    tree, faults = FaultyTree(), [None]

    def fault_of(ops: Sequence[Op]) -> Fault | None:
        return faults.pop() if faults else None

    ledger = ZNodeLedger(FaultyZNodes(tree, fault_of=fault_of), "words")
    ledger.register(DEFINITION)

    def lossy(step: Callable[[], object]) -> object:
        faults[:] = [fault]
        result = step()
        tree.release()
        return result

    lossy(lambda: begun_many(ledger, 1, 3))
    tickets = lossy(lambda: ledger.processed(staged([1, 2, 3]), gate_by="drain").tickets)
    assert {one.fence for one in tickets} == {ledger.view(0).pointer.fence} == {1}
    result = lossy(
        lambda: ledger.committed(
            tickets, then=NextBatches([claim(4), claim(5)], some_lines, max_pending=2, attempt_by="drain")
        )
    )
    assert [(one.txid, one.new) for one in result.begun] == [(4, True), (5, True)]
    assert (ledger.view(0).next_txid, ledger.view(0).pointer.committed) == (6, 3)
    records: tuple[TxRecord, ...] = lossy(lambda: ledger.attempt([4, 5], owner="drain"))
    assert [one.attempt for one in records] == [1, 1]


def test_room_that_a_commit_of_another_worker_has_made_is_seen() -> None:
    """A ledger that remembers how far commits were would begin fewer than there is room for."""
    tree = FaultyTree()
    ledger, other = (ZNodeLedger(FaultyZNodes(tree, fault_of=lambda ops: None), "words") for _ in range(2))
    for one in (ledger, other):
        one.register(DEFINITION)
    tickets = gated_many(ledger, 1, 2)
    assert ledger.view(0).pending == 2
    other.committed(tickets)
    begun = ledger.begin(NextBatches([claim(3), claim(4), claim(5)], some_lines, max_pending=4))
    assert isinstance(begun, tuple)
    assert [one.txid for one in begun] == [3, 4, 5]


def test_what_another_worker_made_of_a_transaction_that_a_claim_has_is_in_the_answer() -> None:
    """A ledger that remembers it would call it PROCESSING, although new transactions begin in the same step."""
    tree = FaultyTree()
    ledger, other = (ZNodeLedger(FaultyZNodes(tree, fault_of=lambda ops: None), "words") for _ in range(2))
    for one in (ledger, other):
        one.register(DEFINITION)
    ledger.begin(NextBatches([claim(1)], some_lines, max_pending=4))
    other.skip(1, "not needed")
    begun = ledger.begin(NextBatches([claim(1), claim(2)], some_lines, max_pending=4))
    assert isinstance(begun, tuple)
    found = [(one.txid, one.record.status) for one in begun if one.record]
    assert found == [(1, Status.SKIPPED), (2, Status.PROCESSING)]
