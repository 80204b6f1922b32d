"""What the ledger holds, as frozen records. All of it survives JSON.

Times are Unix milliseconds (`*_ms`), for people only: no decision of the protocol reads a clock.

The state machine of a transaction: one enum, one table, one function that moves it.

After Storm's MasterBatchCoordinator (PROCESSING, PROCESSED, COMMITTING), made durable and extended by an end for
transactions that keep failing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

from airflow_trident.errors import TransitionError
from airflow_trident.protocol.file_partitions import replaced_files
from airflow_trident.protocol.topologies import Definition
from airflow_trident.protocol.txids import NO_TXIDS, Txids
from airflow_trident.types import Json


class Status(StrEnum):
    """How far a transaction is."""

    PROCESSING = "PROCESSING"
    """Claimed; its batch is recorded; an attempt may be at work."""
    PROCESSED = "PROCESSED"
    """The current attempt's staged batch is durable; it waits for its turn."""
    COMMITTING = "COMMITTING"
    """Its turn has come; states may have been touched."""
    COMMITTED = "COMMITTED"
    """Every state has it. Final."""
    FAILED = "FAILED"
    """Attempts are used up; later commits wait until it is replayed or skipped."""
    SKIPPED = "SKIPPED"
    """A person or the policy let later ones pass; it can still be backfilled."""
    CLOSED = "CLOSED"
    """It was SKIPPED, and a person decided never to replay it. Final."""

    @property
    def is_final(self) -> bool:
        return self in (Status.COMMITTED, Status.CLOSED)

    @property
    def lets_others_pass(self) -> bool:
        """May a higher txid commit while this one has this status (P6)?"""
        return self in (Status.COMMITTED, Status.SKIPPED, Status.CLOSED)


TRANSITIONS: dict[Status, frozenset[Status]] = {
    # a new attempt stays in PROCESSING
    Status.PROCESSING: frozenset({Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED}),
    Status.PROCESSED: frozenset({Status.PROCESSING, Status.COMMITTING, Status.FAILED, Status.SKIPPED}),
    # COMMITTING again: a newer committer took over; PROCESSING: the staged batch is gone and must be emitted again.
    # Not SKIPPED: a state may already have the batch.
    Status.COMMITTING: frozenset({Status.COMMITTING, Status.COMMITTED, Status.PROCESSING, Status.FAILED}),
    Status.COMMITTED: frozenset(),
    Status.FAILED: frozenset({Status.PROCESSING, Status.SKIPPED}),
    Status.SKIPPED: frozenset({Status.PROCESSING, Status.CLOSED}),
    Status.CLOSED: frozenset(),
}


def move(current: Status, target: Status, *, txid: int) -> Status:
    """The only way from one status to another.

    :raises TransitionError: the table has no such step; names what is allowed.
    """
    if target in TRANSITIONS[current]:
        return target
    allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing, it is final"
    raise TransitionError(
        f"transaction {txid} is {current} and cannot become {target} (allowed: {allowed})",
        "See what the ledger says of it, with `airflow trident ledger list` and `ledger show`.",
    )


class OnFailure(StrEnum):
    """What becomes of a transaction that has no attempts left."""

    BLOCK = "block"
    """FAILED: later commits wait until a person replays or skips it."""
    SKIP = "skip"
    """SKIPPED: later commits pass; it can be backfilled."""


ERROR_CHARACTERS = 4_000
"""Longer error texts are cut: the whole text is in the task's log."""
ATTEMPTS_KEPT = 10
"""The number of latest attempts that a transaction remembers."""
PAST_ERROR_CHARACTERS = 300
"""The error of a past attempt is cut to this; only the last error is kept whole."""
NO_ATTEMPT = -1
"""`TxRecord.attempt` of a transaction that was claimed and never attempted."""


