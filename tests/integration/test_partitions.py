"""A topology that is bound to days, in one process: what is delivered late, again, wrong, or not at all."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    EmptyPartitionError,
    LateBatchError,
    SourceChangedError,
    SourceGoneError,
    SupersededError,
)
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import Ledger, MemoryLedger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Delete, Op, ReadResult
from airflow_trident.protocol.partition_keys import PartitionEntry, encode_keys
from airflow_trident.protocol.partitions import Partition
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.partitions import PartitionRequest, PartitionUnderWay, begin_partition
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, process
from airflow_trident.topology.topology import Topology
from tests.fixtures.days import DAYS, DayCoordinator, deliver, delivered, shops, sums_of

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"


class Killed(BaseException):
    pass


class Days:
    """A bound topology in this process, with its sources."""

    def __init__(self, folder: Path, engine: LocalEngine, topology: Topology | None = None) -> None:
        self.folder, self.engine = folder / "in", engine
        self.staging = str(folder / "staging")
        self.topology = topology or shops(self.folder, name=f"shop-{folder.name}")
        self.ledger: Ledger = MemoryLedger(self.topology.name)

    def runner(self) -> LocalRunner:
        return LocalRunner(ledger=self.ledger, topology=self.topology, engine=self.engine, staging_root=self.staging)

    def run(self, *keys: str, **how: Any) -> list[int]:
        return self.runner().run(partitions=keys, **how)

    def deliver(self, key: str, *rows: tuple[str, int], name: str = "a") -> Path:
        return deliver(self.folder, key, list(rows), name)

    @property
    def sums(self) -> dict[tuple, tuple]:
        return held(self.topology)

    def expected(self, *keys: str) -> dict[tuple, tuple]:
        return {key: value for day in keys for key, value in sums_of(day, delivered(self.folder, day)).items()}

    def asked(self, key: str, request: str, **how: Any) -> Any:
        """A coordinator's request."""
        asked = PartitionRequest(key=key, claim=Claim(key=request), **how)
        return begin_partition(self.ledger, self.topology, asked, max_pending=9)

    def emit(self, txid: int) -> ProcessOutcome:
        attempts = Attempts(owner="emitter", last_try=True)
        return process(self.ledger, self.topology, txid, self.engine, self.staging, attempts).outcome

    def commit(self, txid: int) -> Any:
        attempts = Attempts(owner="committer", last_try=True)
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=attempts,
            engine=lambda: self.engine,
        )
        return committer.commit(txid, take_over=True)

    def statuses(self) -> list[Status]:
        return [tx.status for tx in self.ledger.transactions()]


def held(topology: Topology) -> dict[tuple, tuple]:
    spec = topology.states["sums"]
    with spec.factory.make_state(spec) as state:
        return dict(state.items())


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as opened:
        yield opened


@pytest.fixture
def days(tmp_path: Path, engine: LocalEngine) -> Iterator[Days]:
    opened = Days(tmp_path, engine)
    yield opened
    opened.ledger.close()


# ---- what is delivered -----------------------------------------------------------------------------------------


def test_a_partition_is_done_again_whenever_it_is_asked_for(days: Days) -> None:
    days.deliver(MONDAY, ("a", 5), ("b", 7))
    days.deliver(TUESDAY, ("a", 300))
    assert days.run(MONDAY, TUESDAY) == [1, 2]
    assert days.run(MONDAY) == [3]
    assert days.sums == days.expected(MONDAY, TUESDAY)
    assert [tx.partition.n for tx in days.ledger.transactions() if tx.partition] == [1, 1, 2]


