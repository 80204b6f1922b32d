"""What every ledger promises about states, over every implementation (L13, L14): what a ticket asks of them, since when
they belong, what they were given up for, and what nobody has to remember."""

from __future__ import annotations

import pytest

from airflow_trident.errors import FencedError, TransitionError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.records import Loss, Status
from airflow_trident.protocol.topologies import Definition, StateDefinition
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, begun, commit, gated

COUNTS = "counts"
MORE = Definition(spouts=DEFINITION.spouts, states={**DEFINITION.states, "more": StateDefinition(text="another one")})


def begin(ledger: Ledger) -> int:
    return begun(ledger, ledger.view(0).next_txid)


def skip(ledger: Ledger) -> int:
    txid = begin(ledger)
    ledger.skip(txid, "withdrawn")
    return txid


def test_l13_p11_a_ticket_says_what_every_state_must_hold(ledger: Ledger) -> None:
    commit(ledger, begin(ledger))
    assert skip(ledger) == 2
    commit(ledger, begin(ledger))
    ledger.register(MORE, accept_change=True)
    ticket = gated(ledger, begin(ledger))
    assert ticket.needed == {COUNTS: Txids.of(1, 3), "more": NO_TXIDS}
    assert (ticket.floor, ticket.states) == (2, {COUNTS, "more"})
    single.committed(ledger, ticket)
    ticket = gated(ledger, 2)
    assert ticket.late
    assert ticket.needed == {COUNTS: Txids.of(1, 3, 4), "more": Txids.of(4)}
    single.committed(ledger, ticket)
    ledger.note_states(lost=[Loss(state="more", txids=Txids.of(4), reason="gone", by="me")])
    ticket = gated(ledger, begin(ledger))
    assert ticket.needed == {COUNTS: Txids.span(1, 4), "more": NO_TXIDS}
    assert ticket.floor == 5


def test_l13_a_state_belongs_to_its_topology_from_the_beginning_or_from_the_next_commit_on(ledger: Ledger) -> None:
    assert ledger.topology().since == {COUNTS: 1}
    commit(ledger, begin(ledger))
    begin(ledger)
    changed = Definition(spouts=DEFINITION.spouts, states={COUNTS: StateDefinition(text="elsewhere")})
    assert ledger.register(changed, accept_change=True).since == {COUNTS: 1}
    assert ledger.register(MORE, accept_change=True, empty=[COUNTS]).since == {COUNTS: 2, "more": 2}
    ledger.note_states(lost=[Loss(state="more", txids=Txids.of(1))])
    without = ledger.register(DEFINITION, accept_change=True)
    assert (without.since, without.lost) == ({COUNTS: 2}, ())


def test_l13_what_is_noted_is_kept_with_the_reason(ledger: Ledger) -> None:
    ledger.note_states(since={COUNTS: 4}, lost=[Loss(state=COUNTS, txids=Txids.of(7, 9), reason="why", by="who")])
    ledger.note_states(lost=[Loss(state=COUNTS, txids=Txids.of(8))])
    record = ledger.topology()
    assert record.since == {COUNTS: 4}
    assert [(loss.txids, loss.reason, loss.by) for loss in record.lost] == [
        (Txids.of(7, 9), "why", "who"),
        (Txids.of(8), "", ""),
    ]
    assert all(loss.at_ms > 0 for loss in record.lost)


def test_l13_p8_a_ticket_that_a_later_state_was_not_part_of_is_void(ledger: Ledger) -> None:
    ticket = gated(ledger, begin(ledger))
    ledger.register(MORE, accept_change=True)
    with pytest.raises(FencedError, match="state 'more' came to topology 'words' while transaction 1 was committed"):
        single.committed(ledger, ticket)
    single.committed(ledger, single.gate(ledger, 1, owner="again"))


def test_a_fence_that_is_taken_is_above_all_and_no_ticket_gets_it(ledger: Ledger) -> None:
    ticket = gated(ledger, begin(ledger))
    fences = [ledger.take_fence(), ledger.take_fence()]
    assert ticket.fence < fences[0] < fences[1]
    assert ledger.view(0).pointer.fence == fences[1]
    single.committed(ledger, ticket)
    assert gated(ledger, begin(ledger)).fence > fences[1]


def test_l14_p10_a_closed_transaction_is_final_and_forgotten_with_the_next_commit(ledger: Ledger) -> None:
    assert skip(ledger) == 1
    record = ledger.close_transaction(1, "nobody wants it")
    assert (record.status, record.error) == (Status.CLOSED, "nobody wants it")
    assert ledger.close_transaction(1, "again").error == "nobody wants it"
    exceptions = ledger.view(0).exceptions
    assert (exceptions.skipped, exceptions.closed) == (NO_TXIDS, Txids.of(1))
    for act in (lambda: single.attempt(ledger, 1, owner="x"), lambda: single.gate(ledger, 1, owner="x")):
        with pytest.raises(TransitionError):
            act()
    with pytest.raises(TransitionError, match="CLOSED and cannot become SKIPPED"):
        ledger.skip(1, "x")
    ticket = gated(ledger, begin(ledger))
    assert ticket.needed == {COUNTS: NO_TXIDS}
    assert ticket.floor == 2
    single.committed(ledger, ticket, retention=1)
    assert ledger.view(0).exceptions.closed == NO_TXIDS
    commit(ledger, begin(ledger), retention=1)
    assert [tx.txid for tx in ledger.transactions()] == [3]


def test_l14_what_is_not_skipped_or_not_passed_cannot_be_closed(ledger: Ledger) -> None:
    commit(ledger, begin(ledger))
    begin(ledger)
    ledger.skip(begin(ledger), "withdrawn")
    with pytest.raises(TransitionError, match="transaction 1 is COMMITTED, and only what is SKIPPED can be closed"):
        ledger.close_transaction(1, "x")
    with pytest.raises(TransitionError, match="transaction 3 cannot be closed yet: all up to 1 are done"):
        ledger.close_transaction(3, "x")
    with pytest.raises(TransitionError, match="never begun"):
        ledger.close_transaction(9, "x")


def test_l14_p10_lists_of_what_was_skipped_and_closed_stay_short(ledger: Ledger) -> None:
    """Nine of ten are skipped; a person closes what is skipped now and then."""
    for _ in range(4):
        for _ in range(9):
            skip(ledger)
        commit(ledger, begin(ledger), retention=1)
    exceptions = ledger.view(0).exceptions
    assert exceptions.skipped.ranges == ((1, 9), (11, 19), (21, 29), (31, 39))
    for txid in exceptions.skipped:
        ledger.close_transaction(txid, "nobody wants them")
    for _ in range(2):
        commit(ledger, begin(ledger), retention=1)
    exceptions = ledger.view(0).exceptions
    assert (exceptions.skipped, exceptions.closed) == (NO_TXIDS, NO_TXIDS)
    assert [tx.txid for tx in ledger.transactions()] == [42]
