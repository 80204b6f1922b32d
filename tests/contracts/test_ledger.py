"""What every ledger promises, over every implementation: topologies, claims, attempts, all or nothing (L1 to L5)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    DefinitionChangedError,
    StaleAttemptError,
    TransitionError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.ledger.answers import Begun, NothingNew
from airflow_trident.ledger.layout import LedgerPaths, tx_name
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.protocol.decide import Blocked, Full, Paused
from airflow_trident.protocol.records import NO_ATTEMPT, TRANSITIONS, Claim, Command, Owner, Status, claim_key
from airflow_trident.protocol.topologies import Definition, SpoutDefinition
from tests.fixtures import single
from tests.fixtures.ledger import (
    DEFINITION,
    OTHER_STAGED,
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
    statuses,
)

# ---- the topology ----------------------------------------------------------------------------------------------


def test_registering_again_finds_the_same_life(place: Place) -> None:
    first = place.registered().topology()
    assert place.registered().topology() == first


def test_another_definition_under_the_same_name_is_refused_and_names_the_differences(place: Place) -> None:
    place.registered()
    other = Definition(spouts={"lines": SpoutDefinition(text="FileSpout")}, states=DEFINITION.states)
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
    again = single.begin(other, claim(1), lines)
    assert again == Begun(record=ledger.view(first).tx, txid=first, new=False)
    assert ledger.view(0).next_txid == 3


def test_l1_p1_a_claim_gets_its_txid_even_when_paused_full_or_without_new_data(ledger: Ledger) -> None:
    txid = begun(ledger, 1)
    ledger.set_command(Command.PAUSE)
    result = single.begin(ledger, claim(1), nothing, max_pending=1)
    assert isinstance(result, Begun)
    assert (result.txid, result.new) == (txid, False)


def test_l1_p1_a_claim_outlives_the_record_of_its_transaction(ledger: Ledger) -> None:
    committed_up_to(ledger, 4, retention=1)
    assert single.begin(ledger, claim(2, cleared=True), lines) == Begun(record=None, txid=2, new=False)


RUN_IDS = [
    *("manual run of today", "scheduled__2026-11-24T17:50:00.123456+00:00", "a/b//../c/", "..", "a:b::c:-1:0"),
    *("100%2F%25%", "a+b", "Läufe für Öl, ß und 漢字", 'it\'s "so" `here`', "map[3](x){y}<z>", "a\\b\\n"),
    *("r" * 250, "ö" * 250),
]
"""Airflow takes any text of up to 250 characters, once a site has widened `allowed_run_id_pattern`."""


@pytest.mark.parametrize("run_id", RUN_IDS)
def test_l1_p1_a_claim_of_any_run_id_gets_one_txid_and_nobody_elses(place: Place, run_id: str) -> None:
    def of(run_id: str) -> Claim:
        return Claim(key=claim_key("dag", "begin", run_id, -1, 0), dag_id="dag", run_id=run_id)

    ledger, other = place.registered(), place.registered()
    for txid, one in enumerate((run_id, f"{run_id} "), 1):
        for client, new in ((ledger, True), (other, False)):
            found = single.begin(client, of(one), lines, max_pending=9)
            assert isinstance(found, Begun)
            assert (found.txid, found.new) == (txid, new)
    record = other.view(1).tx
    assert record is not None
    assert (record.claim.run_id, record.claim.key) == (run_id, of(run_id).key)


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
    assert single.begin(ledger, claim(1), nothing) == NothingNew()
    assert ledger.export() == before
    assert begun(ledger, 1) == 1


def test_p2_metadata_is_recorded_as_given_and_never_changes(ledger: Ledger) -> None:
    metadata = {"lines": {"files": ["ä.txt", "b\udc80"], "bytes": [0, 2**60], "nested": [{"a": None, "b": 1.5}]}}
    single.begin(ledger, claim(1), lambda txid, position: metadata)
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
        single.begin(ledger, claim(number), in_turn, max_pending=9)
    assert seen[-4:] == [(1, {}), (2, {"odd": 1}), (3, {"odd": 1, "even": 2}), (4, {"odd": 3, "even": 2})]
    record = ledger.view(4).tx
    assert record is not None
    assert (record.metadata, record.carried, record.position) == ({"even": 4}, {"odd": 3}, {"odd": 3, "even": 4})


def test_what_a_spout_does_to_its_argument_changes_nothing_that_is_recorded(ledger: Ledger) -> None:
    single.begin(ledger, claim(1), lambda txid, position: {"a": [1], "b": 1})

    def careless(txid: int, position: dict) -> dict:
        position["a"].append("spoilt")
        return {"b": 2}

    single.begin(ledger, claim(2), careless)
    assert [record.position for record in ledger.transactions()] == [{"a": [1], "b": 1}, {"a": [1], "b": 2}]


@pytest.mark.parametrize("size", [10_000, 300_000, 1_500_000])
def test_p2_large_metadata_comes_back_whole_and_goes_when_its_transaction_is_pruned(place: Place, size: int) -> None:
    ledger = place.registered()
    metadata = {"lines": {str(number): [number, number + 17] for number in range(size // 25)}}
    single.begin(ledger, claim(1), lambda txid, position: metadata)
    commit(ledger, 1)
    seen = place.open().view(1).tx
    assert seen is not None
    assert seen.metadata == metadata
    other = place.open()
    single.begin(other, claim(2), lambda txid, position: {"more": position == metadata})
    following = other.view(2).tx
    assert following is not None
    assert (following.metadata, following.carried) == ({"more": True}, metadata)
    for number in (3, 4):
        single.begin(ledger, claim(number), lambda txid, position: {"lines": 0, "more": 0}, max_pending=9)
    for txid in (2, 3, 4):
        commit(ledger, txid, retention=1)
    assert list(statuses(ledger)) == [4]
    if isinstance(ledger, ZNodeLedger):
        chunks = LedgerPaths(ledger._path, ledger.topology().incarnation).chunks
        left = ledger.znodes.read([], [chunks]).folders[chunks]
        assert {name.rpartition("-")[0].rpartition("-")[0] for name in left} <= {f"base-{tx_name(2)}"}  # the last one


@pytest.mark.parametrize("metadata", [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}, {"a": {1, 2}}, object()])
def test_metadata_that_json_would_change_is_refused_and_begins_nothing(ledger: Ledger, metadata: object) -> None:
    with pytest.raises(ConfigurationError, match="JSON"):
        single.begin(ledger, claim(1), lambda txid, position: {"lines": metadata})
    assert ledger.view(0).next_txid == 1


def test_p5_no_more_than_max_pending_are_uncommitted(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    assert single.begin(ledger, claim(3), lines, max_pending=2) == Full(oldest=1, pending=2)
    commit(ledger, 1)
    assert begun(ledger, 3, max_pending=2) == 3


def test_a_full_window_behind_a_failed_transaction_is_blocked_not_full(ledger: Ledger) -> None:
    begun(ledger, 1)
    begun(ledger, 2)
    ledger.fail(1, NO_ATTEMPT, "killed")
    assert single.begin(ledger, claim(3), lines, max_pending=2) == Blocked(by=1)


@pytest.mark.parametrize("command", [Command.PAUSE, Command.SHUTDOWN])
def test_a_paused_topology_begins_nothing_and_finishes_what_it_has(place: Place, command: Command) -> None:
    ledger, other = place.registered(), place.registered()
    begun(ledger, 1)
    other.set_command(command)
    assert single.begin(ledger, claim(2), lines) == Paused(command=command)
    assert commit(ledger, 1).status is Status.COMMITTED
    other.set_command(Command.RUN)
    assert begun(ledger, 2) == 2


# ---- L2: all or nothing ----------------------------------------------------------------------------------------

VERBS: dict[Status, Callable[[Ledger, int, int], object]] = {
    Status.PROCESSING: lambda ledger, txid, attempt: single.attempt(ledger, txid, owner="x"),
    Status.PROCESSED: lambda ledger, txid, attempt: single.processed(ledger, txid, attempt, OTHER_STAGED),
    Status.COMMITTING: lambda ledger, txid, attempt: single.gate(ledger, txid, owner="x"),
    Status.FAILED: lambda ledger, txid, attempt: ledger.fail(txid, attempt, "x"),
    Status.SKIPPED: lambda ledger, txid, attempt: ledger.skip(txid, "x"),
}
NOT_BY_THESE_VERBS = {(Status.COMMITTING, Status.PROCESSING)}
"""Steps of the table that need a ticket."""


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


def test_an_attempt_that_fails_for_good_lets_others_pass_in_the_same_step_unless_a_state_may_hold_it(
    place: Place,
) -> None:
    ledger = place.registered()
    begun(ledger, 1)
    begun(ledger, 2)
    attempt = single.attempt(ledger, 1, owner="emitter").attempt
    with pytest.raises(StaleAttemptError):
        ledger.fail(1, attempt - 1, "late", skip="late")
    record = ledger.fail(1, attempt, "boom", skip="on_failure=skip")
    assert (record.status, record.first_error, record.attempts[-1].error) == (Status.SKIPPED, "boom", "boom")
    view = ledger.view(2)
    assert (view.pointer.committed, view.exceptions.failed, list(view.exceptions.skipped)) == (1, (), [1])
    brought_to(ledger, 2, Status.PROCESSED)
    again = single.attempt(ledger, single.gate(ledger, 2, owner="committer"), owner="committer")
    assert ledger.fail(2, again.attempt, "boom", skip="on_failure=skip").status is Status.FAILED


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


def test_a_verb_takes_its_arguments_by_name_too(ledger: Ledger) -> None:
    begun(ledger, 1)
    (record,) = ledger.attempt(members=[1], owner="somebody")
    assert ledger.fail(txid=1, attempt=record.attempt, error="a name").status is Status.FAILED


def test_a_word_that_was_heard_already_is_a_success_without_effect(ledger: Ledger) -> None:
    ticket = gated(ledger, begun(ledger, 1))
    before = ledger.export()
    assert single.processed(ledger, 1, 0, STAGED) == ledger.view(1).tx
    assert ledger.export() == before
    done = single.committed(ledger, ticket)
    assert single.committed(ledger, ticket) == done
    assert single.processed(ledger, 1, 0, STAGED) == done


# ---- L4, L5, P3, P4: attempts ----------------------------------------------------------------------------------


def test_l4_p3_every_attempt_gets_another_higher_id_for_ever(place: Place) -> None:
    ledger, other = place.registered(), place.registered()
    begun(ledger, 1)
    attempts = [single.attempt(one, 1, owner="e").attempt for one in (ledger, other, ledger, other)]
    ledger.fail(1, 3, "used up")
    attempts.append(single.attempt(other, 1, owner="replay").attempt)
    assert attempts == [0, 1, 2, 3, 4]


def test_p3_an_attempt_is_durable_before_its_number_is_given_out(place: Place) -> None:
    ledger = place.registered()
    begun(ledger, 1)
    record = single.attempt(ledger, 1, owner="host/7")
    assert place.open().view(1).tx == record
    assert (record.owner, record.status, record.staged) == (Owner(program="host/7"), Status.PROCESSING, None)


@pytest.mark.parametrize("attempt", [0, 2, NO_ATTEMPT])
def test_l5_p4_the_word_of_an_attempt_that_is_not_current_changes_nothing(place: Place, attempt: int) -> None:
    zombie, ledger = place.registered(), place.registered()
    begun(ledger, 1)
    single.attempt(zombie, 1, owner="zombie")
    single.attempt(ledger, 1, owner="new")
    before = ledger.export()
    for word in (
        lambda: single.processed(zombie, 1, attempt, STAGED),
        lambda: zombie.fail(1, attempt, "x", retry=True),
        lambda: zombie.fail(1, attempt, "x"),
    ):
        with pytest.raises(StaleAttemptError, match=rf"attempt {attempt} of transaction 1.*1"):
            word()
    assert ledger.export() == before
    assert single.processed(ledger, 1, 1, STAGED).status is Status.PROCESSED


def test_p4_a_zombie_cannot_take_back_what_a_newer_attempt_committed(place: Place) -> None:
    zombie, ledger = place.registered(), place.registered()
    begun(ledger, 1)
    single.attempt(zombie, 1, owner="zombie")
    commit(ledger, 1)
    for word in (lambda: single.processed(zombie, 1, 0, STAGED), lambda: zombie.fail(1, 0, "x")):
        with pytest.raises(StaleAttemptError):
            word()
    assert statuses(ledger) == {1: Status.COMMITTED}


def test_p3_a_first_attempt_may_begin_with_its_transaction(place: Place) -> None:
    ledger = place.registered()
    result = single.begin(ledger, claim(1), lines, attempt_by="drain")
    assert isinstance(result, Begun)
    assert result.record == place.open().view(1).tx
    assert result.record is not None
    assert (result.record.attempt, str(result.record.owner)) == (0, "drain")
    assert single.begin(ledger, claim(1), lines, attempt_by="another") == Begun(record=result.record, txid=1, new=False)
    assert single.attempt(ledger, 1, owner="another").attempt == 1


def test_p3_nothing_is_processed_without_an_attempt(ledger: Ledger) -> None:
    begun(ledger, 1)
    with pytest.raises(TransitionError, match="transaction 1 was not attempted"):
        single.processed(ledger, 1, NO_ATTEMPT, STAGED)


def test_a_failed_attempt_is_noted_and_the_transaction_goes_on(ledger: Ledger) -> None:
    begun(ledger, 1)
    single.attempt(ledger, 1, owner="e")
    noted = ledger.fail(1, 0, "ValueError: x" * 1_000, retry=True)
    assert (noted.status, noted.error[:13], len(noted.error)) == (Status.PROCESSING, "ValueError: x", 4_000)
    assert single.attempt(ledger, 1, owner="e").error == noted.error
    assert single.processed(ledger, 1, 1, STAGED).error == ""
