"""The zombie matrix of groups: what a slow old pass of five transactions, or their old committer, still does after
somebody else took them up, in whatever cut, changes nothing, on every state and sink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from pathlib import Path

import pytest

from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError, StaleAttemptError, StoreUnavailableError, TridentError
from airflow_trident.ledger.answers import StagedAttempt
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, CommitTicket, Status, TxRecord
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from benchmarks.zombies import counting, rows_in, stores

K = 5
ROWS, KEYS = 40, 7
"""Of each transaction."""


class Five:
    """Five transactions in a ledger of their own."""

    def __init__(self, folder: Path, factory: StateFactory) -> None:
        self.topology = counting([f"k{number % KEYS}" for number in range(K * ROWS)], ROWS, factory)
        self.ledger = MemoryLedger(self.topology.name)
        self.staging = str(folder / "staging")
        self.spec = self.topology.states["counts"]
        for number in range(K):
            coordinate(self.ledger, self.topology, [Claim(key=f"run-{number}")], max_pending=K)

    def started(self) -> tuple[TxRecord, ...]:
        return self.ledger.attempt(range(1, K + 1), owner="somebody")

    def ran(self, records: Sequence[TxRecord]) -> Manifest:
        slot = partial(Slot, topology=self.topology.name, incarnation=self.ledger.view(0).topology.incarnation)
        job = partial(Job, plan=self.topology.compile(), staging_root=self.staging)
        jobs = [job(slot=slot(txid=one.txid, attempt=one.attempt), metadata=one.metadata) for one in records]
        with LocalEngine() as engine:
            return engine.run_group(jobs)

    def said(self, records: Sequence[TxRecord], manifest: Manifest) -> None:
        """The end of a pass: published and PROCESSED."""
        staged = StagingArea(self.staging).publish_group(manifest)
        done = [StagedAttempt(txid=one.txid, attempt=one.attempt, staged=staged[one.txid]) for one in records]
        self.ledger.processed(done)

    def passed(self) -> None:
        records = self.started()
        self.said(records, self.ran(records))

    def commit(self, together: int) -> None:
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=Attempts(owner="new committer"),
            engine=LocalEngine,
            most_together=together,
        )
        while self.ledger.view(0).pointer.committed < K:
            with suppress(StoreUnavailableError):  # stores that lose their answers
                committer.commit(K, take_over=True)

    def apply(self, tickets: Sequence[CommitTicket]) -> None:
        """What a committer does that has passed the gate, however long ago; alone it goes no further than the first."""
        area = StagingArea(self.staging)
        manifest = area.load(tickets[0].staged)
        batches = area.read_each(manifest, {one.txid: one.attempt for one in tickets}, "counts", self.spec.staged)
        with suppress(StoreUnavailableError), self.spec.factory.make_state(self.spec) as state:
            if self.spec.takes_groups:
                state.apply_group(tickets, batches)
            else:
                state.apply(tickets[0], batches[0])

    def require_each_row_once(self) -> None:
        assert [tx.status for tx in self.ledger.transactions()] == [Status.COMMITTED] * K
        assert rows_in(self.spec) == K * ROWS


def late_pass(five: Five, together: int) -> None:
    old = five.started()
    manifest = five.ran(old)
    five.passed()
    five.commit(together)
    with pytest.raises(TridentError):
        five.said(old, manifest)


def pass_between(five: Five, together: int) -> None:
    """It ends when the new one has begun, and again when that is PROCESSED."""
    old = five.started()
    manifest = five.ran(old)
    new = five.started()
    with pytest.raises(StaleAttemptError):
        five.said(old, manifest)
    five.said(new, five.ran(new))
    with pytest.raises(StaleAttemptError):
        five.said(old, manifest)
    five.commit(together)


def late_committer(five: Five, together: int) -> None:
    five.passed()
    tickets = five.ledger.gate(range(1, K + 1), owner="old committer")
    five.commit(together)
    if five.spec.factory.capabilities.knows_txids:
        with pytest.raises(FencedError):
            five.apply(tickets)
    with pytest.raises(FencedError):
        five.ledger.committed(tickets)


def applied_not_said(five: Five, together: int) -> None:
    five.passed()
    tickets = five.ledger.gate(range(1, K + 1), owner="old committer")
    five.apply(tickets)
    five.commit(together)
    with pytest.raises(FencedError):
        five.ledger.committed(tickets)


CASES = (late_pass, pass_between, late_committer, applied_not_said)


@pytest.mark.parametrize(("name", "together"), list(zip(stores(), cycle([2, K]))))
def test_whatever_an_old_group_still_does_each_row_is_there_once(name: str, together: int, tmp_path: Path) -> None:
    for number, run in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        five = Five(folder, stores()[name](folder))
        run(five, together)
        five.require_each_row_once()
