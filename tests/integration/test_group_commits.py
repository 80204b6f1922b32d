"""Waiting transactions are committed in one step: by whoever sweeps, and the same as one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, SqliteState, Topology
from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.contracts.updater import MapState
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import StoreUnavailableError, UserCodeError
from airflow_trident.protocol.records import CommitTicket, Status, TxRecord
from airflow_trident.runtime.commit import GroupCommitter
from airflow_trident.runtime.drains.process_many import process_many
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.phases import Attempts
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedMember
from airflow_trident.states.memory import MemoryState
from tests.fixtures import single
from tests.fixtures.committing import Site, expected, two_counts

MANY = (1, 2, 3, 4, 5)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(two_counts(SqliteState(str(tmp_path / "counts.db"))), tmp_path / "staging")


def waiting(site: Site, count: int = 5) -> None:
    for number in range(count):
        site.process(site.begin(f"run-{number}"))


def fences(site: Site) -> list[int]:
    return [tx.fence for tx in site.ledger.transactions()]


def holds(site: Site, *txids: int) -> None:
    assert site.content("one") == site.content("two") == expected(*txids)


def test_what_waits_is_committed_in_one_step(site: Site) -> None:
    waiting(site)
    assert site.commit(3).committed == MANY
    assert fences(site) == [1, 1, 1, 1, 1]
    assert [tx.status for tx in site.ledger.transactions()] == [Status.COMMITTED] * 5
    holds(site, *MANY)
    assert site.run(1) == [6]
    holds(site, *MANY, 6)


def test_one_at_a_time_where_the_caller_says_so(site: Site) -> None:
    waiting(site)
    assert replace(site.committer(), most_together=1).commit(5).committed == MANY
    assert fences(site) == [1, 2, 3, 4, 5]
    holds(site, *MANY)


def test_at_most_so_many_are_one_step(site: Site) -> None:
    waiting(site)
    assert replace(site.committer(), most_together=2).commit(5).committed == MANY
    assert fences(site) == [1, 1, 2, 2, 3]
    holds(site, *MANY)


def test_what_is_skipped_is_passed_over_and_may_come_later(site: Site) -> None:
    waiting(site)
    site.ledger.skip(3, "nobody needs it")
    assert site.commit(5).committed == (1, 2, 4, 5)
    assert {tx.txid: tx.fence for tx in site.ledger.transactions()} == {1: 1, 2: 1, 3: 0, 4: 1, 5: 1}
    site.process(3)
    assert site.commit(3).committed == (3,)
    holds(site, *MANY)


def test_a_group_ends_before_what_is_not_processed(site: Site) -> None:
    waiting(site, 2)
    site.begin("unprocessed")
    site.process(site.begin("behind it"))
    assert site.commit(2).committed == (1, 2)
    assert fences(site) == [1, 1, 0, 0]


@pytest.mark.parametrize("together", [1, 2, 200])
@pytest.mark.parametrize("milestone", [Milestone.GATE_OPENED, Milestone.APPLIED])
@pytest.mark.parametrize("txid", [1, 3, 5])
def test_stopped_at_any_point_and_taken_up_in_any_cut(
    site: Site, milestone: Milestone, txid: int, together: int
) -> None:
    waiting(site)

    def stop(reached: Milestone, at: int) -> None:
        if (reached, at) == (milestone, txid):
            raise KeyboardInterrupt

    with told(stop), pytest.raises(KeyboardInterrupt):
        site.commit(5)
    assert [tx.status for tx in site.ledger.transactions()] == [Status.COMMITTING] * 5
    again = replace(site.committer(), most_together=together)
    assert again.commit(5, take_over=True).committed == MANY
    holds(site, *MANY)


def test_a_staged_batch_that_is_gone_is_emitted_again_and_the_others_go_on(site: Site) -> None:
    waiting(site)
    lost = site.ledger.view(2).tx
    assert lost is not None
    assert lost.staged is not None
    (site.staging / lost.staged.manifest).unlink()
    assert site.commit(5).committed == MANY
    assert [tx.attempt for tx in site.ledger.transactions()] == [0, 1, 0, 0, 0]
    holds(site, *MANY)


def test_each_has_its_own_rows_where_one_between_two_of_a_pass_had_a_pass_of_its_own(tmp_path: Path) -> None:
    """As after a failed pass: the one that failed it goes alone, the others together again."""
    topology = Topology("kept")
    numbers = topology.new_stream("numbers", FixedBatchSpout("key string, n long", [("k", 1), ("k", 2), ("k", 3)], 1))
    numbers.partition_persist(SqliteState(str(tmp_path / "kept.db")), "key, n", keys="key", name="last")
    site = Site(topology, tmp_path / "staging")
    for number in range(3):
        site.begin(f"run-{number}")
    (ended,) = process_many(
        site.ledger,
        topology,
        (1, 3),
        LocalEngine(),
        str(site.staging),
        Attempts(owner="a pass"),
        site.said.append,
        group=2,
        is_free=lambda tx: True,
    )
    assert ended.txids == (1, 3)
    first, _, third = (tx.staged for tx in site.ledger.transactions())
    assert first is not None
    assert third is not None
    assert first.manifest == third.manifest
    site.process(2)
    assert site.commit(3).committed == (1, 2, 3)
    assert fences(site) == [1, 1, 1]
    assert site.content("last") == {"k": 3}


# ---- what was merged by key ------------------------------------------------------------------------------------


def merged_by_key(site: Site, txids: Sequence[int], attempt: int = 0) -> None:
    """One staged batch of several transactions, as a pass over all of them leaves it."""
    area, plan = StagingArea(str(site.staging)), site.topology.compile()
    records = [site.ledger.view(txid).tx for txid in txids]
    incarnation = site.ledger.view(0).topology.incarnation
    slot = Slot(topology=site.topology.name, incarnation=incarnation, txid=txids[-1], attempt=attempt)
    found = expected(*txids)
    import pyarrow as pa

    from airflow_trident.io.arrow import arrow_schema

    files = tuple(
        area.write(
            slot,
            sink.name,
            pa.table([list(found), list(found.values())], schema=arrow_schema(sink.schema)),
        )
        for sink in plan.staged
    )
    members = tuple(
        StagedMember(txid=one.txid, attempt=attempt, rows_read=1, rows={}) for one in records if one is not None
    )
    whole = Manifest(slot=slot, files=files, rows_read=5, sinks=plan.staged_fields, group=members, inseparable=True)
    for txid, staged in area.publish_group(whole).items():
        single.attempt(site.ledger, txid, owner="a pass")
        single.processed(site.ledger, txid, attempt, staged)


def test_what_was_merged_by_key_is_committed_as_a_whole(site: Site) -> None:
    for number in MANY:
        site.begin(f"run-{number}")
    merged_by_key(site, MANY)
    assert site.commit(5).committed == MANY
    assert fences(site) == [1] * 5
    holds(site, *MANY)


def test_merged_groups_are_steps_of_their_own(site: Site) -> None:
    for number in MANY:
        site.begin(f"run-{number}")
    merged_by_key(site, (1, 2))
    merged_by_key(site, (3, 4, 5))
    assert site.commit(5).committed == MANY
    assert fences(site) == [1, 1, 2, 2, 2]
    holds(site, *MANY)


@pytest.mark.parametrize("spoiled", [1, 3, 5])
def test_a_member_that_was_skipped_makes_the_others_be_emitted_again(site: Site, spoiled: int) -> None:
    for number in MANY:
        site.begin(f"run-{number}")
    merged_by_key(site, MANY)
    site.ledger.skip(spoiled, "nobody needs it")
    others = tuple(txid for txid in MANY if txid != spoiled)
    assert site.commit(5 if spoiled < 5 else 4).committed == others
    holds(site, *others)


@pytest.mark.parametrize("together", [1, 2, 200])
def test_a_merged_group_that_one_state_has_is_taken_up_in_any_cut(site: Site, together: int) -> None:
    for number in MANY:
        site.begin(f"run-{number}")
    merged_by_key(site, MANY)

    def stop(reached: Milestone, at: int) -> None:
        if reached is Milestone.APPLIED:
            raise KeyboardInterrupt

    with told(stop), pytest.raises(KeyboardInterrupt):
        site.commit(5)
    assert replace(site.committer(), most_together=together).commit(5, take_over=True).committed == MANY
    holds(site, *MANY)


def test_what_is_merged_by_key_after_a_committer_looked_is_not_taken_for_all_that_is_at_its_gate(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody processes 1 and 2 again, together, between the look at 1 to 5 and the gate."""
    waiting(site)
    look = GroupCommitter._group_of

    def looks(self: GroupCommitter, records: Sequence[TxRecord]) -> Any:
        found = look(self, records)
        monkeypatch.undo()
        merged_by_key(site, (1, 2), attempt=1)
        return found

    monkeypatch.setattr(GroupCommitter, "_group_of", looks)
    assert site.commit(5).committed == MANY
    holds(site, *MANY)
    assert [tx.attempt > 0 for tx in site.ledger.transactions()] == [True, True, False, False, False]


