"""What every ledger promises, over every implementation: gate, pointer, pruning, unreadable records (L6 to L9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    FencedError,
    NewerRecordError,
    TransitionError,
    TridentError,
)
from airflow_trident.ledger.base import Begun, Ledger
from airflow_trident.ledger.paths import Life
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Delete, Set
from airflow_trident.protocol.records import Exceptions
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from tests.fixtures.ledger import (
    LEDGERS,
    OTHER_STAGED,
    OVER_ZNODES,
    STAGED,
    Place,
    begun,
    brought_to,
    claim,
    commit,
    committed_up_to,
    gated,
    lines,
    processed,
    statuses,
)


@pytest.fixture(params=LEDGERS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with LEDGERS[request.param](request) as place:
        yield place


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return place.registered()


# ---- L6, P6, P7: the gate --------------------------------------------------------------------------------------


def test_l6_p6_a_commit_starts_only_after_every_lower_one_committed_or_was_skipped(ledger: Ledger) -> None:
    for number in (1, 2, 3, 4):
        processed(ledger, begun(ledger, number))
    for early in (2, 3, 4):
        with pytest.raises(TransitionError, match=rf"transaction {early - 1} is not committed yet"):
            ledger.gate(early, owner="c")
    ledger.committed(ledger.gate(1, owner="c"))
    ledger.skip(2, "x")
    with pytest.raises(TransitionError, match="transaction 3 is not committed yet"):
        ledger.gate(4, owner="c")
    ledger.committed(ledger.gate(3, owner="c"))
    ledger.committed(ledger.gate(4, owner="c"))
    assert list(statuses(ledger).values()) == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED, Status.COMMITTED]


def test_l6_p6_a_failed_transaction_blocks_every_later_one_until_it_is_replayed(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    ledger.fail(1, 0, "used up")
    for later in (2, 3):
        with pytest.raises(TransitionError, match="transaction 1 is FAILED"):
            ledger.gate(later, owner="c")
    assert ledger.view(3).blocked_by(3) == 1
    for txid in (1, 2, 3):
        commit(ledger, txid)
    assert ledger.view(0).exceptions.failed == ()
    assert ledger.view(0).pointer.committed == 3


def test_l6_p7_each_opening_has_a_higher_fence_and_voids_the_former_ticket(place: Place) -> None:
    one, two = place.registered(), place.registered()
    old = gated(one, begun(one, 1))
    new = two.gate(1, owner="second")
    assert new.fence > old.fence
    assert (old.late, new.late) == (False, False)
    with pytest.raises(FencedError, match=rf"fence {old.fence}.*transaction 1"):
        one.committed(old)
    with pytest.raises(FencedError):
        one.restart_attempt(old, owner="first")
    assert two.committed(new).status is Status.COMMITTED
    with pytest.raises(FencedError):
        one.committed(old)


def test_l6_of_many_committers_at_once_exactly_one_ticket_stays_valid(place: Place) -> None:
    clients = [place.registered() for _ in range(4)]
    processed(clients[0], begun(clients[0], 1))
    start = threading.Barrier(len(clients))

    def open_gate(client: Ledger) -> object:
        start.wait(30)
        return client.gate(1, owner="c")

    with ThreadPoolExecutor(len(clients)) as pool:
        tickets = list(pool.map(open_gate, clients))
    fences = [ticket.fence for ticket in tickets]
    # A gate whose lost answer another one wrote over is opened again: then a fence more is given out.
    assert len(set(fences)) == len(clients)
    assert min(fences) >= 1
    for client, ticket in zip(clients, tickets, strict=True):
        if ticket.fence != max(fences):
            with pytest.raises(FencedError):
                client.committed(ticket)
    winner = fences.index(max(fences))
    assert clients[winner].committed(tickets[winner]).fence == max(fences) == clients[0].view(0).pointer.fence


def test_the_ticket_says_what_is_to_be_committed(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    record = ledger.view(1).tx
    assert record is not None
    topology = ledger.topology()
    assert (ticket.topology, ticket.incarnation) == ("words", topology.incarnation)
    assert (ticket.attempt, ticket.staged, ticket.position) == (0, STAGED, {"lines": {"from": 0, "until": 1}})
    assert (record.fence, record.touched, str(record.owner)) == (ticket.fence, True, "committer")


def test_a_commit_without_its_staged_batch_goes_back_and_its_ticket_is_void(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    record = ledger.restart_attempt(ticket, owner="c")
    assert (record.status, record.attempt, record.staged, record.touched) == (Status.PROCESSING, 1, None, True)
    with pytest.raises(FencedError):
        ledger.committed(ticket)
    ledger.processed(1, 1, OTHER_STAGED)
    again = ledger.gate(1, owner="c")
    assert (again.attempt, again.staged) == (1, OTHER_STAGED)
    assert ledger.committed(again).status is Status.COMMITTED


# ---- L7, P8: the pointer ---------------------------------------------------------------------------------------


def test_l7_p8_status_and_pointer_change_together_and_the_pointer_passes_skipped_ones(ledger: Ledger) -> None:
    for number in range(1, 6):
        begun(ledger, number)
    ledger.skip(2, "x")
    ledger.skip(3, "x")
    assert ledger.view(0).pointer.committed == 0
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 3
    ledger.skip(4, "x")
    assert ledger.view(0).pointer.committed == 4
    commit(ledger, 5)
    assert ledger.view(0).pointer.committed == 5
    assert ledger.view(0).exceptions.skipped == Txids.of(2, 3, 4)


def test_a_skipped_one_that_waits_again_holds_the_others_back(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        processed(ledger, begun(ledger, number))
    ledger.skip(2, "x")
    ledger.start_attempt(2, owner="replay")
    commit(ledger, 1)
    assert ledger.view(0).pointer.committed == 1
    with pytest.raises(TransitionError, match="transaction 2 is not committed yet"):
        ledger.gate(3, owner="c")


def test_a_skipped_transaction_is_backfilled_late_and_holds_nobody_back(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    committed_two = commit(ledger, begun(ledger, 2))
    processed(ledger, begun(ledger, 3))
    replay = ledger.start_attempt(1, owner="backfill")
    view = ledger.view(3)
    assert (view.waits_for(3), view.pending, view.blocked_by(3), view.exceptions.late) == (None, 1, None, (1,))
    ledger.processed(1, replay.attempt, STAGED)
    late = ledger.gate(1, owner="backfill")
    assert (late.late, late.fence > committed_two.fence) == (True, True)
    ledger.committed(ledger.gate(3, owner="c"))
    assert ledger.committed(late).status is Status.COMMITTED
    view = ledger.view(0)
    assert (view.pointer.committed, view.exceptions.late, view.exceptions.skipped) == (3, (), NO_TXIDS)


def test_a_late_replay_that_fails_blocks_nobody_and_can_be_replayed_again(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    replay = ledger.start_attempt(1, owner="backfill")
    ledger.fail(1, replay.attempt, "again")
    assert ledger.view(0).exceptions.failed == (1,)
    commit(ledger, begun(ledger, 2))
    assert commit(ledger, 1).status is Status.COMMITTED
    assert ledger.view(0).pointer.committed == 2


def touched_in_every_way(ledger: Ledger, status: Status) -> None:
    """Transaction 1 is begun and its commit too; then it came to `status`."""
    ticket = gated(ledger, begun(ledger, 1))
    if status is not Status.COMMITTING:
        attempt = ledger.restart_attempt(ticket, owner="c").attempt
        if status is Status.PROCESSED:
            ledger.processed(1, attempt, OTHER_STAGED)
        elif status is Status.FAILED:
            ledger.fail(1, attempt, "used up")


TOUCHED = [Status.COMMITTING, Status.PROCESSING, Status.PROCESSED, Status.FAILED]


@pytest.mark.parametrize("status", TOUCHED)
def test_l12_what_is_taken_back_is_failed_as_if_no_commit_had_begun(ledger: Ledger, status: Status) -> None:
    touched_in_every_way(ledger, status)
    before = ledger.view(1)
    ticket = ledger.bar(1, owner="a person")
    assert before.tx is not None
    assert (ticket.bars, ticket.fence) == (True, before.pointer.fence + 1)
    assert statuses(ledger) == {1: status}
    done = ledger.take_back(ticket, "the field is too small")
    assert (done.status, done.touched, done.error) == (Status.FAILED, False, "the field is too small")
    assert ledger.view(0).exceptions == Exceptions(failed=(1,))
    assert ledger.view(1).tx == done
    assert ledger.skip(1, "let the others pass").status is Status.SKIPPED
    assert ledger.view(0).pointer.committed == 1
    assert commit(ledger, 1).status is Status.COMMITTED


def test_l12_a_bar_voids_every_ticket_before_it(ledger: Ledger) -> None:
    old = gated(ledger, begun(ledger, 1))
    ledger.bar(1, owner="a person")
    for use in (lambda: ledger.committed(old), lambda: ledger.restart_attempt(old, owner="c")):
        with pytest.raises(FencedError):
            use()
    newer = ledger.gate(1, owner="c")
    assert newer.fence == old.fence + 2
    assert ledger.committed(newer).status is Status.COMMITTED


def test_l12_whoever_opens_the_gate_after_the_bar_keeps_the_commit(place: Place) -> None:
    ledger, committer = place.registered(), place.registered()
    gated(ledger, begun(ledger, 1))
    ticket = ledger.bar(1, owner="a person")
    newer = committer.gate(1, owner="c")
    with pytest.raises(FencedError):
        ledger.take_back(ticket, "x")
    assert committer.committed(newer).status is Status.COMMITTED
    with pytest.raises(FencedError):
        ledger.take_back(ticket, "x")


def test_l12_only_the_ticket_of_a_bar_takes_back(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    with pytest.raises(TransitionError, match="nothing to take back"):
        ledger.take_back(ticket, "x")
    assert statuses(ledger) == {1: Status.COMMITTING}


@pytest.mark.parametrize("status", [None, Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED])
def test_l12_there_is_nothing_to_take_back_where_no_commit_has_begun(ledger: Ledger, status: Status | None) -> None:
    begun(ledger, 1)
    if status is not None:
        brought_to(ledger, 1, status)
    with pytest.raises(TransitionError, match=r"nothing to take back"):
        ledger.bar(1, owner="a person")
    commit(ledger, 1)
    with pytest.raises(TransitionError, match=r"every state has it.*nothing to take back"):
        ledger.bar(1, owner="a person")


# ---- L11, P12: what is replayed is on a list -------------------------------------------------------------------


def unfinished(ledger: Ledger) -> tuple[int, ...]:
    return ledger.view(0).exceptions.unfinished


@pytest.mark.parametrize("source", [None, Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED])
def test_l11_p12_a_replay_is_on_a_list_until_its_batch_is_staged_or_it_fails_again(
    ledger: Ledger, source: Status | None
) -> None:
    for number in (1, 2, 3):
        begun(ledger, number)
    if source is not None:
        brought_to(ledger, 2, source)
    for end in ("fail", "skip", "another attempt"):
        replay = ledger.start_attempt(2, owner="a backfill", replays=source not in (Status.FAILED, Status.SKIPPED))
        assert (unfinished(ledger), ledger.view(0).exceptions.replaying) == ((2,), (2,))
        assert ledger.view(3).blocked_by(3) is None  # who waits for it waits, and is not refused
        assert ledger.view(3).waits_for(3) == 2
        if end == "fail":
            ledger.fail(2, replay.attempt, "again")
            assert (unfinished(ledger), ledger.view(3).blocked_by(3)) == ((2,), 2)
        elif end == "skip":
            ledger.skip(2, "let the others pass")
            assert unfinished(ledger) == ()
        source = Status.FAILED if end == "fail" else Status.SKIPPED
    replay = ledger.start_attempt(2, owner="an emitter that was cleared meanwhile")
    assert unfinished(ledger) == (2,)
    ledger.processed(2, replay.attempt, STAGED)
    assert unfinished(ledger) == ()
    commit(ledger, 1)
    ledger.committed(ledger.gate(2, owner="c"))
    assert commit(ledger, 3).status is Status.COMMITTED
    assert ledger.view(0).exceptions == Exceptions()


def test_l11_p12_a_late_replay_is_on_a_list_until_it_is_committed(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    commit(ledger, begun(ledger, 2))
    ledger.start_attempt(1, owner="a backfill")
    assert unfinished(ledger) == (1,)
    ticket = gated(ledger, 1)
    assert unfinished(ledger) == (1,)
    ledger.committed(ticket)
    assert ledger.view(0).exceptions == Exceptions()


def test_a_transaction_that_a_state_may_hold_cannot_be_skipped(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    for step in (
        lambda: None,
        lambda: ledger.restart_attempt(ticket, owner="c"),
        lambda: ledger.fail(1, 1, "used up"),
    ):
        step()
        with pytest.raises(TransitionError, match="has begun"):
            ledger.skip(1, "x")


# ---- L8, P10: pruning ------------------------------------------------------------------------------------------


def test_l8_p10_only_the_last_committed_ones_are_kept(ledger: Ledger) -> None:
    committed_up_to(ledger, 7, retention=3)
    assert list(statuses(ledger)) == [5, 6, 7]
    view = ledger.view(2)
    assert (view.tx, view.next_txid, view.pointer.committed) == (None, 8, 7)


def test_l8_p10_a_smaller_retention_takes_the_older_ones_along(ledger: Ledger) -> None:
    committed_up_to(ledger, 6)
    commit(ledger, begun(ledger, 7), retention=2)
    assert list(statuses(ledger)) == [6, 7]


def test_l8_p10_failed_skipped_and_uncommitted_ones_are_kept_however_old(ledger: Ledger) -> None:
    for number in (1, 2, 3):
        begun(ledger, number)
    for txid in (1, 2, 3):
        ledger.skip(txid, "x")
    ledger.start_attempt(2, owner="late")
    ledger.fail(3, ledger.start_attempt(3, owner="late").attempt, "x")
    for number in range(4, 10):
        commit(ledger, begun(ledger, number), retention=1)
    begun(ledger, 10)
    assert statuses(ledger) == {
        1: Status.SKIPPED,
        2: Status.PROCESSING,
        3: Status.FAILED,
        9: Status.COMMITTED,
        10: Status.PROCESSING,
    }
    assert commit(ledger, 2, retention=1).status is Status.COMMITTED
    commit(ledger, 10, retention=1)
    assert list(statuses(ledger)) == [1, 3, 10]


def test_the_last_begun_transaction_is_never_pruned_because_the_next_goes_on_from_it(ledger: Ledger) -> None:
    committed_up_to(ledger, 5, retention=1)
    assert begun(ledger, 6) == 6
    record = ledger.view(6).tx
    assert record is not None
    assert record.metadata == {"lines": {"from": 5, "until": 6}}


def test_a_retention_below_one_is_refused(ledger: Ledger) -> None:
    with pytest.raises(ConfigurationError, match="at least 1"):
        ledger.committed(gated(ledger, begun(ledger, 1)), retention=0)


def test_p10_claim_keys_are_pruned_at_last_and_then_cleared_runs_are_refused(place: Place) -> None:
    keep, rounds = 3, 40
    ledger = place.registered(keep_claims=keep)
    if isinstance(ledger, ZNodeLedger):
        # One bucket of 256 is swept every 32 commits: look at them all here.
        committed_up_to(ledger, rounds, retention=1)
        for number in range(256):
            ledger._sweep_claims(f"{number:02x}")
    else:
        committed_up_to(ledger, rounds, retention=1)
    claims = ledger.export()["claims"]
    assert sorted(claims.values()) == list(range(rounds - keep + 1, rounds + 1))
    assert ledger.topology().floor_ms == 1_000 * (rounds - keep) + 1
    with pytest.raises(TransitionError, match=r"run-5.*pruned"):
        ledger.begin(claim(5, cleared=True), lines)
    assert ledger.begin(claim(rounds, cleared=True), lines) == Begun(
        record=ledger.view(rounds).tx, txid=rounds, new=False
    )
    assert ledger.begin(claim(rounds + 1, cleared=True), lines).txid == rounds + 1


# ---- L9, P11: nothing unreadable is guessed at -----------------------------------------------------------------


@pytest.fixture(params=OVER_ZNODES)
def znode_ledger(request: pytest.FixtureRequest) -> Iterator[ZNodeLedger]:
    with LEDGERS[request.param](request) as place:
        ledger = place.registered()
        committed_up_to(ledger, 2)
        yield ledger


RECORDS = {
    "topology": lambda life: life.topology,
    "head": lambda life: life.head,
    "commit pointer": lambda life: life.commit,
    "exceptions": lambda life: life.exceptions,
    "transaction": lambda life: life.tx(2),
    "claim": lambda life: life.claim(claim(2).key),
}


def touch_all(ledger: Ledger) -> None:
    ledger.view(2)
    ledger.begin(claim(2), lines)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize(
    ("data", "error"),
    [(b'{"v":3}', NewerRecordError), (b"\xff\x00", CorruptRecordError), (b'{"v":1}', CorruptRecordError)],
    ids=["newer", "not JSON", "fields missing"],
)
def test_l9_p11_an_unreadable_record_is_named(
    znode_ledger: ZNodeLedger, record: str, data: bytes, error: type[TridentError]
) -> None:
    path = RECORDS[record](Life(znode_ledger._path, znode_ledger.topology().incarnation))
    node = znode_ledger.znodes.read([path]).nodes[path]
    assert node is not None
    znode_ledger.znodes.fault_of = None  # type: ignore[attr-defined]
    znode_ledger.znodes.multi([Set(path, data, node.version)])
    with pytest.raises(error, match=path):
        touch_all(znode_ledger)


@pytest.mark.parametrize("record", ["head", "commit pointer", "exceptions"])
def test_l9_p11_a_missing_record_is_named(znode_ledger: ZNodeLedger, record: str) -> None:
    path = RECORDS[record](Life(znode_ledger._path, znode_ledger.topology().incarnation))
    znode_ledger.znodes.fault_of = None  # type: ignore[attr-defined]
    znode_ledger.znodes.multi([Delete(path)])
    with pytest.raises(CorruptRecordError, match=f"{path} is missing"):
        touch_all(znode_ledger)


def test_writes_to_a_former_life_of_the_topology_find_nothing(znode_ledger: ZNodeLedger) -> None:
    znodes, path = znode_ledger.znodes, znode_ledger._path
    node = znodes.read([path]).nodes[path]
    assert node is not None
    former = znode_ledger.topology().incarnation
    znodes.fault_of = None  # type: ignore[attr-defined]
    znodes.multi([Set(path, node.data.replace(former.encode(), b"ffffffff"), node.version)])
    for attempt in (lambda: znode_ledger.start_attempt(2, owner="x"), lambda: znode_ledger.begin(claim(9), lines)):
        with pytest.raises(FencedError, match=f"deleted and created again: it is now ffffffff, this was {former}"):
            attempt()