@pytest.mark.parametrize("redo", ["asked", "changed"])
def test_what_comes_late_or_corrected_replaces_the_partition(days: Days, redo: str) -> None:
    days.deliver(MONDAY, ("a", 300), ("b", 1))
    days.deliver(TUESDAY, ("a", 9))
    days.run(MONDAY, TUESDAY)
    days.deliver(MONDAY, ("a", 5), name="late")
    days.run(MONDAY, redo=redo)
    assert days.sums == days.expected(MONDAY, TUESDAY)
    days.deliver(MONDAY, ("c", 1))  # the shops of the corrected file are gone
    days.run(MONDAY, redo=redo)
    assert days.sums == days.expected(MONDAY, TUESDAY)


def test_what_is_as_it_was_is_not_done_again_for_a_change(days: Days) -> None:
    path = days.deliver(MONDAY, ("a", 1))
    days.run(MONDAY)
    path.touch()
    assert days.run(MONDAY, redo="changed") == []


def test_rows_whose_file_is_gone_are_taken_away_only_if_a_person_says_so(days: Days) -> None:
    days.deliver(MONDAY, ("a", 1))
    gone = days.deliver(MONDAY, ("b", 2), name="gone")
    days.run(MONDAY)
    before = days.sums
    gone.unlink()
    with pytest.raises(SourceGoneError, match=r"2026-11-23-gone\.json"):
        days.run(MONDAY)
    assert days.sums == before
    days.run(MONDAY, gone="take")
    assert days.sums == days.expected(MONDAY)


def test_a_partition_whose_source_has_expired_keeps_its_rows(days: Days) -> None:
    path = days.deliver(MONDAY, ("a", 1))
    days.run(MONDAY)
    before = days.sums
    path.unlink()
    with pytest.raises(SourceGoneError):
        days.run(MONDAY)
    with pytest.raises(EmptyPartitionError):
        days.run(MONDAY, gone="take")
    assert days.sums == before
    assert len(days.run(MONDAY, gone="take", empty="take")) == 1
    assert days.sums == {}


def test_an_empty_partition_is_an_error_or_a_transaction_without_rows(days: Days) -> None:
    with pytest.raises(EmptyPartitionError, match=r"2026-11-24"):
        days.run(TUESDAY)
    assert days.run(TUESDAY, empty="take") == [1]
    assert days.sums == {}


@pytest.mark.parametrize(
    "key", [None, "", " ", "2026-1-2", "2026-11-24T00:00:00", "2026-02-30", "2025-12-31", "9000-01-01", "2026-W48"]
)
def test_a_request_without_a_key_of_the_topology_is_refused(days: Days, key: Any) -> None:
    register(days)
    days.deliver(TUESDAY, ("a", 1))
    with pytest.raises(ConfigurationError):
        days.run(key)
    assert not days.ledger.transactions()


def test_a_bound_topology_never_asks_what_is_new(days: Days) -> None:
    with pytest.raises(ConfigurationError, match="no key was named"):
        days.runner().run()


# ---- failures --------------------------------------------------------------------------------------------------


def test_a_partition_that_fails_lets_others_pass_and_is_done_when_it_is_asked_for_again(days: Days) -> None:
    path = days.deliver(MONDAY, ("a", 1))
    path.write_text('[["a", "one"]]')
    days.deliver(TUESDAY, ("a", 9))
    with pytest.raises(Exception, match="one"):
        days.run(MONDAY)
    days.run(TUESDAY)
    assert days.statuses() == [Status.SKIPPED, Status.COMMITTED]
    days.deliver(MONDAY, ("a", 1))
    days.run(MONDAY)
    assert days.sums == days.expected(MONDAY, TUESDAY)
    assert days.statuses() == [Status.CLOSED, Status.COMMITTED, Status.COMMITTED]


def test_a_transaction_takes_its_sources_anew_while_no_state_can_have_it(days: Days) -> None:
    days.deliver(MONDAY, ("a", 1))

    def change(milestone: Milestone, txid: int) -> None:
        if milestone is Milestone.BEGUN:
            days.deliver(MONDAY, ("a", 2), ("b", 2))

    with told(change):
        days.run(MONDAY)
    assert days.sums == days.expected(MONDAY)
    (record,) = days.ledger.transactions()
    assert record.attempt == 2
    assert len(record.accepted) == 1