class Command(StrEnum):
    """The lifecycle command of a topology, obeyed by coordinators."""

    RUN = "run"
    PAUSE = "pause"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyRecord:
    """`v1/<topology>`: who owns the name.


    `incarnation`: one life of the ledger. Deleting and creating a topology again gives another one, so writes of the
    former life find no node. `definition`: what must not change silently, see :class:`Definition`. `command`, `epoch`:
    the lifecycle. `floor_ms`: claims of cleared runs older than this are refused, because their claim keys are pruned.
    `since`: state -> the first txid since it belongs to the topology. `lost`: transactions given up for a state.
    `former`: states that left it, or moved, while a commit was open.
    `told`: what every spout that wants to hear of its committed batches has been told, so that it may be pruned; None:
    no spout wants to. `taken_over`: who made the ledger take over states of a ledger that it never was, and why.
    `extra`: fields of a newer version, kept unchanged.
    """

    name: str
    incarnation: str
    definition: Definition
    command: Command = Command.RUN
    epoch: int = 0
    floor_ms: int = 0
    created_ms: int = 0
    since: dict[str, int] = field(default_factory=dict)
    lost: tuple[Loss, ...] = ()
    former: tuple[FormerState, ...] = ()
    told: Txids | None = None
    taken_over: tuple[str, ...] = ()
    extra: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Committed transactions that a state lacks and will never get: a person went on without them.

    `reason` and `by` (who) are for people; `at_ms`: when it was recorded.
    """

    state: str
    txids: Txids
    reason: str = ""
    by: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerState:
    """A state that is no longer in the topology, or no longer where it was. It may hold `txids`: their commits were
    open at that time. `place`: of its definition then."""

    state: str
    place: str
    txids: Txids


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who wrote a record: an Airflow task instance if there is a `dag_id`, else a program, such as a command or a
    notebook. If both are empty: nobody.

    `program`: the name it gives itself; `user`: the user it runs as; `host` and `pid`: where it runs; `worker`: its
    name among the live workers of the topology, "" if it is not listed there.
    """

    dag_id: str = ""
    run_id: str = ""
    task_id: str = ""
    map_index: int = -1
    try_number: int = 0
    program: str = ""
    user: str = ""
    host: str = ""
    pid: int = 0
    worker: str = ""

    @classmethod
    def of(cls, owner: Owner | str) -> Owner:
        """A text is the name that a program gives itself."""
        return owner if isinstance(owner, Owner) else cls(program=owner)

    @property
    def is_task(self) -> bool:
        return bool(self.dag_id)

    def is_same_task(self, other: Owner) -> bool:
        """Are both tries of one task instance?"""
        return self.is_task and self.task_instance == other.task_instance

    @property
    def task_instance(self) -> tuple[str, str, str, int]:
        return self.dag_id, self.run_id, self.task_id, self.map_index

    @property
    def who(self) -> str:
        """The owner without the place."""
        if not self.is_task:
            return self.program or self.user
        index = f"[{self.map_index}]" if self.map_index >= 0 else ""
        return f"{self.dag_id}/{self.run_id}/{self.task_id}{index} try {self.try_number}"

    @property
    def place(self) -> str:
        """``user@host/pid``, as far as it is known."""
        if not self.host:
            return ""
        location = f"{self.host}/{self.pid}"
        return f"{self.user}@{location}" if self.user else location

    def __str__(self) -> str:
        if not self.place:
            return self.who
        return f"{self.who} on {self.place}" if self.is_task or self.program else self.place

    def __bool__(self) -> bool:
        return self != NOBODY


