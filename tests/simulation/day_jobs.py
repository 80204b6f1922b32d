"""Jobs of a topology that is bound to days: requests of days, alone and in groups, and what happens to their source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from airflow_trident.errors import (
    EmptyPartitionError,
    SourceChangedError,
    TransitionError,
    TridentError,
)
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.partitions import OnMissing
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.partitions import (
    PartitionAnswer,
    PartitionRequest,
    PartitionUnchanged,
    begin_partitions,
)
from airflow_trident.runtime.phases import require_definition
from tests.simulation.days import NOW, looked_at
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
    asked_for(world, ledger, [_request(world, *each) for each in _claims(world, 1)])


def ask_together(world: World, ledger: ZNodeLedger) -> None:
    """Several days are asked for, and begin in one step."""
    by_key = {key: claim for claim, key in _claims(world, world.random.randint(1, MOST_TOGETHER))}
    asked_for(world, ledger, [_request(world, claim, key) for key, claim in by_key.items()])


def _request(world: World, claim: Claim, key: str) -> PartitionRequest:
    chance = world.random
    return PartitionRequest(
        key=key,
        claim=claim,
        redo=chance.random() < 0.3,
        gone=chance.choice((OnMissing.ERROR, OnMissing.TAKE)),
        empty=chance.choice((OnMissing.ERROR, OnMissing.TAKE, OnMissing.TAKE)),
    )


def asked_for(world: World, ledger: ZNodeLedger, requests: Sequence[PartitionRequest]) -> list[PartitionAnswer]:
    judge, since = _judge(world), world.source.since
    for request in requests:
        judge.requests.begun.setdefault(request.claim.key, (str(request.key), since))
    require_definition(ledger, world.topology, check_states=True)
    with OpenCoordinators(world.topology, ledger) as coordinators:
        results = begin_partitions(
            ledger,
            world.topology,
            requests,
            max_pending=world.judge.max_pending,
            attempt_by="",
            coordinators=coordinators,
            clock=lambda: NOW,
        )
    for request, result in zip(requests, results, strict=True):
        what = f"{type(result).__name__} {getattr(result, 'txid', '')}"
        world.note(f"{request.claim.key} asks for {request.key}: {what}")
        if isinstance(result, Begun):
            judge.claimed(request.claim.key, result.txid)
            world.given[request.claim.key] = result.txid
        if isinstance(result, PartitionUnchanged):
            judge.is_unchanged(result.key, result.txid, since)
        if isinstance(result, TridentError) and not isinstance(result, EXPECTED):
            raise result
    return results


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
    if number >= PATIENT:
        restored(world, ledger)
    requests = []
    for key in world.source.days:
        claim = Claim(key=f"end-{world.scheduler.steps}-{number}-{key}")
        requests.append(PartitionRequest(key=key, claim=claim, redo=False, gone=OnMissing.TAKE, empty=OnMissing.TAKE))
    return all(isinstance(result, PartitionUnchanged) for result in asked_for(world, ledger, requests))


DAY_JOBS: dict[Callable[[World, ZNodeLedger], None], float] = {ask: 12, source_changes: 6, close: 1.5}
