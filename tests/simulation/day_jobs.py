"""Jobs of a topology that is bound to days: requests of days, alone and in groups, and what happens to their source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from airflow_trident.errors import (
    EmptyPartitionError,
    SourceChangedError,
    TransitionError,
    TridentError,
)
from airflow_trident.ledger.answers import AskedPartition, Begun, NextBatches
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.partitions import OnMissing
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.partitions import (
    PartitionRequest,
    PartitionResult,
    PartitionUnchanged,
    begin_partition,
)
from airflow_trident.runtime.phases import require_definition
from airflow_trident.types import Json
from tests.simulation.days import DAYS, NOW, looked_at
from tests.simulation.judge_of_days import JudgeOfDays
from tests.simulation.world import MOST_TOGETHER, World

RUNS = 24
PATIENT = 3
EXPECTED: tuple[type[TridentError], ...] = (SourceChangedError, EmptyPartitionError)
"""What a source may be like for a request or an attempt."""


def _judge(world: World) -> JudgeOfDays:
    assert isinstance(world.judge, JudgeOfDays)
    return world.judge


def _claims(world: World, many: int) -> list[tuple[Claim, str]]:
    """Runs, which may have asked before. Each run has a day."""
    judge, asked = _judge(world), []
    for run in world.random.sample(range(RUNS), many):
        claim = Claim(key=f"run-{run}")
        key = judge.source.days[run % len(judge.source.days)]
        judge.requests.begun.setdefault(claim.key, (key, judge.source.since))
        asked.append((claim, key))
    return asked


def ask(world: World, ledger: ZNodeLedger) -> None:
    """A run, or a person, asks for a day."""
    ((claim, key),) = _claims(world, 1)
    chance = world.random
    request = PartitionRequest(
        key=key,
        claim=claim,
        redo=chance.random() < 0.3,
        gone=chance.choice((OnMissing.ERROR, OnMissing.TAKE)),
        empty=chance.choice((OnMissing.ERROR, OnMissing.TAKE, OnMissing.TAKE)),
    )
    asked_for(world, ledger, request)


def asked_for(world: World, ledger: ZNodeLedger, request: PartitionRequest) -> PartitionResult:
    judge, since = _judge(world), world.source.since
    judge.requests.begun.setdefault(request.claim.key, (str(request.key), since))
    require_definition(ledger, world.topology, check_states=True)
    result = begin_partition(ledger, world.topology, request, max_pending=world.judge.max_pending, clock=lambda: NOW)
    world.note(f"{request.claim.key} asks for {request.key}: {type(result).__name__} {getattr(result, 'txid', '')}")
    if isinstance(result, Begun):
        judge.claimed(request.claim.key, result.txid)
        world.given[request.claim.key] = result.txid
    if isinstance(result, PartitionUnchanged):
        look = judge.looks.get(result.txid)
        if look is None or not judge.source.was(result.key, look, since):
            judge.broken("P2", f"{result.key} is called unchanged since {result.txid}, which has {look}")
    return result


def ask_together(world: World, ledger: ZNodeLedger) -> None:
    """Several days begin in one step."""
    judge = _judge(world)
    asked = {key: claim for claim, key in _claims(world, world.random.randint(1, MOST_TOGETHER))}
    require_definition(ledger, world.topology, check_states=True)
    coordinator = world.topology.spouts["records"].coordinator()
    partitions: dict[str, AskedPartition] = {}
    for key, claim in asked.items():
        seen, partition = ledger.partition(key), DAYS.parse(key)
        metadata: dict[str, Json] = {"records": coordinator.partition(partition)}
        partitions[claim.key] = AskedPartition(partition=partition, seen=seen.entry, metadata=metadata)
    result = ledger.begin(NextBatches(list(asked.values()), partitions=partitions, max_pending=world.judge.max_pending))
    begun = result if isinstance(result, tuple) else ()
    world.note(f"{list(asked)}: {[one.txid for one in begun] or type(result).__name__}")
    for claim, one in zip(asked.values(), begun, strict=False):
        reached(Milestone.BEGUN, one.txid)
        judge.claimed(claim.key, one.txid)
        world.given[claim.key] = one.txid


def source_changes(world: World, _ledger: ZNodeLedger) -> None:
    world.source.change(world)


def close(world: World, ledger: ZNodeLedger) -> None:
    """A person closes what was skipped."""
    skipped = [tx.txid for tx in ledger.transactions() if tx.status is Status.SKIPPED]
    with suppress(TransitionError):
        for txid in skipped:
            world.note(f"close {txid}: {ledger.close_transaction(txid, 'a person').status}")


def restored(world: World, ledger: ZNodeLedger) -> None:
    """A state may hold a transaction whose staged rows are lost: its source is put back as it was then."""
    for tx in ledger.transactions():
        look = looked_at(tx.metadata)
        if look is None or tx.partition is None or not tx.touched or tx.status.is_final:
            continue
        if world.source.now[tx.partition.key] != look:
            world.source.becomes(tx.partition.key, look, world)


def all_asked(world: World, ledger: ZNodeLedger, number: int) -> bool:
    """A person asks for all days that have changed. True: none has."""
    results = []
    if number >= PATIENT:
        restored(world, ledger)
    for key in world.source.days:
        claim = Claim(key=f"end-{world.scheduler.steps}-{number}-{key}")
        request = PartitionRequest(key=key, claim=claim, redo=False, gone=OnMissing.TAKE, empty=OnMissing.TAKE)
        results.append(asked_for(world, ledger, request))
    return all(isinstance(result, PartitionUnchanged) for result in results)


DAY_JOBS: dict[Callable[[World, ZNodeLedger], None], float] = {ask: 12, source_changes: 6, close: 1.5}