NOBODY = Owner()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A request for a transaction: the same claim always gets the same txid (P1).

    An Airflow coordinator claims by (dag_id, task_id, map_index, run_id) and the transaction's number in its run; `key`
    is the text of these. `run_ms`: when the run was due; `cleared`: the run was cleared before. Only these two decide
    whether a claim with a pruned key may begin anew. `task_ids`: the Airflow tasks that work on it ({"emit": ...,
    "commit": ...}): those who wait check whether they are still alive. `coordinator`: the id of the Airflow task that
    claims, "" if that is none or works on the transaction itself.
    """

    key: str
    dag_id: str = ""
    run_id: str = ""
    map_index: int = -1
    run_ms: int = 0
    cleared: bool = False
    task_ids: dict[str, str] = field(default_factory=dict)
    coordinator: str = ""


def claim_key(dag_id: str, task_id: str, run_id: str, map_index: int, index: int | str) -> str:
    """Key of an Airflow coordinator's claim. Unambiguous: only the run id, which is last, may have colons.

    :param index: 0 for the first transaction of the run. For a partition it is ``p``, the number of clears of the run,
        and a number of its own for each partition but the first.
    """
    return f"{dag_id}:{task_id}:{map_index}:{index}:{run_id}"


Content: TypeAlias = bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRef:
    """Where the current attempt's staged batch is, and what it holds.

    `manifest`: path of the published manifest; `rows_read`: rows from the sources; `rows`: rows staged per state;
    `bytes`: size of the staged files. `chunk`: name of the ledger's chunk with manifest and files, "" if they are in
    the staging area. `content`: the bytes of that chunk on their way into the ledger; no record has them. `checks`:
    the verdicts, on their way into :attr:`TxRecord.checks`.
    """

    manifest: str
    rows_read: int
    rows: dict[str, int]
    bytes: int
    chunk: str = ""
    content: Content = field(default=b"", compare=False, repr=False)
    checks: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)


NOTHING_STAGED = StagedRef(manifest="", rows_read=-1, rows={}, bytes=0)
"""The staged batch of a ticket that only bars: it brings nothing into a state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """An attempt that did not commit its transaction, for people.

    `by`: who made it, and where; `begun_ms`: when it began; `ended_ms`: when it reported its failure, 0 if it never
    did: it was killed or given up.
    """

    attempt: int
    by: str = ""
    begun_ms: int = 0
    ended_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRevision:
    """Which partition a transaction of a bound topology has. `n`: 1 for the first transaction of this partition, 2 for
    the second one. `start_ms` and `end_ms`: of the partition."""

    key: str
    n: int
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TxRecord:
    """`tx/<19 digits>`: one transaction.


    `attempt`: only rises; `NO_ATTEMPT` before the first. `metadata`: stream name -> what re-creates its batch; a stream
    without new data is absent, and `carried` has its last metadata. `op`: id of the last operation that wrote the
    record; it shows whether a write whose answer was lost succeeded. `owner`: who began the attempt, or the commit;
    tells whether anybody still works on it. `fence`: that of the last commit try, 0 before. `touched`: a commit has
    begun at least once, so a state may hold the batch. `invalidated`: a lower transaction was attempted again, so the
    opaque streams have no batch until the next attempt (`protocol.decide`). `times_ms`: status -> when it was last
    entered, and "begun". `plan`: digest of the plan that the attempt runs, "" if none was attempted since version 2.
    `late_rows`: state -> tuples that came too late for all their windows, or without a time, if any. `error`: of the
    last attempt that failed, or why it was skipped; `first_error`: of the first failure since the last success, if that
    differs. `attempts`: the latest attempts that did not commit it, oldest first. `accepted`: who made it take a mended
    source, and why (`protocol.decide`). `partition`: of a bound topology. `checks`: rule -> number and
    verdict about the batch of the attempt, also of one that failed by them. `extra`: fields of a newer version, kept
    unchanged.
    """

    txid: int
    status: Status
    attempt: int
    metadata: dict[str, Json]
    carried: dict[str, Json] = field(default_factory=dict)
    claim: Claim
    op: str
    owner: Owner = NOBODY
    fence: int = 0
    touched: bool = False
    invalidated: bool = False
    staged: StagedRef | None = None
    error: str = ""
    first_error: str = ""
    accepted: tuple[str, ...] = ()
    attempts: tuple[PastAttempt, ...] = ()
    times_ms: dict[str, int] = field(default_factory=dict)
    plan: str = ""
    late_rows: dict[str, int] = field(default_factory=dict)
    partition: PartitionRevision | None = None
    checks: dict[str, Json] = field(default_factory=dict)
    extra: dict[str, Json] = field(default_factory=dict)

    @property
    def time_ms(self) -> int:
        """The transaction's time, for windows: when its run was due, else when it began. It never changes."""
        return self.claim.run_ms or self.begun_ms

    @property
    def begun_ms(self) -> int:
        """When the transaction began; 0: not known any more."""
        return self.times_ms.get("begun", 0)

    def with_error(self, text: str) -> TxRecord:
        """Keeps the first error too, since later errors often follow from it."""
        error = text[:ERROR_CHARACTERS]
        return replace(self, error=error, first_error=self.first_error or (self.error if self.error != error else ""))

    def with_past_attempt(self, *, ended_ms: int = 0, error: str = "") -> TxRecord:
        """Adds the current attempt to the past ones. If it reported its end before, that report stays."""
        reported = self.attempts[-1] if self.attempts and self.attempts[-1].attempt == self.attempt else None
        if self.attempt == NO_ATTEMPT or (reported is not None and not ended_ms):
            return self
        over = PastAttempt(
            attempt=self.attempt,
            by=str(self.owner),
            begun_ms=self.times_ms.get(Status.PROCESSING, 0),
            ended_ms=ended_ms,
            error=error[:PAST_ERROR_CHARACTERS],
        )
        before = self.attempts if reported is None else self.attempts[:-1]
        return replace(self, attempts=(*before, over)[-ATTEMPTS_KEPT:])

    @property
    def all_errors(self) -> str:
        """The errors as one text."""
        return f"{self.error}\nThe first error was: {self.first_error}" if self.first_error else self.error

    @property
    def partitions(self) -> tuple[str, ...]:
        """The keys of the partitions that its batch replaces; or the names of files."""
        return replaced_files(self.metadata) if self.partition is None else (self.partition.key,)

    @property
    def position(self) -> dict[str, Json]:
        """Stream name -> its last metadata up to this transaction; without opaque streams while `invalidated`."""
        return {**self.carried, **self.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPointer:
    """`commit`: every txid up to `committed` is COMMITTED or SKIPPED; `fence`: the highest one given out."""

    committed: int
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceptions:
    """`exceptions`: the txids off the straight path, so that nobody has to scan for them.

    `replaying`: above the commit pointer, being replayed and not processed yet; later ones wait for them. `late`: at or
    below the commit pointer (they had been skipped), being replayed and not committed yet; nobody waits for them. So a
    transaction is on a list even if its replay is killed. `failed`: blocks later ones, except at or below the pointer:
    there it is a late replay that failed. `closed`: were SKIPPED and will never be replayed; listed until every state
    has forgotten that it left them out. No txid is in two of the lists.
    """

    failed: tuple[int, ...] = ()
    skipped: Txids = NO_TXIDS
    late: tuple[int, ...] = ()
    replaying: tuple[int, ...] = ()
    closed: Txids = NO_TXIDS

    @property
    def unfinished(self) -> tuple[int, ...]:
        """Transactions that nobody finishes by themselves: FAILED, or of a replay that may have been killed. In txid
        order."""
        return tuple(sorted({*self.failed, *self.late, *self.replaying}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTicket:
    """The right to commit one transaction once. The gate gives it, every state checks it, the end of the commit returns
    it.

    A newer ticket (higher `fence`) makes this one void, in the ledger and in every state. `position`:
    :attr:`TxRecord.position`; states keep it, so that a lost ledger can be seeded from them. `late`: higher
    transactions passed while this one was SKIPPED; only then may a state hold higher ones already. `time_ms`:
    :attr:`TxRecord.time_ms`; `begun_ms`: when the transaction began. `needed`: state -> the txids that the state must
    hold before it takes this one (`protocol.state_gaps`). `floor`: no transaction below it may come any more, so states
    need not remember what they left out there. `states`: the names of all states that must have the transaction before
    it is COMMITTED. `bars`: the ticket may only bar lower fences (:meth:`Ledger.bar`); a state takes no batch by it.
    `partitions`: the keys of the partitions that the batch replaces: of a bound topology one; of
    ``FileSpout(replaces="file")`` the names of its files; else none.
    """

    topology: str
    incarnation: str
    txid: int
    attempt: int
    fence: int
    position: dict[str, Json]
    staged: StagedRef
    late: bool = False
    time_ms: int = 0
    begun_ms: int = 0
    bars: bool = False
    needed: dict[str, Txids] = field(default_factory=dict)
    floor: int = 0
    states: frozenset[str] = frozenset()
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerView:
    """One transaction and all that decides about it, read together: the input of
    :mod:`airflow_trident.protocol.decide`."""

    topology: TopologyRecord
    next_txid: int
    pointer: CommitPointer
    exceptions: Exceptions
    tx: TxRecord | None

    @property
    def pending(self) -> int:
        """Transactions above the commit pointer."""
        return self.next_txid - 1 - self.pointer.committed

    def blocked_by(self, txid: int) -> int | None:
        """The lowest FAILED transaction that `txid` has to wait for, if any."""
        below = (failed for failed in self.exceptions.failed if self.pointer.committed < failed < txid)
        return min(below, default=None)

    def lowest_uncommitted(self, txid: int) -> int | None:
        """The lowest transaction below `txid` that must still commit: all the others wait for it."""
        below = range(self.pointer.committed + 1, txid)
        return next((lower for lower in below if lower not in self.exceptions.skipped), None)

    def waits_for(self, txid: int) -> int | None:
        """The highest transaction below `txid` that must commit first (P6), if any."""
        below = range(txid - 1, self.pointer.committed, -1)
        return next((lower for lower in below if lower not in self.exceptions.skipped), None)
