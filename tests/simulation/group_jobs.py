"""Jobs with groups of transactions: processes begin, process and commit them together, alone, or in another cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from airflow_trident.engine.engine import Job
from airflow_trident.errors import StagingError, UserCodeError
from airflow_trident.ledger.answers import BatchesOf, BeginResult, NextBatches, StagedAttempt
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.records import Claim, CommitTicket, Status, TxRecord
from airflow_trident.runtime.commit import OpenStates
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import Json
from tests.fixtures import single
from tests.simulation.stores import Rows
from tests.simulation.world import MOST_TOGETHER, World

RUNS = 8
MERGED = 0.5
"""The share of passes that merge their staged rows by key, unless they fail."""
UNREADABLE = 0.15
"""The share of groups that are emitted again although their gate is open."""


def coordinate_group(world: World, ledger: ZNodeLedger) -> None:
    """Begin transactions of several runs in one step."""
    claims = _claims(world)
    ledger.register(world.topology.definition())
    require_agreement(ledger, world.topology)
    result = ledger.begin(NextBatches(claims, _batches_of(world), max_pending=world.judge.max_pending))
    _begun(world, claims, result)


def _claims(world: World) -> list[Claim]:
    runs = world.random.sample(range(RUNS), world.random.randint(1, MOST_TOGETHER))
    return [Claim(key=f"run-{run}") for run in runs]


def _batches_of(world: World) -> BatchesOf:
    coordinator = world.topology.spouts["records"].coordinator()

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        found = coordinator.initialize_transaction(txid, position.get("records"))
        return None if found is None else {"records": found}

    return single.one_by_one(metadata_of)


def _begun(world: World, claims: Sequence[Claim], result: BeginResult) -> None:
    what = [begun.txid for begun in result] if isinstance(result, tuple) else type(result).__name__
    world.note(f"{', '.join(claim.key for claim in claims)}: {what}")
    for claim, begun in zip(claims, result if isinstance(result, tuple) else (), strict=False):
        reached(Milestone.BEGUN, begun.txid)
        world.judge.claimed(claim.key, begun.txid)
        world.given[claim.key] = begun.txid


def _run_from(world: World, ledger: ZNodeLedger, *wanted: Status) -> list[TxRecord]:
    """Consecutive transactions, passing over SKIPPED ones; some may have changed since."""
    records = [tx for tx in ledger.transactions(ledger.view(0).pointer.committed + 1) if not tx.status.lets_others_pass]
    first = world.random.randrange(len(records)) if records and world.random.random() < 0.3 else 0
    found: list[TxRecord] = []
    for record in records[first : first + world.random.randint(2, MOST_TOGETHER)]:
        if record.status not in wanted:
            break
        found.append(record)
    return found


def emit_group(world: World, ledger: ZNodeLedger) -> None:
    """One pass. If it fails, it is run again in halves, under new attempts."""
    records = _run_from(world, ledger, Status.PROCESSING, Status.PROCESSED, Status.FAILED)
    if records:
        _pass(world, ledger, [record.txid for record in records])


def _pass(world: World, ledger: ZNodeLedger, members: Sequence[int | CommitTicket]) -> None:
    started = ledger.attempt(members, owner="simulated")
    try:
        _staged(world, ledger, started)
        world.note(f"emitted together: {[(one.txid, one.attempt) for one in started]}")
    except UserCodeError as error:
        world.note(f"{[one.txid for one in started]}: {error.message}, in halves")
        txids = [one.txid for one in started]
        if len(txids) == 1:
            ledger.fail(txids[0], started[0].attempt, error.message, retry=True)
            return
        half = len(txids) // 2
        for part in (txids[:half], txids[half:]):
            _pass(world, ledger, part)


def _staged(world: World, ledger: ZNodeLedger, started: Sequence[TxRecord]) -> None:
    view = ledger.view(0)
    slot = partial(Slot, topology=ledger.topology_name, incarnation=view.topology.incarnation)
    jobs = [
        Job(
            slot=slot(txid=one.txid, attempt=one.attempt),
            plan=world.topology.compile(),
            metadata=one.metadata,
            staging_root="",
            chunk_bytes=ledger.chunk_bytes,
        )
        for one in started
    ]
    merges = not world.kind.bound and world.random.random() < MERGED
    engine = replace(world.engine(), merges=merges)
    manifest = engine.run_group(jobs) if len(jobs) > 1 else engine.run(jobs[0])
    area = world.area()
    staged = area.publish_group(manifest, chunk_bytes=ledger.chunk_bytes)
    reached(Milestone.STAGED, started[-1].txid)
    done = [StagedAttempt(txid=one.txid, attempt=one.attempt, staged=staged[one.txid]) for one in started]
    if world.random.random() < 0.3:
        commit_tickets(world, ledger, ledger.processed(done, gate_by="simulated").tickets)
        return
    ledger.processed(done)
    reached(Milestone.PROCESSED, started[-1].txid)


def commit_group(world: World, ledger: ZNodeLedger) -> None:
    """Any process may commit all that waits for its gate or has passed it, in a cut of its own."""
    records = _run_from(world, ledger, Status.PROCESSED, Status.COMMITTING)
    if records:
        tickets = ledger.gate([record.txid for record in records], owner="simulated")
        commit_tickets(world, ledger, tickets)


def commit_tickets(world: World, ledger: ZNodeLedger, tickets: Sequence[CommitTicket]) -> None:
    reached(Milestone.GATE_OPENED, tickets[-1].txid)
    if any(one.late for one in tickets):
        return  # skipped and replayed since: each goes alone
    try:
        _apply(world, tickets)
    except StagingError as error:
        world.note(f"{[one.txid for one in tickets]}: {error.message}; emitted again")
        _pass(world, ledger, tickets)
        return
    if world.random.random() < 0.3 and not world.kind.bound:
        _committed_and_begun(world, ledger, tickets)
    else:
        ledger.committed(tickets, retention=world.retention)
    reached(Milestone.COMMITTED, tickets[-1].txid)
    world.note(f"committed together: {[one.txid for one in tickets]}")


def _committed_and_begun(world: World, ledger: ZNodeLedger, tickets: Sequence[CommitTicket]) -> None:
    """Like a drain, which also begins the first attempts; it may be killed before these do anything."""
    claims = _claims(world)
    both = ledger.committed(
        tickets,
        retention=world.retention,
        then=NextBatches(
            claims,
            _batches_of(world),
            max_pending=world.judge.max_pending,
            attempt_by=world.random.choice(("", "simulated")),
        ),
    )
    _begun(world, claims, both.begun or both.why_not or ())


def _apply(world: World, tickets: Sequence[CommitTicket]) -> None:
    if world.random.random() < UNREADABLE:
        raise StagingError("nobody can read what was staged", "")
    area, parts = world.area(), dict[str, dict[int, int]]()
    for ticket in tickets:
        parts.setdefault(ticket.staged.manifest, {})[ticket.txid] = ticket.attempt
    manifests = {one.staged.manifest: area.load(one.staged) for one in tickets}
    with OpenStates(world.topology) as states:
        for sink in world.topology.compile().staged:
            found: dict[int, Rows] = {}
            for path, attempts in parts.items():
                rows = area.read_each(manifests[path], attempts, sink.name, sink.schema)
                if len(rows) < len(attempts) and len(parts) > 1:
                    raise StagingError("some of them were merged by key, others not", "")
                found.update(zip(attempts, rows, strict=False))  # rows of all members are with the first one
            batches = [found[one.txid] for one in tickets if one.txid in found]
            states.opened()[sink.name].apply_group(tickets, batches)
            reached(Milestone.APPLIED, tickets[-1].txid)


GROUP_JOBS: dict[Callable[[World, ZNodeLedger], None], float] = {coordinate_group: 6, emit_group: 8, commit_group: 8}
