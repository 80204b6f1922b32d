"""The phases of the protocol: coordinate and process; :mod:`airflow_trident.runtime.commit` has the third. No Airflow,
no Spark: the caller passes all they need.

Each verb may be killed at any point and run again, by anybody, any number of times (P9). The order of durable steps
makes that possible: first the intent (the attempt, COMMITTING), then the effect, then the fact.

Begins attempts, and tells of each. If a spout is opaque, an attempt chooses its batch (P2).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum

from airflow_trident.contracts.spout import Coordinator, Spout
from airflow_trident.engine.engine import Engine, Job, quiet
from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    GateFailedError,
    InvalidatedError,
    LateBatchError,
    Outcome,
    SourceChangedError,
    StaleAttemptError,
    TransitionError,
    TridentError,
    UnseenFilesError,
    recorded_text,
    spout_code,
)
from airflow_trident.ledger.answers import (
    BeginResult,
    Begun,
    Committed,
    MetadataOf,
    NextBatches,
    StagedAttempt,
)
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.names import DEFAULT_MAX_MERGE_ROWS, DEFAULT_MAX_PARTITION_KEYS, DEFAULT_MAX_PENDING
from airflow_trident.plan.nodes import code_of
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import AlreadyCommitted, Closed, CommitUnderWay, Process, Unknown, decide_process
from airflow_trident.protocol.records import (
    Claim,
    CommitTicket,
    LedgerView,
    OnFailure,
    Owner,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.runtime.gates import judged
from airflow_trident.runtime.merge_limit import require_mergeable
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.runtime.open_resources import OpenCoordinators, SourceNotes, sweep_notes
from airflow_trident.runtime.outcomes import lags_of, tell_result, tell_success, telling
from airflow_trident.runtime.partitions import refresh_sources
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.runtime.timeouts import run_in_time
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def start_attempts(
    ledger: Ledger,
    topology: Topology,
    members: Sequence[int | CommitTicket],
    *,
    owner: Owner | str,
    replays: bool = False,
) -> list[TxRecord]:
    """:meth:`Ledger.attempt` for all members, in as few steps as possible. If it raises, some may have their attempt.

    :param members: in the order of their txids.
    """
    metadata_of, digest = _choosing(ledger, topology) if topology.opaque else None, topology.compile().digest
    records: list[TxRecord] = []
    while len(records) < len(members):
        records += ledger.attempt(
            members[len(records) :], owner=owner, metadata_of=metadata_of, plan=digest, replays=replays
        )
    return [began(record) for record in records]


def began(record: TxRecord) -> TxRecord:
    """Tells that the attempt of the record has begun. By itself only for one that began with its transaction, when its
    work is taken up: in between the transaction is BEGUN."""
    reached(Milestone.ATTEMPT_STARTED, record.txid)
    return record


def _choosing(ledger: Ledger, topology: Topology) -> MetadataOf:
    """Asks the opaque spouts, once per position: the ledger asks again when others write meanwhile."""
    spouts = {name: spout for name, spout in topology.spouts.items() if spout.kind is SpoutKind.OPAQUE}
    chosen_by_position: dict[str, dict[str, Json]] = {}
    notes = SourceNotes.of(ledger)

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json]:
        key = json.dumps([txid, position], sort_keys=True)
        if key not in chosen_by_position:
            chosen_by_position[key] = _chosen(notes, spouts, txid, position)
        return chosen_by_position[key]

    return metadata_of


def _chosen(notes: SourceNotes, spouts: dict[str, Spout], txid: int, position: dict[str, Json]) -> dict[str, Json]:
    metadata_by_stream: dict[str, Json] = {}
    for name, spout in spouts.items():
        with spout_code(name, txid), closing(notes.open(name, spout)) as coordinator:
            metadata = coordinator.initialize_transaction(txid, position.get(name))
        if metadata is not None:
            metadata_by_stream[name] = metadata
    return metadata_by_stream


Progress = Callable[[str], None]


# ---- coordinate ------------------------------------------------------------------------------------------------


def coordinate(
    ledger: Ledger,
    topology: Topology,
    claims: Sequence[Claim],
    *,
    max_pending: int = DEFAULT_MAX_PENDING,
    attempt_by: Owner | str = "",
    check_states: bool = True,
    ask_lag: bool = False,
    rows_in_errors: bool = True,
    coordinators: OpenCoordinators | None = None,
) -> BeginResult:
    """Gives claims their transactions: decides the batch of each stream and records it (Storm: $batch's first half).
    One step does it for as many as there are batches, room, and records that fit into the step.

    :param claims: at least one, in the order of their transactions.
    :param attempt_by: see :class:`NextBatches`.
    :param check_states: False for a caller that did this before and goes from transaction to transaction: the states
        are not read, and the definition is compared with a remembered one.
    :param ask_lag: ask the sources what they have beyond a new transaction, for people; this reads them once more.
    :param rows_in_errors: see :class:`Attempts`.
    :param coordinators: of a caller that goes from transaction to transaction, and closes them.
    :raises DefinitionChangedError: the ledger belongs to another definition of the topology.
    :raises LedgerBehindStateError: a state holds transactions that the ledger does not know.
    :raises StateBehindLedgerError: a state lacks transactions that the ledger calls COMMITTED.
    """
    require_unbound(topology)
    with telling(ledger, claims[0], rows_in_errors=rows_in_errors) as tell:
        record = require_definition(ledger, topology, check_states=check_states)
        with nullcontext(coordinators) if coordinators else OpenCoordinators(topology, ledger) as using:
            opened = using.opened()
            tell_success(ledger, record, opened)
            outcome = ledger.begin(_next_batches(topology, claims, opened, max_pending, attempt_by, ask_lag))
        tell(outcome)
        for begun in outcome if isinstance(outcome, tuple) else ():
            reached(Milestone.BEGUN, begun.txid)
        if isinstance(outcome, tuple):
            sweep_notes(ledger, opened, outcome)
    return outcome


def require_unbound(topology: Topology) -> None:
    """:raises ConfigurationError: the topology is bound to partitions, and is asked what is new."""
    if topology.partitions is not None:
        raise ConfigurationError(
            f"topology {topology.name!r} is bound to partitions, and was asked what is new",
            "Ask for partitions by their keys.",
        )


def commit_and_coordinate(
    ledger: Ledger,
    topology: Topology,
    tickets: Sequence[CommitTicket],
    claims: Sequence[Claim],
    *,
    retention: int,
    max_pending: int,
    attempt_by: Owner | str,
    ask_lag: bool,
    coordinators: OpenCoordinators,
) -> Committed:
    """COMMITTED and :func:`coordinate` in one step. The caller must :func:`tell_success` afterwards.

    An error of a source is raised, and nothing is changed: the two single steps then say what is wrong.
    """
    require_definition(ledger, topology, check_states=False)
    then = _next_batches(topology, claims, coordinators.opened(), max_pending, attempt_by, ask_lag)
    both = ledger.committed(tickets, retention=retention, then=then)
    for begun in both.begun:
        reached(Milestone.BEGUN, begun.txid)
    sweep_notes(ledger, coordinators.opened(), both.begun)
    tell_result(ledger, claims[0], both.why_not)
    return both


def require_definition(ledger: Ledger, topology: Topology, *, check_states: bool) -> TopologyRecord:
    """Checks that the ledger belongs to this topology and agrees with the states. Returns the topology's record.

    :param check_states: see :func:`coordinate`, whose errors it raises.
    """
    record = None if check_states else ledger.view(0, remembered=True).topology
    if record is None or record.definition != topology.definition():
        record = ledger.register(topology.definition())
    if check_states:
        require_agreement(ledger, topology)
    return record


def _next_batches(
    topology: Topology,
    claims: Sequence[Claim],
    coordinators: Mapping[str, Coordinator],
    max_pending: int,
    attempt_by: Owner | str,
    ask_lag: bool,
) -> NextBatches:
    """A transaction has a batch of each stream that has one for it; the last transactions of several may have fewer."""

    def batches_of(txid: int, position: dict[str, Json], limit: int) -> list[dict[str, Json]]:
        streams: dict[str, list[Json]] = {}
        for name, coordinator in coordinators.items():
            with spout_code(name, txid):
                streams[name] = coordinator.next_batches(txid, position.get(name), limit)[:limit]
        count = max(map(len, streams.values()), default=0)
        return [
            {name: batches[place] for name, batches in streams.items() if place < len(batches)}
            for place in range(count)
        ]

    return NextBatches(
        claims,
        batches_of,
        max_pending=max_pending,
        attempt_by=attempt_by,
        lag_of=lags_of(coordinators) if ask_lag else None,
        plan=topology.compile().digest,
    )


def new_records(begun: Sequence[Begun]) -> list[TxRecord]:
    """The records that this call began."""
    return [each.record for each in begun if each.new and each.record is not None]


def size_of(coordinators: Mapping[str, Coordinator], record: TxRecord) -> int | None:
    """About how many bytes a transaction reads; None: one of its spouts does not know."""
    sizes: list[int | None] = []
    for name in record.metadata.keys() & coordinators.keys():
        with spout_code(name, record.txid):
            sizes.append(coordinators[name].size_bytes(codec.require_json(record.metadata[name], "the metadata")))
    return None if None in sizes else sum(size for size in sizes if size is not None)


# ---- process ---------------------------------------------------------------------------------------------------


_ASK_AGAIN = "Ask for its partition again: that makes a new transaction."
REFRESHES = 3
"""How often one run of an emitter takes changed sources of a partition as they are."""


class _RefreshedError(Exception):
    """The transaction has taken its sources as they are."""


class ProcessOutcome(StrEnum):
    PROCESSED = "processed"
    ALREADY_COMMITTED = "already committed"
    COMMIT_UNDER_WAY = "commit under way"
    ALREADY_PROCESSED = "processed already, in a run that has ended"
    LEFT_SKIPPED = "skipped by a person, and not asked for again"
    SUPERSEDED = "superseded by a newer attempt"
    """Opaque: a lower transaction took this one's batch, and somebody else emits it again. A bound topology: another
    request of the partition took it over."""
    WAITS_FOR_BATCH = "waits for the batch of the transaction before it"
    """Opaque: it has no batch; a committer emits it again when its turn comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """`attempt` and `staged` are those of this call; None if there was nothing to do."""

    txid: int
    outcome: ProcessOutcome
    attempt: int | None = None
    staged: StagedRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Who tries (a text names a program), and what a failure means. `last_try`: the caller will not try again.
    `timeout_s`: of one attempt. `replays`: this is a backfill: see :meth:`Ledger.attempt`. `rows_in_errors`: may
    the ledger quote rows in errors? `max_merge_rows`: how many rows of a state a commit may hold at once.
    `max_partition_keys`: how many keys of a partition Python may hold at once."""

    owner: Owner | str
    last_try: bool = False
    on_failure: OnFailure = OnFailure.BLOCK
    timeout_s: float | None = None
    replays: bool = False
    rows_in_errors: bool = True
    max_merge_rows: int = DEFAULT_MAX_MERGE_ROWS
    max_partition_keys: int = DEFAULT_MAX_PARTITION_KEYS


def process(
    ledger: Ledger,
    topology: Topology,
    txid: int,
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress = quiet,
    *,
    seen: LedgerView | None = None,
    started: TxRecord | None = None,
) -> ProcessResult:
    """Runs the processing phase of a transaction under a new attempt, and records its staged batch.

    Opaque spouts: while this transaction is processed, a lower one may begin a new attempt and take its batch. Then
    this one is processed once more, with its new batch. If it replaces a partition or files, it takes its sources as
    they are, at most `REFRESHES` times, if they change while it is processed. If another request of the partition takes
    it over, this call does not fail.

    :param seen: the transaction as the caller has just read it, which saves reading it again.
    :param started: the transaction with an attempt of the caller that no pass has run yet: it was begun with that.
    :raises UserCodeError, SparkJobError, SourceChangedError, ...: the attempt failed; the ledger has noted it.
    :raises StaleAttemptError: a newer attempt took over meanwhile; nothing was changed.
    :raises PassedOverError: the transaction is SKIPPED, and a commit that went over it has not ended.
    """
    refreshes = REFRESHES if topology.replaced is not None else 0
    while True:
        record = began(started) if started else _next_attempt(ledger, topology, txid, attempts, seen)
        started = None
        seen = None
        if isinstance(record, ProcessResult):
            return record
        try:
            staged = run_attempt(
                ledger, topology, record, engine, staging_root, attempts, progress, refreshes=bool(refreshes)
            )
        except _RefreshedError:
            progress(f"transaction {txid}: its sources have changed; attempt {record.attempt} is made again with them")
            refreshes -= 1
            continue
        except TridentError as error:
            shares = topology.opaque or topology.partitions is not None
            now = ledger.view(txid).tx if shares else None
            if now is None or now.attempt == record.attempt:
                raise
            if now.invalidated:
                progress(f"transaction {txid}: a lower one took its batch while attempt {record.attempt} was at work")
                continue
            if isinstance(error, StaleAttemptError) or topology.partitions is not None:
                return ProcessResult(txid=txid, outcome=ProcessOutcome.SUPERSEDED)
            raise
        return ProcessResult(txid=txid, outcome=ProcessOutcome.PROCESSED, attempt=record.attempt, staged=staged)


def _next_attempt(
    ledger: Ledger, topology: Topology, txid: int, attempts: Attempts, seen: LedgerView | None
) -> TxRecord | ProcessResult:
    """A new attempt of the transaction, or why there is none to make."""
    while True:
        # An outdated view may start an attempt, which notices it; but it must not say that there is nothing to do.
        current = seen is not None and isinstance(decide_process(seen, txid), Process)
        view, seen = seen if seen is not None and current else ledger.view(txid), None
        decision = decide_process(view, txid)
        if isinstance(decision, Unknown | Closed):
            raise no_transaction(topology.name, decision, bound=topology.partitions is not None)
        if isinstance(decision, AlreadyCommitted):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.ALREADY_COMMITTED)
        if isinstance(decision, CommitUnderWay):
            return ProcessResult(txid=txid, outcome=ProcessOutcome.COMMIT_UNDER_WAY)
        require_not_late(topology, txid, view.pointer.committed)
        try:
            return start_attempts(ledger, topology, [txid], owner=attempts.owner, replays=attempts.replays)[0]
        except InvalidatedError:
            return ProcessResult(txid=txid, outcome=ProcessOutcome.WAITS_FOR_BATCH)
        except TransitionError:
            if isinstance(decide_process(ledger.view(txid), txid), Process):
                raise
            # a committer came in between


def require_not_late(topology: Topology, txid: int, committed: int) -> None:
    """Refuses a transaction that the commit pointer has passed, if a state depends on the order of batches. The next
    transaction may commit at any moment, also between two states of this one: then the second state could not take it
    any more.

    :param committed: the commit pointer from the same view that showed the transaction as not committed: a newer
        pointer may have passed it because it was committed meanwhile.
    :raises LateBatchError: the transaction was passed, and a state depends on the order of batches.
    """
    if committed < txid:
        return
    cure = "It stays SKIPPED; only rebuilding the state from its sources can take it in."
    if topology.partitions is not None:
        cure = "Ask for its partition again."
    elif topology.replaced is not None:
        cure = "Change its files, and the next transaction reads them."
    for name, spec in topology.states.items():
        if not spec.commutes:
            raise LateBatchError(
                f"transaction {txid} was passed (later ones may commit since it was SKIPPED; all up to {committed} are "
                f"done) and state {name!r} depends on the order of batches",
                cure,
            )


def run_attempt(
    ledger: Ledger,
    topology: Topology,
    record: TxRecord,
    engine: Engine,
    staging_root: str,
    attempts: Attempts,
    progress: Progress,
    *,
    refreshes: bool = False,
) -> StagedRef:
    """Does the work of an attempt that is in the ledger: run, stage, publish, PROCESSED.

    :param refreshes: if the sources have changed, take them as they are instead of failing.
    """
    txid, attempt = record.txid, record.attempt
    try:
        job = job_of(ledger, topology, record, staging_root, progress, attempts.max_partition_keys)
        manifest = run_in_time(engine, job, attempts.timeout_s)
        require_mergeable(manifest, job.plan, attempts.max_merge_rows)
        staged = publish(manifest, staging_root, job.plan, ledger.chunk_bytes, progress, enforce=not record.touched)
    except BaseException as caught:
        error: BaseException | None = caught
        if refreshes and isinstance(caught, SourceChangedError):
            error = refreshed(ledger, topology, record, caught)
        if error is None:
            raise _RefreshedError from caught
        stale = note_failure(ledger, txid, attempt, error, attempts)
        if stale is not None and isinstance(error, UnseenFilesError):
            raise stale from error  # the newer attempt has cleaned up this one's files
        if error is not caught:
            raise error from caught
        raise
    record_processed(ledger, [record], staged)
    return staged[txid]


def refreshed(ledger: Ledger, topology: Topology, record: TxRecord, error: SourceChangedError) -> TridentError | None:
    """After an attempt that found the sources of a partition changed: the transaction takes them as they are.

    :returns: why it does not; None: it does, and the next attempt reads them.
    """
    try:
        reason = f"attempt {record.attempt} found them changed: {recorded_text(error, rows=False)}"
        is_refreshed = refresh_sources(ledger, topology, record, reason)
    except TridentError as second:
        return second
    return None if is_refreshed else error


def job_of(
    ledger: Ledger, topology: Topology, record: TxRecord, staging_root: str, progress: Progress, max_keys: int
) -> Job:
    """The job of an engine for the current attempt of a transaction. Only the ledger is asked, and no store."""
    incarnation = ledger.view(0, remembered=True).topology.incarnation
    return Job(
        plan=topology.compile(),
        slot=Slot(topology=topology.name, incarnation=incarnation, txid=record.txid, attempt=record.attempt),
        metadata=record.metadata,
        staging_root=staging_root,
        progress=progress,
        time_ms=record.time_ms,
        chunk_bytes=ledger.chunk_bytes,
        max_keys=max_keys,
    )


def publish(
    manifest: Manifest,
    staging_root: str,
    plan: Plan,
    chunk_bytes: int,
    progress: Progress = quiet,
    *,
    enforce: bool = True,
) -> dict[int, StagedRef]:
    """Judges the result of a pass by the rules of the plan, and makes it visible if they hold. Adds what made it: the
    plan, and the code as this process knows it. Returns what each of its transactions has staged.

    :param chunk_bytes: see :meth:`StagingArea.publish`.
    :param enforce: False for a batch that a state may have: it can no longer be held back.
    :raises GateFailedError: a rule does not hold; nothing is published.
    """
    verdicts = judged(manifest, plan, progress, enforce=enforce)
    for member in manifest.members:
        reached(Milestone.STAGED, member.txid)
    manifest = replace(manifest, made_by=plan.made_by, code=code_of(plan.sinks))
    staged = StagingArea(staging_root).publish_group(manifest, chunk_bytes=chunk_bytes)
    for txid in staged:
        reached(Milestone.PUBLISHED, txid)
    return {txid: replace(ref, checks=verdicts[txid]) for txid, ref in staged.items()}


def record_processed(ledger: Ledger, records: Sequence[TxRecord], staged: Mapping[int, StagedRef]) -> None:
    """PROCESSED, if all attempts are still the current ones.

    :raises StaleAttemptError, TransitionError: one attempt is not. Transactions before it may be recorded.
    """
    attempts = [StagedAttempt(txid=tx.txid, attempt=tx.attempt, staged=staged[tx.txid]) for tx in records]
    while attempts:
        done = ledger.processed(attempts).records
        attempts = attempts[len(done) :]
        for record in done:
            reached(Milestone.PROCESSED, record.txid)


def note_failure(
    ledger: Ledger, txid: int, attempt: int, error: BaseException, attempts: Attempts
) -> FencedError | None:
    """Notes a failed attempt in the ledger. A late report of an old attempt changes nothing (P4).

    :returns: the error, if a newer attempt is the reason that nothing was changed.
    """
    if isinstance(error, FencedError):
        return error
    text = recorded_text(error, rows=attempts.rows_in_errors)
    hopeless = isinstance(error, TridentError) and error.outcome is Outcome.FAIL
    try:
        skips = attempts.on_failure is OnFailure.SKIP and not holds_up(ledger, txid, error)
        skip = f"on_failure=skip after {text}" if skips else ""
        checks = error.checks if isinstance(error, GateFailedError) else None
        ledger.fail(txid, attempt, text, retry=not (attempts.last_try or hopeless), skip=skip, checks=checks)
    except FencedError as stale:
        return stale
    except TridentError as second:
        error.add_note(f"The failure could not be written to the ledger: {second}")
    return None


def holds_up(ledger: Ledger, txid: int, error: BaseException) -> bool:
    """Does a failure block later transactions under each policy? That of a gate does, unless the transaction is of a
    partition: the partition keeps its content, and no other one needs it."""
    if not isinstance(error, GateFailedError):
        return False
    tx = ledger.view(txid, remembered=True).tx
    return tx is None or tx.partition is None


def no_transaction(topology: str, decision: Unknown | Closed, *, bound: bool = False) -> TransitionError:
    """:param bound: is the topology bound to partitions?"""
    if isinstance(decision, Unknown):
        return unknown_transaction(topology, decision)
    return TransitionError(
        f"transaction {decision.txid} of topology {topology!r} was closed for good: it is never replayed",
        f"See `airflow trident ledger show {topology} {decision.txid}` for the reason."
        + (f" {_ASK_AGAIN}" if bound else ""),
    )


def unknown_transaction(topology: str, decision: Unknown) -> TransitionError:
    begun = f"1 to {decision.next_txid - 1} were" if decision.next_txid > 1 else "none was"
    return TransitionError(
        f"topology {topology!r} never began transaction {decision.txid} ({begun})",
        f"See `airflow trident ledger list {topology}`.",
    )


def kept_record(view: LedgerView, topology: str, txid: int) -> TxRecord:
    """The record of transaction `txid`.

    :param view: the view of this transaction.
    :raises TransitionError: it was never begun, or is committed and pruned.
    """
    if view.tx is not None:
        return view.tx
    if txid >= view.next_txid or txid < 1:
        raise unknown_transaction(topology, Unknown(txid, view.next_txid))
    raise TransitionError(f"transaction {txid} is committed and its record is pruned", "Choose a later one.")
