"""The verbs of the protocol: coordinate, process, commit. No Airflow, no Spark: all they need is handed in.

Each verb may be killed at any point and run again, by anybody, any number of times (P9). The order of durable steps is
what makes that true: intent first (the attempt, COMMITTING), then the effect, then the fact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from airflow_trident.engine.base import Engine, Job, quiet
from airflow_trident.errors import FencedError, LedgerBehindStateError, Outcome, TransitionError, TridentError
from airflow_trident.ledger.base import DEFAULT_MAX_PENDING, BeginResult, Begun, Ledger
from airflow_trident.protocol.decide import AlreadyCommitted, CommitUnderWay, Unknown, decide_process
from airflow_trident.protocol.records import Claim, StagedRef, TxRecord
from airflow_trident.runtime.crash import CrashPoint, crash_point
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.base import Slot
from airflow_trident.states.marker import late_batch
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

Progress = Callable[[str], None]


class OnFailure(StrEnum):
    """What becomes of a transaction whose attempts are used up."""

    BLOCK = "block"
    """FAILED: later commits wait until a person replays or skips it."""
    SKIP = "skip"
    """SKIPPED: later commits pass; it can be backfilled."""


# ---- coordinate ------------------------------------------------------------------------------------------------


def coordinate(
    ledger: Ledger, topology: Topology, claim: Claim, *, max_pending: int = DEFAULT_MAX_PENDING
) -> BeginResult:
    """Give the claim its transaction: decide the batch of each stream and record it (Storm: $batch's first half).

    :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
    :raises LedgerBehindStateError: a state holds transactions that the ledger does not know.
    """
    record = ledger.register(topology.definition())
    _require_ledger_ahead(ledger, topology, record.incarnation)
    coordinators = {name: spout.coordinator() for name, spout in topology.spouts.items()}

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        found = {
            name: coordinator.initialize_transaction(txid, position.get(name))
            for name, coordinator in coordinators.items()
        }
        return {name: metadata for name, metadata in found.items() if metadata is not None} or None

    try:
        result = ledger.begin(claim, metadata_of, max_pending=max_pending)
    finally:
        for coordinator in coordinators.values():
            coordinator.close()
    if isinstance(result, Begun):
        crash_point(CrashPoint.BEGUN, result.txid)
    return result


def _require_ledger_ahead(ledger: Ledger, topology: Topology, incarnation: str) -> None:
    """A ledger that was wiped or restored would give used txids to new data, and the states would skip it (P11)."""
    markers = {}
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            markers[name] = state.marker()
    # The ledger after the states: others begin and commit meanwhile, and what a state held by then, the ledger knows.
    next_txid = ledger.view(0).next_txid
    for name, marker in markers.items():
        if marker is None:
            continue
        if marker.incarnation != incarnation or marker.high >= next_txid:
            raise LedgerBehindStateError(
                f"state {name!r} of topology {topology.name!r} holds transactions up to {marker.high} (incarnation "
                f"{marker.incarnation}) and the ledger begins at {next_txid} (incarnation {incarnation}): the ledger "
                "was wiped, or restored from an old copy",
                "Nothing was begun. Restore the ledger, seed it from the states with `airflow trident repair "
                f"{topology.name}`, or give the topology a new name and new states.",
            )


# ---- process ---------------------------------------------------------------------------------------------------


class ProcessOutcome(StrEnum):
    PROCESSED = "processed"
    ALREADY_COMMITTED = "already committed"
    COMMIT_UNDER_WAY = "commit under way"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """`attempt` and `staged` are those of this call; None where nothing was to do."""

    txid: int
    outcome: ProcessOutcome
    attempt: int | None = None
    staged: StagedRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Who tries, and what a failure means. `last_try`: the caller will not try again by itself."""

    owner: str
    last_try: bool = False
    on_failure: OnFailure = OnFailure.BLOCK


def process(
    ledger: Ledger,
    topology: Topology,
    txid: int,
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress = quiet,
) -> ProcessResult:
    """Run the processing phase of a transaction under a new attempt, and record its staged batch.

    :raises UserCodeError, SparkJobError, SourceChangedError, ...: the attempt failed; that is in the ledger.
    :raises StaleAttemptError: a newer attempt took over meanwhile; nothing was changed.
    """
    decision = decide_process(ledger.view(txid), txid)
    if isinstance(decision, Unknown):
        raise unknown_transaction(topology.name, decision)
    if isinstance(decision, AlreadyCommitted):
        return ProcessResult(txid=txid, outcome=ProcessOutcome.ALREADY_COMMITTED)
    if isinstance(decision, CommitUnderWay):
        return ProcessResult(txid=txid, outcome=ProcessOutcome.COMMIT_UNDER_WAY)
    require_not_late(ledger, topology, txid)
    record = ledger.start_attempt(txid, owner=attempts.owner)
    staged = run_attempt(ledger, topology, record, engine, staging_root, attempts, progress)
    return ProcessResult(txid=txid, outcome=ProcessOutcome.PROCESSED, attempt=record.attempt, staged=staged)


def require_not_late(ledger: Ledger, topology: Topology, txid: int) -> None:
    """:raises LateBatchError: later transactions have passed this one, and a state depends on their order."""
    committed = ledger.view(0).pointer.committed
    if committed <= txid:
        return
    for name, spec in topology.states.items():
        if not spec.commutes:
            raise late_batch(txid, committed, name)


def run_attempt(
    ledger: Ledger,
    topology: Topology,
    record: TxRecord,
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress,
) -> StagedRef:
    """The work of an attempt that the ledger has: run, stage, publish, PROCESSED."""
    txid, attempt = record.txid, record.attempt
    crash_point(CrashPoint.ATTEMPT_STARTED, txid)
    try:
        job = Job(
            plan=topology.compile(),
            slot=Slot(topology=topology.name, incarnation=ledger.topology().incarnation, txid=txid, attempt=attempt),
            metadata=record.metadata,
            staging_root=staging_root,
            progress=progress,
        )
        manifest = engine.run(job)
        crash_point(CrashPoint.STAGED, txid)
        staged = StagingArea(staging_root).publish(manifest)
        crash_point(CrashPoint.PUBLISHED, txid)
    except Exception as error:
        note_failure(ledger, txid, attempt, error, attempts)
        raise
    ledger.processed(txid, attempt, staged)
    crash_point(CrashPoint.PROCESSED, txid)
    return staged


def note_failure(ledger: Ledger, txid: int, attempt: int, error: Exception, attempts: Attempts) -> None:
    """Write a failed attempt into the ledger; a late word from an old attempt changes nothing (P4)."""
    if isinstance(error, FencedError):
        return
    text = f"{type(error).__name__}: {error}"
    hopeless = isinstance(error, TridentError) and error.outcome is Outcome.FAIL
    try:
        if not (attempts.last_try or hopeless):
            ledger.attempt_failed(txid, attempt, text)
            return
        ledger.fail(txid, attempt, text)
        if attempts.on_failure is OnFailure.SKIP:
            ledger.skip(txid, f"on_failure=skip after {text}")
    except FencedError:
        return
    except TridentError as second:
        error.add_note(f"The failure could not be written to the ledger: {second}")


def unknown_transaction(topology: str, decision: Unknown) -> TransitionError:
    begun = f"1 to {decision.next_txid - 1} were" if decision.next_txid > 1 else "none was"
    return TransitionError(
        f"topology {topology!r} never began transaction {decision.txid} ({begun})",
        f"See `airflow trident ledger list {topology}`.",
    )