@pytest.mark.parametrize("is_gone_too", [False, True])
def test_what_a_person_accepted_stays_accepted_when_the_sources_change(days: Days, is_gone_too: bool) -> None:
    days.deliver(MONDAY, ("a", 1))
    gone, other = (days.deliver(MONDAY, ("b", 1), name=name) for name in ("gone", "other"))
    days.run(MONDAY)
    before = days.sums
    gone.unlink()

    def change(milestone: Milestone, txid: int) -> None:
        if milestone is Milestone.BEGUN:
            days.deliver(MONDAY, ("a", 7))
            if is_gone_too:
                other.unlink()

    with told(change):
        if is_gone_too:
            with pytest.raises(SourceGoneError, match=r"2026-11-23-other\.json"):
                days.run(MONDAY, gone="take")
        else:
            days.run(MONDAY, gone="take")
    assert days.sums == (before if is_gone_too else days.expected(MONDAY))


def test_a_source_that_changes_in_each_attempt_fails_in_the_end(days: Days) -> None:
    days.deliver(MONDAY, ("a", 1))
    content = iter(range(100, 200))

    def change(milestone: Milestone, txid: int) -> None:
        if milestone in (Milestone.BEGUN, Milestone.ATTEMPT_STARTED):
            days.deliver(MONDAY, ("a", next(content)))

    with told(change), pytest.raises(SourceChangedError):
        days.run(MONDAY)
    assert days.statuses() == [Status.SKIPPED]
    assert days.run(MONDAY) == [2]
    assert days.sums == days.expected(MONDAY)


AT = [*Milestone][:4] + [Milestone.PROCESSED, Milestone.GATE_OPENED, Milestone.APPLIED, Milestone.COMMITTED]


@pytest.mark.parametrize("revision", [1, 2])
@pytest.mark.parametrize("at", AT)
def test_a_kill_at_any_milestone_changes_nothing_about_the_end(days: Days, at: Milestone, revision: int) -> None:
    days.deliver(MONDAY, ("a", 1), ("b", 2))
    days.deliver(TUESDAY, ("a", 9))
    for _ in range(revision - 1):
        days.run(MONDAY, TUESDAY)
        days.deliver(MONDAY, ("a", 3))

    def kill(milestone: Milestone, txid: int) -> None:
        if milestone is at:
            raise Killed

    with told(kill), pytest.raises(Killed):
        days.run(MONDAY)
    days.run(MONDAY, TUESDAY)
    assert days.sums == days.expected(MONDAY, TUESDAY)


# ---- several requests of one partition -------------------------------------------------------------------------


def test_requests_of_one_partition_share_its_unfinished_transaction(days: Days) -> None:
    register(days)
    days.deliver(MONDAY, ("a", 1))
    first, second = days.asked(MONDAY, "backfill"), days.asked(MONDAY, "scheduled", redo=False)
    assert (first.txid, first.new, second.txid, second.new) == (1, True, 1, False)
    assert days.asked(MONDAY, "backfill").txid == 1
    days.deliver(MONDAY, ("a", 2))
    third = days.asked(MONDAY, "manual")
    assert isinstance(third, Begun)
    assert (third.txid, third.record.attempt) == (1, 0)
    days.emit(1)
    days.commit(1)
    assert days.sums == days.expected(MONDAY)