@pytest.mark.parametrize("own", [1, 5])
def test_who_comes_second_to_the_gate_of_a_group_leaves_it_to_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch, own: int
) -> None:
    """Somebody opens the gate of 1 to 5 between the look and the gate, and is at work."""
    for number in MANY:
        site.begin(f"run-{number}")
    merged_by_key(site, MANY)
    look, tickets = GroupCommitter._group_of, list[CommitTicket]()

    def looks(self: GroupCommitter, records: Sequence[TxRecord]) -> Any:
        found = look(self, records)
        monkeypatch.undo()
        tickets.extend(site.ledger.gate(MANY, owner="the first"))
        return found

    monkeypatch.setattr(GroupCommitter, "_group_of", looks)
    assert site.committer().commit(own, take_over=own == 5).committed == ()
    assert [(tx.attempt, tx.fence) for tx in site.ledger.transactions()] == [(0, one.fence) for one in tickets]


# ---- what cannot go together -----------------------------------------------------------------------------------


class Refusing(MemoryState):
    """Of groups: as a store does where a sum of several batches does not fit."""

    def make_state(self, spec: StateSpec) -> State:
        made = super().make_state(spec)

        def refuse(tickets: Sequence[CommitTicket], batches: Sequence[Any]) -> tuple[Applied, ...]:
            raise UserCodeError("the sum does not fit its field", "Use a larger type.")

        made.apply_group = refuse  # type: ignore[method-assign]
        return made


