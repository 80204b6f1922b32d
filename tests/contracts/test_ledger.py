"""What every ledger promises (L1 to L9 of `ledger.base`, P1 to P11 of the design), over every implementation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    DefinitionChangedError,
    FencedError,
    NewerRecordError,
    StaleAttemptError,
    TransitionError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.ledger.base import Begun, Ledger, NothingNew
from airflow_trident.ledger.paths import Life
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Delete, Set
from airflow_trident.protocol.decide import Blocked, Full, Held
from airflow_trident.protocol.records import NO_ATTEMPT, Command, Definition
from airflow_trident.protocol.statuses import TRANSITIONS, Status
from tests.ledger_fixtures import (
    DEFINITION,
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
    nothing,
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


# ---- the topology ----------------------------------------------------------------------------------------------


def test_registering_again_finds_the_same_life(place: Place) -> None:
    first = place.registered().topology()
    assert place.registered().topology() == first


def test_another_definition_under_the_same_name_is_refused_and_names_the_differences(place: Place) -> None:
    place.registered()
    other = Definition(spouts={"lines": "FileSpout transactional"}, states=DEFINITION.states)
    with pytest.raises(DefinitionChangedError, match=r"stream lines: FixedBatchSpout transactional -> FileSpout"):
        place.open().register(other)
    assert place.open().topology().definition == DEFINITION


def test_a_changed_definition_is_recorded_when_a_person_accepts_it(place: Place) -> None:
    before = place.registered().topology()
    other = Definition(spouts=DEFINITION.spouts, states={})
    assert place.open().register(other, accept_change=True).definition == other
    assert place.open().topology().incarnation == before.incarnation


def test_an_unknown_topology_is_named(place: Place) -> None:
    with pytest.raises(UnknownTopologyError, match=r"'nobody'.*Known topologies: none"):
        place.open("nobody").topology()


def test_each_lifecycle_command_raises_the_epoch_by_one(ledger: Ledger) -> None:
    assert [(ledger.set_command(one).command, ledger.topology().epoch) for one in Command] == [
        (Command.RUN, 1),
        (Command.PAUSE, 2),
        (Command.SHUTDOWN, 3),
    ]


# ---- L1, P1, P5: begin -----------------------------------------------------------------------------------------


def test_l1_p1_txids_are_dense_and_rise_by_one(ledger: Ledger) -> None:
    assert [begun(ledger, number) for number in range(1, 6)] == [1, 2, 3, 4, 5]


def test_l1_p1_a_claim_that_asks_again_gets_the_same_txid_from_any_client(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    first = begun(ledger, 1)
    begun(other, 2)
    again = other.begin(claim(1), lines)
    assert again == Begun(record=ledger.view(first).tx, txid=first, new=False)
    assert ledger.view(0).next_txid == 3


def test_l1_p1_a_claim_gets_its_txid_even_when_paused_full_or_without_new_data(ledger: Ledger) -> None:
    txid = begun(ledger, 1)
    ledger.set_command(Command.PAUSE)
    result = ledger.begin(claim(1), nothing, max_pending=1)
    assert isinstance(result, Begun)
    assert (result.txid, result.new) == (txid, False)


def test_l1_p1_a_claim_outlives_the_record_of_its_transaction(ledger: Ledger) -> None:
    committed_up_to(ledger, 4, retention=1)
    assert ledger.begin(claim(2, cleared=True), lines) == Begun(record=None, txid=2, new=False)


def test_p1_two_at_once_get_two_txids(place: Place) -> None:
    clients = [place.registered() for _ in range(3)]
    start = threading.Barrier(len(clients))

    def work(client: Ledger, first: int) -> list[int]:
        start.wait(30)
        return [begun(client, first + number) for number in range(5)]

    with ThreadPoolExecutor(len(clients)) as pool:
        got = list(pool.map(work, clients, (100, 200, 300)))
    assert sorted(txid for txids in got for txid in txids) == list(range(1, 16))
    assert all(txids == sorted(txids) for txids in got)


def test_nothing_new_begins_nothing(ledger: Ledger) -> None:
    before = ledger.export()
    assert ledger.begin(claim(1), nothing) == NothingNew()
    assert ledger.export() == before
    assert begun(ledger, 1) == 1


def test_p2_metadata_is_recorded_as_given_and_never_changes(ledger: Ledger) -> None:
    metadata = {"lines": {"files": ["ä.txt", "b\udc80"], "bytes": [0, 2**60], "nested": [{"a": None, "b": 1.5}]}}
    ledger.begin(claim(1), lambda txid, position: metadata)
    commit(ledger, 1)
    record = ledger.view(1).tx
    assert record is not None
    assert (record.metadata, record.attempt, record.status) == (metadata, 0, Status.COMMITTED)


def test_the_next_transaction_goes_on_from_the_last_position_of_every_stream(ledger: Ledger) -> None:
    seen = []

    def in_turn(txid: int, position: dict) -> dict:
        seen.append((txid, position))
        return {"odd" if txid % 2 else "even": txid}

    for number in range(1, 5):
        ledger.begin(claim(number), in_turn, max_pending=9)
    assert seen[-4:] == [(1, {}), (2, {"odd": 1}), (3, {"odd": 1, "even": 2}), (4, {"odd": 3, "even": 2})]
    record = ledger.view(4).tx
    assert record is not None
    assert (record.metadata, record.carried, record.position) == ({"even": 4}, {"odd": 3}, {"odd": 3, "even": 4})


def test_what_a_spout_does_to_its_argument_changes_nothing_that_is_recorded(ledger: Ledger) -> None:
    ledger.begin(claim(1), lambda txid, position: {"a": [1], "b": 1})

    def careless(txid: int, position: dict) -> dict:
        position["a"].append("spoilt")
        return {"b": 2}

    ledger.begin(claim(2), careless)
    assert [record.position for record in ledger.transactions()] == [{"a": [1], "b": 1}, {"a": [1], "b": 2}]


@pytest.mark.parametrize("size", [10_000, 300_000, 1_500_000])
def test_p2_large_metadata_comes_back_whole_and_goes_when_its_transaction_is_pruned(place: Place, size: int) -> None:
    ledger = place.registered()
    metadata = {"lines": {str(number): [number, number + 17] for number in range(size // 25)}}
    ledger.begin(claim(1), lambda txid, position: metadata)
    commit(ledger, 1)
    seen = place.open().view(1).tx
    assert seen is not None
    assert seen.metadata == metadata
    other = place.open()
    other.begin(claim(2), lambda txid, position: {"more": position == metadata})
    following = other.view(2).tx
    assert following is not None
    assert (following.metadata, following.carried) == ({"more": True}, metadata)
    for number in (3, 4):
        ledger.begin(claim(number), lambda txid, position: {"lines": 0, "more": 0}, max_pending=9)
    for txid in (2, 3, 4):
        commit(ledger, txid, retention=1)
    assert list(statuses(ledger)) == [4]
    if isinstance(ledger, ZNodeLedger):
        chunks = Life(ledger._path, ledger.topology().incarnation).chunks
        assert ledger.znodes.read([], [chunks]).folders[chunks] == frozenset()


@pytest.mark.parametrize("metadata", [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}, {"a": {1, 2}}, object()])
def test_metadata_that_json_would_change_is_refused_and_begins_nothing(ledger: Ledger, metadata: object) -> None:
    with pytest.raises(ConfigurationError, match="JSON"):
        ledger.begin(claim(1), lambda txid, position: {"lines": metadata})
    assert ledger.view(0).next_txid == 1


def test_p5_no_more_than_max_pending_are_uncommitted(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    assert ledger.begin(claim(3), lines, max_pending=2) == Full(oldest=1, pending=2)
    commit(ledger, 1)
    assert begun(ledger, 3, max_pending=2) == 3


def test_a_full_window_behind_a_failed_transaction_is_blocked_not_full(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    ledger.fail(1, NO_ATTEMPT, "killed")
    assert ledger.begin(claim(3), lines, max_pending=2) == Blocked(by=1)


@pytest.mark.parametrize("command", [Command.PAUSE, Command.SHUTDOWN])
def test_a_paused_topology_begins_nothing_and_finishes_what_it_has(place: Place, command: Command) -> None:
    ledger, other = place.registered(), place.registered()
    begun(ledger, 1)
    other.set_command(command)
    assert ledger.begin(claim(2), lines) == Held(command=command)
    assert commit(ledger, 1).status is Status.COMMITTED
    other.set_command(Command.RUN)
    assert begun(ledger, 2) == 2


# ---- L2: all or nothing ----------------------------------------------------------------------------------------

VERBS: dict[Status, Callable[[Ledger, int, int], object]] = {
    Status.PROCESSING: lambda ledger, txid, attempt: ledger.start_attempt(txid, owner="x"),
    Status.PROCESSED: lambda ledger, txid, attempt: ledger.processed(txid, attempt, OTHER_STAGED),
    Status.COMMITTING: lambda ledger, txid, attempt: ledger.gate(txid, owner="x"),
    Status.FAILED: lambda ledger, txid, attempt: ledger.fail(txid, attempt, "x"),
    Status.SKIPPED: lambda ledger, txid, attempt: ledger.skip(txid, "x"),
}
NOT_BY_THESE_VERBS = {(Status.COMMITTING, Status.PROCESSING)}
"""Steps of the table that take another verb (`restart_attempt`)."""


@pytest.mark.parametrize("target", VERBS)
@pytest.mark.parametrize("source", Status)
def test_l2_each_verb_moves_as_the_table_says_or_changes_nothing(place: Place, source: Status, target: Status) -> None:
    ledger = place.registered()
    txid = begun(ledger, 1)
    brought_to(ledger, txid, source)
    record = ledger.view(txid).tx
    assert record is not None
    assert record.status is source
    allowed = target in TRANSITIONS[source] and (source, target) not in NOT_BY_THESE_VERBS
    before = ledger.export()
    if allowed or (source is target and target in (Status.FAILED, Status.SKIPPED)):
        VERBS[target](ledger, txid, record.attempt)
        assert statuses(ledger) == {txid: target}
    else:
        with pytest.raises(TransitionError, match=f"transaction {txid}"):
            VERBS[target](ledger, txid, record.attempt)
        assert ledger.export() == before


@pytest.mark.parametrize("verb", VERBS)
def test_l2_a_transaction_that_was_never_begun_is_refused(ledger: Ledger, verb: Status) -> None:
    begun(ledger, 1)
    for txid in (0, -1, 2, 10**17):
        with pytest.raises(TransitionError, match="never begun"):
            VERBS[verb](ledger, txid, 0)


@pytest.mark.parametrize("verb", VERBS)
def test_l2_a_pruned_transaction_is_refused_as_committed(ledger: Ledger, verb: Status) -> None:
    committed_up_to(ledger, 3, retention=1)
    with pytest.raises(TridentError, match=r"transaction 1.*[Cc][Oo][Mm][Mm][Ii][Tt][Tt][Ee][Dd]|committed and"):
        VERBS[verb](ledger, 1, 0)


def test_a_word_that_was_heard_already_is_a_success_without_effect(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    before = ledger.export()
    assert ledger.processed(1, 0, STAGED) == ledger.view(1).tx
    assert ledger.export() == before
    done = ledger.committed(ticket)
    assert ledger.committed(ticket) == done
    assert ledger.processed(1, 0, STAGED) == done


# ---- L4, L5, P3, P4: attempts ----------------------------------------------------------------------------------


def test_l4_p3_every_attempt_gets_another_higher_id_for_ever(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    begun(ledger, 1)
    attempts = [one.start_attempt(1, owner="e").attempt for one in (ledger, other, ledger, other)]
    ledger.fail(1, 3, "used up")
    attempts.append(other.start_attempt(1, owner="replay").attempt)
    assert attempts == [0, 1, 2, 3, 4]


def test_p3_an_attempt_is_durable_before_its_number_is_given_out(place: Place) -> None:
    ledger = place.registered()
    begun(ledger, 1)
    record = ledger.start_attempt(1, owner="host/7")
    assert place.open().view(1).tx == record
    assert (record.owner, record.status, record.staged) == ("host/7", Status.PROCESSING, None)


@pytest.mark.parametrize("attempt", [0, 2, NO_ATTEMPT])
def test_l5_p4_the_word_of_an_attempt_that_is_not_current_changes_nothing(place: Place, attempt: int) -> None:
    zombie, ledger = place.registered(), place.registered()
    begun(ledger, 1)
    zombie.start_attempt(1, owner="zombie")
    ledger.start_attempt(1, owner="new")
    before = ledger.export()
    for word in (
        lambda: zombie.processed(1, attempt, STAGED),
        lambda: zombie.attempt_failed(1, attempt, "x"),
        lambda: zombie.fail(1, attempt, "x"),
    ):
        with pytest.raises(StaleAttemptError, match=rf"attempt {attempt} of transaction 1.*1"):
            word()
    assert ledger.export() == before
    assert ledger.processed(1, 1, STAGED).status is Status.PROCESSED


def test_p4_a_zombie_cannot_take_back_what_a_newer_attempt_committed(place: Place) -> None:
    zombie, ledger = place.registered(), place.registered()
    begun(ledger, 1)
    zombie.start_attempt(1, owner="zombie")
    commit(ledger, 1)
    for word in (lambda: zombie.processed(1, 0, STAGED), lambda: zombie.fail(1, 0, "x")):
        with pytest.raises(StaleAttemptError):
            word()
    assert statuses(ledger) == {1: Status.COMMITTED}


def test_p3_a_first_attempt_may_begin_with_its_transaction(place: Place) -> None:
    ledger = place.registered()
    result = ledger.begin(claim(1), lines, attempt_by="drain")
    assert isinstance(result, Begun)
    assert result.record == place.open().view(1).tx
    assert result.record is not None
    assert (result.record.attempt, result.record.owner) == (0, "drain")
    assert ledger.begin(claim(1), lines, attempt_by="another") == Begun(record=result.record, txid=1, new=False)
    assert ledger.start_attempt(1, owner="another").attempt == 1


def test_p3_nothing_is_processed_without_an_attempt(ledger: Ledger) -> None:
    begun(ledger, 1)
    with pytest.raises(TransitionError, match="transaction 1 was never attempted"):
        ledger.processed(1, NO_ATTEMPT, STAGED)


def test_a_failed_attempt_is_noted_and_the_transaction_goes_on(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.start_attempt(1, owner="e")
    noted = ledger.attempt_failed(1, 0, "ValueError: x" * 1_000)
    assert (noted.status, noted.error[:13], len(noted.error)) == (Status.PROCESSING, "ValueError: x", 4_000)
    assert ledger.start_attempt(1, owner="e").error == noted.error
    assert ledger.processed(1, 1, STAGED).error == ""


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
    assert sorted(fences) == [1, 2, 3, 4]
    for client, ticket in zip(clients, tickets, strict=True):
        if ticket.fence != max(fences):
            with pytest.raises(FencedError):
                client.committed(ticket)
    winner = fences.index(max(fences))
    assert clients[winner].committed(tickets[winner]).fence == 4


def test_the_ticket_says_what_is_to_be_committed(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    record = ledger.view(1).tx
    assert record is not None
    topology = ledger.topology()
    assert (ticket.topology, ticket.incarnation) == ("words", topology.incarnation)
    assert (ticket.attempt, ticket.staged, ticket.position) == (0, STAGED, {"lines": {"from": 0, "until": 1}})
    assert (record.fence, record.touched, record.owner) == (ticket.fence, True, "committer")


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
    assert ledger.view(0).exceptions.skipped == (2, 3, 4)


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
    assert (view.pointer.committed, view.exceptions.late, view.exceptions.skipped) == (3, (), ())


def test_a_late_replay_that_fails_blocks_nobody_and_can_be_replayed_again(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "x")
    replay = ledger.start_attempt(1, owner="backfill")
    ledger.fail(1, replay.attempt, "again")
    assert ledger.view(0).exceptions.failed == (1,)
    commit(ledger, begun(ledger, 2))
    assert commit(ledger, 1).status is Status.COMMITTED
    assert ledger.view(0).pointer.committed == 2


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
    [(b'{"v":2}', NewerRecordError), (b"\xff\x00", CorruptRecordError), (b'{"v":1}', CorruptRecordError)],
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


# ---- waiting ---------------------------------------------------------------------------------------------------


def test_waiting_ends_when_the_transaction_changes(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    seen = waiter.view(1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_change, 1, seen, 60.0)
        worker.start_attempt(1, owner="e")
        assert waiting.result(60) is True


def test_waiting_ends_when_another_transaction_fails(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    begun(worker, 2)
    seen = waiter.view(2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait_for_change, 2, seen, 60.0)
        worker.fail(1, NO_ATTEMPT, "killed")
        assert waiting.result(60) is True


def test_a_change_before_the_wait_is_not_missed(place: Place) -> None:
    waiter, worker = place.registered(), place.registered()
    begun(worker, 1)
    seen = waiter.view(1)
    worker.start_attempt(1, owner="e")
    assert waiter.wait_for_change(1, seen, 60.0) is True


def test_waiting_in_vain_ends_at_its_time(ledger: Ledger) -> None:
    begun(ledger, 1)
    assert ledger.wait_for_change(1, ledger.view(1), 0.05) is False


# ---- the rest --------------------------------------------------------------------------------------------------


def test_topologies_do_not_know_of_each_other(place: Place) -> None:
    one, two = place.registered("one"), place.registered("two")
    committed_up_to(one, 2)
    assert begun(two, 1) == 1
    assert statuses(two) == {1: Status.PROCESSING}


def test_the_export_has_everything(ledger: Ledger) -> None:
    committed_up_to(ledger, 2)
    begun(ledger, 3)
    ledger.skip(3, "x")
    export = ledger.export()
    assert (export["next_txid"], export["pointer"]) == (4, {"committed": 3, "fence": 2})
    assert export["exceptions"] == {"failed": [], "skipped": [3], "late": []}
    assert [record["status"] for record in export["transactions"]] == ["COMMITTED", "COMMITTED", "SKIPPED"]
    assert export["claims"] == {claim(number).key: number for number in (1, 2, 3)}
    assert export["topology"]["definition"]["spouts"] == DEFINITION.spouts


def test_transactions_are_listed_in_order_and_by_range(ledger: Ledger) -> None:
    committed_up_to(ledger, 5)
    assert [record.txid for record in ledger.transactions(2, 4)] == [2, 3, 4]
    assert [record.txid for record in ledger.transactions(4)] == [4, 5]


def test_times_say_when_each_status_was_entered(ledger: Ledger) -> None:
    committed_up_to(ledger, 1)
    record = ledger.view(1).tx
    assert record is not None
    order = ["begun", "PROCESSING", "PROCESSED", "COMMITTING", "COMMITTED"]
    assert sorted(record.times_ms, key=lambda name: record.times_ms[name]) == order or list(record.times_ms) == order
    assert set(record.times_ms) == set(order)