def test_a_slow_look_never_replaces_a_newer_one(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer one serves a request already, and the attempt of the older one would notice no file that it lacks."""
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.asked(MONDAY, "first")
    days.deliver(MONDAY, ("a", 2), name="late")
    look, requests = DayCoordinator.partition, iter(["newer"])

    def slow(self: DayCoordinator, partition: Partition, known: Any = None) -> Any:
        seen = look(self, partition, known)
        for request in requests:
            days.deliver(MONDAY, ("b", 3), name="latest")
            assert days.asked(MONDAY, request).txid == 1
        return seen

    monkeypatch.setattr(DayCoordinator, "partition", slow)
    assert days.asked(MONDAY, "slow").txid == 1
    days.emit(1)
    days.commit(1)
    assert days.sums == days.expected(MONDAY)


def test_a_request_is_not_served_by_a_commit_that_has_begun(days: Days) -> None:
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.asked(MONDAY, "first")
    days.emit(1)
    days.ledger.gate([1], owner="committer")
    days.deliver(MONDAY, ("a", 2))
    assert days.asked(MONDAY, "second") == PartitionUnderWay(MONDAY, 1)
    days.commit(1)
    assert days.asked(MONDAY, "second").txid == 2


def test_an_emitter_that_another_request_overtakes_does_not_fail(days: Days) -> None:
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.asked(MONDAY, "first")
    outcomes: list[ProcessOutcome] = []
    in_the_way = threading.Lock()

    def overtake(milestone: Milestone, txid: int) -> None:
        if milestone is Milestone.STAGED and in_the_way.acquire(blocking=False):
            outcomes.append(days.emit(txid))

    with told(overtake):
        outcomes.append(days.emit(1))
    assert outcomes == [ProcessOutcome.PROCESSED, ProcessOutcome.SUPERSEDED]
    days.commit(1)
    assert days.sums == days.expected(MONDAY)


def test_an_older_transaction_of_a_partition_is_never_committed_after_a_newer_one(days: Days) -> None:
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.deliver(TUESDAY, ("a", 1))
    days.asked(TUESDAY, "in front")
    days.asked(MONDAY, "first")
    days.ledger.skip(2, "a person")
    days.deliver(MONDAY, ("a", 2))
    assert days.asked(MONDAY, "second").txid == 3
    with pytest.raises(SupersededError, match="transaction 3 has its partition 2026-11-23"):
        days.emit(2)
    for txid in (1, 3):
        days.emit(txid)
        days.commit(txid)
    with pytest.raises((SupersededError, LateBatchError)):
        days.emit(2)
    assert days.sums == days.expected(MONDAY, TUESDAY)


@pytest.mark.parametrize("selection", [Selection(first=2, last=2), Selection(first=1, last=3), Selection(failed=True)])
def test_no_backfill_brings_back_what_a_newer_transaction_has_replaced(days: Days, selection: Selection) -> None:
    register(days)
    for key in (TUESDAY, MONDAY):
        days.deliver(key, ("a", 1))
        days.asked(key, f"first of {key}")
    days.ledger.skip(2, "a person")
    days.deliver(MONDAY, ("a", 2))
    assert days.asked(MONDAY, "second").txid == 3
    for txid in (1, 3):
        days.emit(txid)
        days.commit(txid)
    work = Backfill(
        ledger=days.ledger, topology=days.topology, engine=LocalEngine, staging_root=days.staging, owner="a person"
    )
    outcomes = {done.txid: done for done in work.run(selection)}
    assert days.statuses() == [Status.COMMITTED, Status.SKIPPED, Status.COMMITTED]
    assert days.sums == days.expected(MONDAY, TUESDAY)
    if 2 in outcomes:
        assert outcomes[2].outcome is BackfillOutcome.FAILED
        assert "Ask for" in outcomes[2].detail
    assert days.run(MONDAY) == [4]
    assert days.sums == days.expected(MONDAY, TUESDAY)


def test_a_passed_transaction_is_never_attempted_again(days: Days) -> None:
    """A request would join it, and it could never be committed."""
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.asked(MONDAY, "first")
    days.ledger.skip(1, "a person")
    with pytest.raises(LateBatchError, match="Ask for the partition 2026-11-23 again"):
        days.ledger.attempt([1], owner="somebody who looked before it was passed")


class InBetween(MemoryZNodes):
    """`act`: what another process does just before the next write."""

    act: Callable[[], object] | None = None

    def multi(self, ops: Sequence[Op]) -> None:
        act, self.act = self.act, None
        if act is not None:
            act()
        super().multi(ops)


def test_a_partition_begins_only_if_nobody_has_taken_up_its_last_transaction_meanwhile(days: Days) -> None:
    tree = MemoryTree()
    other, znodes = ZNodeLedger(MemoryZNodes(tree), days.topology.name), InBetween(tree)
    days.ledger = ZNodeLedger(znodes, days.topology.name)
    register(days)
    for key in (TUESDAY, MONDAY):
        days.deliver(key, ("a", 1))
        days.asked(key, f"first of {key}")
    days.ledger.skip(2, "a person")
    znodes.act = lambda: other.attempt([2], owner="another process")
    assert days.asked(MONDAY, "second").txid == 2
    assert days.statuses() == [Status.PROCESSING, Status.PROCESSING]


class SlowReader(MemoryZNodes):
    """`act`: what another process does after the index was read."""

    act: Callable[[], object] | None = None

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        result = super().read(paths, folders)
        if self.act is not None and any("/keys/" in path for path in paths):
            act, self.act = self.act, None
            act()
        return result


@pytest.mark.parametrize("several", [False, True])
def test_a_transaction_that_is_closed_and_pruned_meanwhile_does_not_count_as_committed(
    days: Days, several: bool
) -> None:
    tree = MemoryTree()
    other, znodes = ZNodeLedger(MemoryZNodes(tree), days.topology.name), SlowReader(tree)
    days.ledger = ZNodeLedger(znodes, days.topology.name)
    register(days)
    days.deliver(MONDAY, ("a", 1))
    days.asked(MONDAY, "first")
    days.ledger.skip(1, "a person")

    def close() -> None:
        other.close_transaction(1, "a person")
        MemoryZNodes(tree).multi([Delete(other.paths().tx(1))])

    znodes.act = close
    seen = days.ledger.seen_partitions(MONDAY, MONDAY)[MONDAY] if several else days.ledger.partition(MONDAY)
    assert (seen.committed_txid, seen.entry.tx) == (0, 0)


# ---- the index -------------------------------------------------------------------------------------------------


class CountedZNodes(MemoryZNodes):
    nodes = size = 0

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        result = super().read(paths, folders)
        data = [node.data for node in result.nodes.values() if node is not None]
        self.nodes, self.size = self.nodes + len(data), self.size + sum(map(len, data))
        return result


def test_a_request_reads_as_much_of_an_index_of_10_000_keys_as_of_one_of_30(days: Days) -> None:
    read: list[tuple[int, int]] = []
    every = [DAYS.of(datetime(1999, 11, 1, tzinfo=UTC) + timedelta(days=day)).key for day in range(10_000)]
    for keys in ([key for key in every if key[:7] == MONDAY[:7]], every):
        tree = MemoryTree()
        days.ledger, znodes = ZNodeLedger(MemoryZNodes(tree), days.topology.name), CountedZNodes(tree)
        register(days)
        paths, periods = days.ledger.paths(), dict[str, dict[str, PartitionEntry]]()
        for key in keys:
            periods.setdefault(paths.period(key), {})[key] = PartitionEntry(n=1, src="0" * 16)
        MemoryZNodes(tree).multi([Create(path, encode_keys(entries)) for path, entries in periods.items()])
        days.ledger = ZNodeLedger(znodes, days.topology.name)
        days.deliver(MONDAY, ("a", 1))
        assert days.asked(MONDAY, "first").txid == 1
        days.deliver(MONDAY, ("a", 2))
        assert days.asked(MONDAY, "second").txid == 1
        read.append((znodes.nodes, znodes.size))
    assert read[0] == read[1]


def register(days: Days) -> None:
    days.ledger.register(days.topology.definition())