def test_a_group_that_a_state_refuses_is_committed_one_by_one(tmp_path: Path) -> None:
    store = Refusing("refusing")
    site = Site(two_counts(store), tmp_path / "staging")
    waiting(site)
    assert site.commit(5).committed == MANY
    assert fences(site) == [2, 3, 4, 5, 6]
    assert any("one by one" in line for line in site.said)
    holds(site, *MANY)
    store.forget()


class Gone(MemoryState):
    """It does not answer the first group."""

    refusals = 1

    def make_state(self, spec: StateSpec) -> State:
        made = super().make_state(spec)
        whole = made.apply_group

        def lost(tickets: Sequence[CommitTicket], batches: Sequence[Any]) -> tuple[Applied, ...]:
            if type(self).refusals:
                type(self).refusals -= 1
                raise StoreUnavailableError("the store does not answer", "Wait for it.")
            return whole(tickets, batches)

        made.apply_group = lost  # type: ignore[method-assign]
        return made


def test_a_store_that_is_away_fails_the_commit_and_the_next_one_goes_on(tmp_path: Path) -> None:
    store = Gone("gone")
    site = Site(two_counts(store), tmp_path / "staging")
    waiting(site)
    with pytest.raises(StoreUnavailableError):
        site.committer().commit(5)
    first = site.ledger.view(1).tx
    assert first is not None
    assert "does not answer" in first.error
    assert site.commit(5).committed == MANY
    holds(site, *MANY)
    store.forget()


def last_word(state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
    for (word,) in tuples:
        state.multi_put([(word,)], [(word,)])


def test_updaters_are_called_for_one_transaction_at_a_time(tmp_path: Path) -> None:
    topology = Topology("updated")
    stream = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b", "a"], 1))
    store = SqliteState(str(tmp_path / "words.db"))
    stream.partition_persist(store, "word", last_word, keys="word", values="last string", name="one")
    assert topology.compile().coalesces.why_one == "state one is changed by an updater"
    site = Site(topology, tmp_path / "staging")
    waiting(site, 3)
    assert site.commit(3).committed == (1, 2, 3)
    assert fences(site) == [1, 2, 3]


class OneByOne(StateFactory):
    """A store that takes no groups."""

    def __init__(self, inner: StateFactory) -> None:
        self.inner = inner
        self.capabilities = replace(inner.capabilities, groups=False)

    def make_state(self, spec: StateSpec) -> State:
        return self.inner.make_state(spec)

    def describe(self) -> str:
        return self.inner.describe()


def test_a_store_without_groups_is_named(tmp_path: Path) -> None:
    topology = two_counts(OneByOne(SqliteState(str(tmp_path / "counts.db"))))
    assert topology.compile().coalesces.why_one == "state one takes one transaction at a time"
    site = Site(topology, tmp_path / "staging")
    waiting(site)
    assert site.commit(5).committed == MANY
    assert fences(site) == [1, 2, 3, 4, 5]
