"""Gaps of a state that its ledger knows of are none: what was skipped, and what came before the state (P11)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.errors import (
    DefinitionChangedError,
    FencedError,
    LostTransactionsError,
    StateBehindLedgerError,
    TransitionError,
)
from airflow_trident.protocol.records import Owner, Status
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.states.sql.sqlite import SqliteState
from tests.fixtures import single
from tests.fixtures.behind import marker_of, rebuild, site_of
from tests.fixtures.committing import NAMES, Site, expected, two_counts


def skip(site: Site) -> int:
    txid = site.begin(f"run-{site.ledger.view(0).next_txid}")
    site.ledger.skip(txid, "withdrawn")
    return txid


def test_what_was_skipped_is_backfilled_late_and_closed_ones_are_forgotten(site: Site) -> None:
    site.run(1)
    assert [skip(site), *site.run(1), skip(site), *site.run(1)] == [2, 3, 4, 5]
    site.process(2)
    site.run(1)  # one is late, one is skipped
    site.commit(2)
    site.run(1)
    assert [site.content(name) for name in NAMES] == [expected(1, 2, 3, 5, 6, 7)] * 2
    assert [marker_of(site, name).holes for name in NAMES] == [((4, 4),)] * 2
    site.ledger.close_transaction(4, "nobody wants it")
    assert site.ledger.view(0).exceptions.closed == Txids.of(4)
    with pytest.raises(TransitionError, match="closed for good"):
        site.process(4)
    with pytest.raises(TransitionError, match="closed for good"):
        site.commit(4)
    site.run(1)
    assert [marker_of(site, name).holes for name in NAMES] == [()] * 2
    exceptions = site.ledger.view(0).exceptions
    assert (exceptions.closed, exceptions.skipped) == (NO_TXIDS, NO_TXIDS)
    assert site.ledger.view(4).tx.status is Status.CLOSED


# ---- states that come later ------------------------------------------------------------------------------------


def test_a_new_state_gets_what_commits_after_it_was_accepted_also_what_was_staged_before(tmp_path: Path) -> None:
    factory = SqliteState(str(tmp_path / "states.db"))
    site = Site(two_counts(factory, names=("one",)), tmp_path / "staging")
    site.run(1)
    for key in ("staged", "staged too"):
        site.process(site.begin(key))
    site.process(site.begin("skipped"))
    old = site.committer()
    site.topology = two_counts(factory)
    record = site.ledger.register(site.topology.definition(), accept_change=True)
    assert record.since == {"one": 1, "two": 2}
    with pytest.raises(DefinitionChangedError, match="two"):
        old.commit(2, take_over=True)
    site.commit(4)
    assert [site.content(name) for name in NAMES] == [expected(1, 2, 3, 4), expected(2, 3, 4)]
    assert marker_of(site, "two").holes == ()
    site.run(1)


def test_a_commit_during_which_a_state_is_accepted_is_not_over_before_that_state_has_it(tmp_path: Path) -> None:
    factory = SqliteState(str(tmp_path / "states.db"))
    site = Site(two_counts(factory, names=("one",)), tmp_path / "staging")
    txid = site.begin("run")
    site.process(txid)
    ticket = single.gate(site.ledger, txid, owner=Owner(program="old"))
    other = site.client()
    other.register(two_counts(factory).definition(), accept_change=True)
    with pytest.raises(FencedError, match="state 'two' came to topology 'half'"):
        single.committed(site.ledger, ticket)


def test_a_changed_state_that_holds_nothing_begins_anew_and_one_that_has_data_keeps_its_past(tmp_path: Path) -> None:
    site = Site(two_counts(SqliteState(str(tmp_path / "states.db"))), tmp_path / "staging")
    site.run(2)
    moved = two_counts(SqliteState(str(tmp_path / "moved.db")))
    assert site.ledger.register(moved.definition(), accept_change=True, empty=("two",)).since == {"one": 1, "two": 3}
    site.topology = moved
    with pytest.raises(StateBehindLedgerError, match=r"'one' .* lacks 1 to 2"):
        site.begin("run")


@pytest.mark.parametrize("staged", [True, False], ids=["with a batch", "without one"])
def test_what_was_closed_comes_into_no_state_that_is_rebuilt_later(staged: bool, tmp_path: Path) -> None:
    which: dict[str, int] = {}
    site = site_of("sqlite", tmp_path, which)
    site.run(1)
    txid = site.begin("run-2")
    if staged:
        site.process(txid)
    site.ledger.skip(txid, "withdrawn")
    site.run(1)
    site.ledger.close_transaction(txid, "nobody wants it")
    site.run(1)
    assert site.ledger.view(0).exceptions.closed == NO_TXIDS, "no list tells any more that it was closed"
    which["one"] = 1  # a state that holds nothing
    with pytest.raises(LostTransactionsError, match="'one' lacks 2"):
        rebuild(site).run()
    rebuild(site).run(accept_loss="it was closed")
    assert site.content("one") == expected(1, 3, 4)
    site.run(1)
    assert [site.content(name) for name in NAMES] == [expected(1, 3, 4, 5)] * 2
