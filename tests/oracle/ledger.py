"""The ledger as plain Python, which defines what a ledger means.

The contract suite checks it like the product's ledgers, and `tests/integration/test_ledger_model.py` compares those
with it step by step. It gives the same answers as a :class:`~airflow_trident.ledger.ledger.Ledger`, but does not derive
from it. Threads may share it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_trident.errors import (
    ConfigurationError,
    FencedError,
    StaleAttemptError,
    TransitionError,
    UnknownTopologyError,
)
from airflow_trident.ledger.answers import (
    Begun,
    MetadataOf,
    NextBatches,
    NotBegun,
    NothingNew,
    PartitionMoved,
    StagedAttempt,
)
from airflow_trident.ledger.backup import export_json
from airflow_trident.ledger.refusals import (
    batch_in_place,
    bound_otherwise,
    claim_pruned,
    definition_changed,
    never_attempted,
    no_commit_under_way,
)
from airflow_trident.ledger.verbs.commits import ticket_of
from airflow_trident.ledger.verbs.topology import redefined
from airflow_trident.protocol import codec
from airflow_trident.protocol.decide import (
    Begin,
    Commit,
    Full,
    SeenTopology,
    decide_begin,
    decide_commit,
    invalidated,
    is_decided_anew,
    require_batch,
    with_batch,
)
from airflow_trident.protocol.diagnosis import why_not
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.partition_keys import PartitionEntry
from airflow_trident.protocol.records import (
    NO_ATTEMPT,
    Claim,
    Command,
    CommitPointer,
    CommitTicket,
    LedgerView,
    Owner,
    Status,
    TopologyRecord,
    TxRecord,
    move,
)
from airflow_trident.protocol.state_gaps import require_all_states
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json
from tests.oracle.ledger_groups import OracleGroups
from tests.oracle.ledger_partitions import OraclePartitions
from tests.oracle.ledger_states import OracleStates

KEPT_CLAIMS = 10_000


class OracleLedger(OracleStates, OracleGroups, OraclePartitions):
    """See :class:`~airflow_trident.ledger.ledger.Ledger` for what each call promises.

    :param keep_claims: claim keys of this number of last transactions are kept.
    """

    def __init__(self, topology_name: str, *, keep_claims: int = KEPT_CLAIMS) -> None:
        self.topology_name = topology_name
        self._keep_claims = keep_claims
        self._changed = threading.Condition(threading.RLock())
        self._topology: TopologyRecord | None = None
        self._next = 1
        self._committed = 0
        self._fence = 0
        self._failed: set[int] = set()
        self._skipped: set[int] = set()
        self._late: set[int] = set()
        self._closed: set[int] = set()
        self._replaying: set[int] = set()
        self._records: dict[int, TxRecord] = {}
        self._claims: dict[str, tuple[int, int]] = {}
        """claim key -> (txid, run_ms)"""
        self._entries: dict[str, PartitionEntry] = {}
        self._outcome: CoordinatorOutcome | None = None

    # ---- the topology ------------------------------------------------------------------------------------------

    def register(
        self, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
    ) -> TopologyRecord:
        with self._changed:
            if self._topology is None:
                self._topology = TopologyRecord(
                    name=self.topology_name,
                    incarnation=uuid.uuid4().hex[:8],
                    definition=definition,
                    created_ms=_now_ms(),
                    since=dict.fromkeys(definition.states, 1),
                )
            differences = self._topology.definition.differences(definition)
            if self._topology.definition.partitions != definition.partitions:
                raise bound_otherwise(self.topology_name, differences[0])
            if differences and not accept_change:
                raise definition_changed(self.topology_name, differences)
            if self._topology.definition != definition:
                open_ = [tx.txid for tx in self._records.values() if tx.touched and not tx.status.is_final]
                self._topology = redefined(self._topology, definition, self._committed, empty, Txids.of(*open_))
            return self._topology

    def topology(self) -> TopologyRecord:
        with self._changed:
            if self._topology is None:
                raise UnknownTopologyError(
                    f"there is no ledger of a topology {self.topology_name!r} in this process",
                    "Known topologies: none. Register it first.",
                )
            return self._topology

    def set_command(self, command: Command, *, seen: SeenTopology | None = None) -> TopologyRecord:
        with self._changed:
            topology = self.topology()
            if seen is not None:
                seen.require(topology)
            self._topology = replace(topology, command=command, epoch=topology.epoch + 1)
            return self._topology

    # ---- reading -----------------------------------------------------------------------------------------------

    def view(self, txid: int, *, remembered: bool = False, ahead: bool = False) -> LedgerView:
        with self._changed:
            return LedgerView(
                topology=self.topology(),
                next_txid=self._next,
                pointer=CommitPointer(committed=self._committed, fence=self._fence),
                exceptions=self._exceptions(),
                tx=self._records.get(txid),
            )

    def records(self, txids: Iterable[int]) -> Sequence[TxRecord]:
        return [self._records[txid] for txid in txids if txid in self._records]

    def transactions(self, first: int = 1, last: int | None = None) -> Sequence[TxRecord]:
        with self._changed:
            self.topology()
            return [
                record
                for txid, record in sorted(self._records.items())
                if first <= txid and (last is None or txid <= last)
            ]

    def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        def differs() -> bool:
            now = self.view(txid)
            return (now.tx, now.exceptions, now.pointer) != (seen.tx, seen.exceptions, seen.pointer)

        with self._changed:
            return self._changed.wait_for(differs, timeout_s)

    # ---- the verbs ---------------------------------------------------------------------------------------------

    def _begin(self, claim: Claim, batches: NextBatches) -> Begun | NotBegun:
        topology = self.topology()
        if claim.key in self._claims:
            txid = self._claims[claim.key][0]
            return Begun(record=self._records.get(txid), txid=txid, new=False)
        if claim.cleared and claim.run_ms < topology.floor_ms:
            raise claim_pruned(self.topology_name, claim.key)
        decision = decide_begin(self.view(0), max_pending=batches.max_pending)
        if not isinstance(decision, Begin):
            return decision
        txid = self._next
        previous = self._records[txid - 1] if txid > 1 else None
        if previous is not None and previous.invalidated:
            return Full(oldest=self._committed + 1, pending=self._next - 1 - self._committed)
        position = previous.position if previous is not None else {}
        asked = batches.partitions.get(claim.key)
        if asked is not None and not self._is_as_seen(asked):
            return PartitionMoved(asked.partition.key)
        metadata = asked.metadata if asked is not None else self._next_batch(batches, txid, position)
        if not metadata:
            return NothingNew()
        now_ms = _now_ms()
        record = TxRecord(
            txid=txid,
            status=Status.PROCESSING,
            attempt=0 if batches.attempt_by else NO_ATTEMPT,
            owner=Owner.of(batches.attempt_by),
            plan=batches.plan,
            metadata={stream: codec.require_json(value, f"metadata of {stream}") for stream, value in metadata.items()},
            carried={stream: value for stream, value in position.items() if stream not in metadata},
            claim=claim,
            op=_op(),
            times_ms={"begun": now_ms, Status.PROCESSING.value: now_ms},
        )
        record = self._begun_partition(record, asked) if asked is not None else record
        self._next += 1
        self._claims[claim.key] = (txid, claim.run_ms)
        kind, lag = OutcomeKind.BEGUN, batches.lag_of(record.position) if batches.lag_of else {}
        self.note_coordinator(CoordinatorOutcome(kind=kind, dag_id=claim.dag_id, run_id=claim.run_id, lag=lag))
        return Begun(record=self._store(record), txid=txid, new=True)

    @staticmethod
    def _next_batch(batches: NextBatches, txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
        return next(iter(batches.batches_of(txid, codec.require_json(position, "the position"), 1)), None)

    def _attempt(
        self,
        member: int | CommitTicket,
        *,
        owner: Owner | str,
        metadata_of: MetadataOf | None = None,
        plan: str = "",
        replays: bool = False,
    ) -> TxRecord:
        if isinstance(member, CommitTicket):
            record, replays = self._of_ticket(member), False
            if record.status is not Status.COMMITTING:
                raise no_commit_under_way(record.txid, record.status)
        else:
            record = self._existing(member)
            if record.status is Status.COMMITTING:
                raise batch_in_place(record.txid, record.attempt)
            self._require_may_come(record)
            self._require_not_passed_over(record)
            replays = replays or record.status in (Status.FAILED, Status.SKIPPED)
        return self._new_attempt(record, Owner.of(owner), metadata_of, plan, replays=replays)

    def _new_attempt(
        self, record: TxRecord, owner: Owner, metadata_of: MetadataOf | None, plan: str, *, replays: bool
    ) -> TxRecord:
        target = move(record.status, Status.PROCESSING, txid=record.txid)
        old = record.position
        record = self._with_batch(record, metadata_of).with_past_attempt()
        if replays:
            self._list_as(self._late if record.txid <= self._committed else self._replaying, record.txid)
        if record.position != old:
            self._invalidate_above(record.txid)
        return self._store(
            record, status=target, attempt=record.attempt + 1, staged=None, owner=owner, plan=plan, checks={}
        )

    def _with_batch(self, record: TxRecord, metadata_of: MetadataOf | None) -> TxRecord:
        definition = self.topology().definition
        if not is_decided_anew(definition, record, self._committed):
            return record
        before = self._records.get(record.txid - 1)
        position = {} if before is None else require_batch(before, record.txid)
        return with_batch(definition, record, position, metadata_of)

    def _invalidate_above(self, txid: int) -> None:
        for record in [self._records[later] for later in range(txid + 1, self._next)]:
            if not record.invalidated:
                self._list_as(None, record.txid)
                self._store(invalidated(self.topology().definition, record), status=Status.PROCESSING)

    def _processed(self, done: StagedAttempt) -> TxRecord:
        record = self._of_attempt(done.txid, done.attempt)
        if done.attempt == NO_ATTEMPT or record.invalidated:
            raise never_attempted(done.txid)
        if record.staged == done.staged:
            return record
        self._replaying.discard(done.txid)
        status = move(record.status, Status.PROCESSED, txid=done.txid)
        checks = dict(done.staged.checks)
        return self._store(record, status=status, staged=done.staged, error="", first_error="", checks=checks)

    def _gate(self, member: int | TxRecord, owner: Owner | str) -> CommitTicket:
        txid = member.txid if isinstance(member, TxRecord) else member
        record, decision = self._records.get(txid), decide_commit(self.view(txid), txid)
        if record is None or record.staged is None or not isinstance(decision, Commit):
            raise TransitionError(f"transaction {txid} cannot commit now: {why_not(decision)}", "Ask again later.")
        if isinstance(member, TxRecord) and (record.attempt, record.fence) != (member.attempt, member.fence):
            raise FencedError(f"transaction {txid} was taken up by {record.owner} since it was seen", "Look again.")
        return self._given(ticket_of(self.view(txid), record, record.staged), owner, Status.COMMITTING)

    def _given(self, ticket: CommitTicket, owner: Owner | str, target: Status) -> CommitTicket:
        self._fence, record = ticket.fence, self._records[ticket.txid]
        status = record.status if ticket.bars else move(record.status, target, txid=ticket.txid)
        whose = Owner.of(owner) if status is Status.COMMITTING else record.owner
        self._store(record, status=status, fence=ticket.fence, touched=True, owner=whose)
        return ticket

    def _commit(self, ticket: CommitTicket, retention: int, late_rows: dict[str, int]) -> tuple[TxRecord, bool]:
        if retention < 1:
            raise ConfigurationError(f"retention is {retention}", "Keep at least 1 committed transaction.")
        record = self._of_ticket(ticket)
        if record.status is Status.COMMITTED:
            return record, False
        require_all_states(self.topology(), ticket)
        status = move(record.status, Status.COMMITTED, txid=ticket.txid)
        if any(txid not in self._skipped for txid in range(self._committed + 1, ticket.txid)):
            raise TransitionError(f"transaction {ticket.txid} is not the next one", "Commit those before it.")
        done = self._store(record, status=status, error="", first_error="", late_rows=late_rows)
        self._closed = {txid for txid in self._closed if txid >= ticket.floor}
        self._list_as(None, ticket.txid)
        self._committed = max(self._committed, ticket.txid)
        self._pass_skipped()
        return done, True

    def fail(
        self,
        txid: int,
        attempt: int,
        error: str,
        *,
        retry: bool = False,
        skip: str = "",
        checks: Mapping[str, Json] | None = None,
    ) -> TxRecord:
        with self._changed:
            record = self._of_attempt(txid, attempt)
            over = record.with_error(error).with_past_attempt(ended_ms=_now_ms(), error=error)
            if retry:
                if record.status in (Status.COMMITTED, Status.FAILED, Status.SKIPPED):
                    raise TransitionError(f"transaction {txid} is {record.status}: nobody is at work", "Do nothing.")
                return self._store(over)
            if record.status is not Status.FAILED:
                target = move(record.status, Status.FAILED, txid=txid)
                self._list_as(self._failed, txid)
                record = self._store(over, status=target, checks=over.checks if checks is None else dict(checks))
            return self.skip(txid, skip) if skip and not (record.touched or record.invalidated) else record

    # ---- the rest ----------------------------------------------------------------------------------------------

    def export(self) -> dict[str, Json]:
        with self._changed:
            return export_json(self.view(0), self.transactions(), self._claims, self._entries)

    def note_coordinator(self, outcome: CoordinatorOutcome) -> None:
        with self._changed:
            self._outcome = outcome.after(self._outcome, now_ms=_now_ms()) or self._outcome

    def coordinator(self) -> CoordinatorOutcome | None:
        return self._outcome

    def _store(self, record: TxRecord, **changes: Any) -> TxRecord:
        if "status" in changes:
            changes["times_ms"] = {**record.times_ms, changes["status"].value: _now_ms()}
        record = replace(record, op=_op(), **changes)
        self._records[record.txid] = record
        self._changed.notify_all()
        return record

    def _prune(self, retention: int, *, just_committed: Sequence[int]) -> None:
        done = [txid for txid, record in sorted(self._records.items()) if record.status.is_final]
        told = self.topology().told
        for txid in done[:-retention]:
            if txid not in just_committed and (told is None or txid in told):
                del self._records[txid]
        for key, (txid, run_ms) in list(self._claims.items()):
            if txid <= self._committed - self._keep_claims and txid not in self._records:
                topology = self.topology()
                self._topology = replace(topology, floor_ms=max(topology.floor_ms, run_ms + 1))
                del self._claims[key]

    def _of_attempt(self, txid: int, attempt: int) -> TxRecord:
        if 1 <= txid < self._next and txid not in self._records:
            raise StaleAttemptError(f"transaction {txid} is committed and pruned", "Nothing has to be done.")
        record = self._existing(txid)
        if record.attempt != attempt:
            raise StaleAttemptError(
                f"attempt {attempt} of transaction {txid} is not the current one, which is {record.attempt}",
                "Stop and change nothing.",
            )
        return record

    def _of_ticket(self, ticket: CommitTicket) -> TxRecord:
        record = self._records.get(ticket.txid)
        ours = (ticket.incarnation, ticket.fence, ticket.attempt)
        if record is None or ours != (self.topology().incarnation, record.fence, record.attempt):
            raise FencedError(
                f"the ticket with fence {ticket.fence} of transaction {ticket.txid} is void", "Stop and change nothing."
            )
        return record


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _op() -> str:
    return uuid.uuid4().hex[:16]
