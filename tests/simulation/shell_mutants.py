"""Deliberate defects between the protocol and its users: tasks, people, servers that lag; see `mutants`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.operators import base
from airflow_trident.operators.transaction import TridentCoordinatorOperator
from airflow_trident.protocol.records import Exceptions, LedgerView, Status
from airflow_trident.runtime import backfill, commit, phases
from airflow_trident.sensors import ready
from airflow_trident.sensors.ready import TridentReadySensor
from airflow_trident.tasks import asking_airflow, liveness
from airflow_trident.tasks.source_lag import last_position
from airflow_trident.triggers.batch import TridentBatchTrigger
from tests.simulation.follower import Answer
from tests.simulation.mutants import Patch, mutant
from tests.simulation.opaque_mutants import MUTANTS

__all__ = ["MUTANTS"]


# ---- reads -------------------------------------------------------------------------------------------------------


@mutant("reads are not synced", "tasks")
def _() -> Sequence[Patch]:
    class Unsynced:
        def __init__(self, client: Any) -> None:
            self.client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self.client, name)

        def sync_async(self, _path: str) -> Answer:
            return Answer(None)

    original = ZooKeeperZNodes._read_once
    return [(ZooKeeperZNodes, "_read_once", lambda self, client, *more: original(self, Unsynced(client), *more))]


@mutant("whether a transaction comes late is seen in a second look", "ordered")
def _() -> Sequence[Patch]:
    class TwoLooks:
        def __init__(self, ledger: Any) -> None:
            self.ledger = ledger

        def __getattr__(self, name: str) -> Any:
            return getattr(self.ledger, name)

        def view(self, txid: int, **named: Any) -> LedgerView:
            first = self.ledger.view(txid, **named)
            return replace(first, pointer=self.ledger.view(0, **named).pointer)

    def process(ledger: Any, *more: Any, **named: Any) -> Any:
        return original(TwoLooks(ledger), *more, **named)

    original = phases.process
    return [(phases, "process", process), (backfill, "process", process)]


# ---- runs and lives ----------------------------------------------------------------------------------------------


@mutant("a run's claims depend on how many transactions it takes", "tasks")
def _() -> Sequence[Patch]:
    def claims(self: TridentCoordinatorOperator, context: Any) -> Iterator[Any]:
        for claim in original(self, context):
            several = f"/of {self.max_transactions}" if self.max_transactions > 1 else ""
            yield replace(claim, key=f"{claim.key}{several}", former=())

    original = TridentCoordinatorOperator._claims
    return [(TridentCoordinatorOperator, "_claims", claims)]


@mutant("tasks take a txid for one of whatever life they find", "lives")
def _() -> Sequence[Patch]:
    return [(base, "incarnation_of_run", lambda task, context: "")]


@mutant("who waits asks Airflow without saying who waits", "lives")
def _() -> Sequence[Patch]:
    return [(base.LedgerTask, "asker", lambda self, context: None)]


@mutant("a run waits for another that Airflow does not start before it has ended", "tasks")
def _() -> Sequence[Patch]:
    return [(asking_airflow, "_in_queued_runs", lambda answers, asker: answers)]


@mutant("a run without new data replays what another left FAILED", "tasks")
def _() -> Sequence[Patch]:
    return [(liveness, "UNFINISHED", frozenset(Status))]


# ---- what makes runs ---------------------------------------------------------------------------------------------


@mutant("a ready sensor looks for new data alone", "ready")
def _() -> Sequence[Patch]:
    return [(TridentReadySensor, "_is_one_left", lambda self, context: False)]


@mutant("a ready sensor waits while the last transaction has no batch", "ready-opaque")
def _() -> Sequence[Patch]:
    def one_left(self: TridentReadySensor, context: Any) -> bool:
        with self.open_ledger() as ledger:
            return last_position(ledger)[1] is not None and original(self, context)

    original = TridentReadySensor._is_one_left
    return [(TridentReadySensor, "_is_one_left", one_left)]


@mutant("the ready sensor of a cleared run waits for new data", "ready")
def _() -> Sequence[Patch]:
    return [(TridentReadySensor, "_has_transactions", lambda self, context, ledger: False)]


@mutant("a ready sensor compares its source with the last transaction but one", "ready")
def _() -> Sequence[Patch]:
    def position(ledger: Any) -> Any:
        last, found = last_position(ledger)
        before = ledger.view(last - 1).tx if last > 1 else None
        return last, before.position if before is not None else found

    return [(ready, "last_position", position)]


@mutant("a batch trigger looks for new data alone", "ready")
def _() -> Sequence[Patch]:
    async def nothing(self: TridentBatchTrigger, ledger: Any, last: int) -> None:
        return None

    return [(TridentBatchTrigger, "_left", nothing)]


@mutant("a batch trigger sends an event once", "ready")
def _() -> Sequence[Patch]:
    async def run(self: TridentBatchTrigger) -> Any:
        self.again_s = float("inf")
        async for event in original(self):
            yield event

    original = TridentBatchTrigger.run
    return [(TridentBatchTrigger, "run", run)]


@mutant("a batch trigger looks for nothing while the last transaction has no batch", "ready-opaque")
def _() -> Sequence[Patch]:
    async def look(self: TridentBatchTrigger, hub: Any) -> Any:
        found = await original(self, hub)
        return None if found is None or (found.left and await hub.call(has_no_batch)) else found

    def has_no_batch(ledger: Any) -> bool:
        return last_position(ledger)[1] is None

    original = TridentBatchTrigger._look
    return [(TridentBatchTrigger, "_look", look)]


@mutant("a batch trigger keeps a former life of the topology", "lives")
def _() -> Sequence[Patch]:
    async def look(self: TridentBatchTrigger, hub: Any) -> Any:
        if self not in lives:
            lives[self] = hub.ledger(self.topology)
        return await original(self, SimpleNamespace(ledger=lambda topology: lives[self]))

    lives = WeakKeyDictionary[TridentBatchTrigger, Any]()
    original = TridentBatchTrigger._look
    return [(TridentBatchTrigger, "_look", look)]


# ---- what people see ---------------------------------------------------------------------------------------------


@mutant("a backfill of what failed leaves out what a killed one was at", "tasks")
def _() -> Sequence[Patch]:
    return [(Exceptions, "unfinished", property(lambda self: self.failed))]


@mutant("a batch that cannot be read is emitted again without end", "elsewhere")
def _() -> Sequence[Patch]:
    return [(commit, "EMIT_TRIES", 1_000)]
