"""What every ledger promises of a person's decision: it is done to what the person saw, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.protocol.decide import SeenTopology, SeenTransaction
from airflow_trident.protocol.records import NO_ATTEMPT, Command, Status
from tests.contracts.test_ledger_accepting import Mended
from tests.fixtures import single
from tests.fixtures.ledger import begun, brought_to, commit

DECISIONS: dict[str, Callable[[Ledger, SeenTransaction], object]] = {
    "skip": lambda ledger, seen: ledger.skip(1, "asked for", seen=seen),
    "accept-source": lambda ledger, seen: ledger.accept_source(1, Mended(), "asked for", seen=seen),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_about_what_was_seen_is_done(ledger: Ledger, decision: str) -> None:
    begun(ledger, 1)
    DECISIONS[decision](ledger, SeenTransaction(Status.PROCESSING, NO_ATTEMPT))
    found = ledger.view(1).tx
    assert found is not None
    assert found.status is (Status.SKIPPED if decision == "skip" else Status.FAILED)


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize(
    "seen", [SeenTransaction(Status.FAILED, 0), SeenTransaction(Status.PROCESSING, 0)], ids=["status", "attempt"]
)
def test_a_decision_about_what_has_moved_changes_nothing_and_says_what_it_is_now(
    ledger: Ledger, decision: str, seen: SeenTransaction
) -> None:
    begun(ledger, 1)
    brought_to(ledger, 1, Status.FAILED)
    single.attempt(ledger, 1, owner="another")
    before = ledger.view(1)
    with pytest.raises(TransitionError, match=r"transaction 1 has moved: it is PROCESSING, attempt 1 now, and was"):
        DECISIONS[decision](ledger, seen)
    assert ledger.view(1) == before


def test_a_close_of_what_is_replayed_meanwhile_changes_nothing(ledger: Ledger) -> None:
    begun(ledger, 1)
    ledger.skip(1, "withdrawn")
    begun(ledger, 2)
    commit(ledger, 2)
    single.attempt(ledger, 1, owner="another")
    with pytest.raises(TransitionError, match="has moved"):
        ledger.close_transaction(1, "for good", seen=SeenTransaction(Status.SKIPPED, NO_ATTEMPT))
    found = ledger.view(1).tx
    assert found is not None
    assert found.status is Status.PROCESSING


def test_a_command_is_given_once_by_whoever_saw_the_topology(ledger: Ledger) -> None:
    seen = SeenTopology(ledger.topology().epoch)
    ledger.set_command(Command.PAUSE, seen=seen)
    with pytest.raises(TransitionError, match="was given another command meanwhile: it is 'pause' now"):
        ledger.set_command(Command.RUN, seen=seen)
    assert ledger.topology().command is Command.PAUSE
