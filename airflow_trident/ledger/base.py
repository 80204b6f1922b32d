"""The contract of the ledger: the durable truth about transactions.

Promises of an implementation (`tests/contracts/test_ledger*.py` check every one over every implementation):

L1  Txids are dense and rise by one; a claim that asks again gets the same txid (P1).
L2  Every call is one atomic conditional step, or changes nothing and raises with what was expected and found.
L3  A call whose answer was lost is resolved before it returns: it happened once or not at all; if that cannot be told
    before the deadline, OutcomeUnknownError. It is never repeated blindly.
L4  `start_attempt` gives every caller another, higher attempt, for ever (P3).
L5  `processed`, `attempt_failed`, `fail` of an attempt that is not the current one raise StaleAttemptError and change
    nothing (P4).
L6  `gate` opens only when every lower txid is COMMITTED or SKIPPED (P6); each opening has a higher fence, and makes the
    former ticket void.
L7  COMMITTED and the commit pointer change in the same step (P8).
L8  What is above `retention` committed transactions is pruned in the step that commits; FAILED, SKIPPED and
    uncommitted ones and the last committed one are kept (P10).
L9  An unreadable or newer record raises CorruptRecordError or NewerRecordError, naming it (P11).
L10 An attempt that gives a transaction another position than it had takes the batch of every later uncommitted one in
    the same step (P2): `invalidated`, PROCESSING, attempt + 1, nothing staged, off the exceptions. Such a transaction
    can be neither skipped nor passed, and nothing begins behind it. At or below the pointer batches are frozen.
L11 What is replayed is on a list of `Exceptions` from the step that starts the attempt to the step that ends it:
    PROCESSED (a sweep commits it), COMMITTED if it is late, or FAILED or SKIPPED again (P12).
L12 `bar` voids every ticket before it and moves nothing else. `take_back` takes only the ticket of a `bar` after which
    no other was given out: then the transaction is FAILED as if no commit of it had ever begun.
L13 A ticket says which txids each state must hold (`CommitTicket.needed`): all that are committed since the state
    belongs to the topology, but what stands among the exceptions, was closed, or is noted as lost for this state. A
    ticket that a later state was not part of is void (P8, P11).
L14 The records of closed transactions are pruned as committed ones are, and their txids are forgotten in the step that
    commits what every state has forgotten them with (`CommitTicket.floor`) (P10).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from airflow_trident.ledger.workers import Worker
from airflow_trident.protocol.accepted import MendedSources
from airflow_trident.protocol.decide import Blocked, Full, Held
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag
from airflow_trident.protocol.records import (
    Claim,
    Command,
    CommitTicket,
    Definition,
    LedgerView,
    Loss,
    Owner,
    StagedRef,
    TopologyRecord,
    TxRecord,
)
from airflow_trident.types import Json

DEFAULT_MAX_PENDING = 2
DEFAULT_RETENTION = 50


@dataclass(frozen=True, slots=True)
class Begun:
    """The claim has this transaction. `new`: it was begun by this very call (or by one whose answer was lost)."""

    record: TxRecord | None
    txid: int
    new: bool


@dataclass(frozen=True, slots=True)
class NothingNew:
    """No stream has data after what the ledger holds; nothing was begun."""


BeginResult = Begun | NothingNew | Full | Held | Blocked

LagOf = Callable[[dict[str, Json]], dict[str, Lag]]
"""``position -> stream -> what its source has beyond it``: for people, asked with the position after a new batch."""

MetadataOf = Callable[[int, dict[str, Json]], dict[str, Json] | None]
"""``(txid, position) -> metadata`` per stream that has new data, None if none has. May be called again with other
arguments when somebody else began a transaction meanwhile: it must be free of effects."""


class Ledger(ABC):
    """The ledger of one topology. Not for sharing between threads; use as a context manager."""

    topology_name: str

    # ---- the topology ------------------------------------------------------------------------------------------

    @abstractmethod
    def register(
        self, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
    ) -> TopologyRecord:
        """Create the topology's ledger, or check that it belongs to the same definition.

        A state of a new ledger belongs to the topology from the first transaction, one that comes with an accepted
        change from the next commit on (`TopologyRecord.since`).

        :param accept_change: record the new definition instead of refusing it.
        :param empty: the states that hold nothing: where such a one was changed, it begins anew.
        :raises DefinitionChangedError: another definition owns the name; lists the differences.
        """

    @abstractmethod
    def topology(self) -> TopologyRecord:
        """:raises UnknownTopologyError: nothing is registered under the name; names those that are."""

    @abstractmethod
    def set_command(self, command: Command) -> TopologyRecord:
        """Change the lifecycle command, raising its epoch by one."""

    @abstractmethod
    def note_states(self, *, since: Mapping[str, int] | None = None, lost: Sequence[Loss] = ()) -> TopologyRecord:
        """Note since when states belong to the topology, and what they were given up for (L13)."""

    @abstractmethod
    def take_fence(self) -> int:
        """A fence above all that were given out, for who brings a state up to its ledger, outside of a commit."""

    # ---- reading -----------------------------------------------------------------------------------------------

    @abstractmethod
    def view(self, txid: int, *, remembered: bool = False) -> LedgerView:
        """The transaction and what decides about it. `view(0)` for the topology alone.

        :param remembered: what this process last saw or wrote will do, which costs nothing: for one that goes from
            transaction to transaction. Verbs find out what others did meanwhile; waiting and giving up need a new view.
        """

    @abstractmethod
    def transactions(self, first: int = 1, last: int | None = None) -> Sequence[TxRecord]:
        """The records that are kept with first <= txid <= last, in txid order."""

    @abstractmethod
    def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        """Block until transaction `txid` or the list of exceptions differs from `seen`, at most `timeout_s` seconds.

        Re-reads after arming its watch, so that no change is missed. True if something differs. May return early.
        """

    # ---- the verbs ---------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(
        self,
        claim: Claim,
        metadata_of: MetadataOf,
        *,
        max_pending: int = DEFAULT_MAX_PENDING,
        attempt_by: Owner | str = "",
        lag_of: LagOf | None = None,
        plan: str = "",
    ) -> BeginResult:
        """Claim a transaction: same claim, same txid; else decide_begin(), and the batch's metadata is recorded.
        That a transaction was begun is the coordinator's last outcome from then on, by the same step.

        :param attempt_by: whoever processes a new transaction at once, in the same process: its attempt 0 starts in the
            same step, which saves `start_attempt`.
        :param lag_of: None: what was known of the sources' lag stays.
        :param plan: digest of the plan that it is begun with.
        Full, too, while the last transaction is invalidated: there is no position yet to go on from.

        :raises TransitionError: the claim is that of a cleared run whose claim key was pruned (see TopologyRecord).
        """

    @abstractmethod
    def start_attempt(
        self,
        txid: int,
        *,
        owner: Owner | str,
        metadata_of: MetadataOf | None = None,
        plan: str = "",
        replays: bool = False,
    ) -> TxRecord:
        """A new attempt: PROCESSING with attempt + 1. The record's answer is the proof that it is durable (P3).

        From FAILED and SKIPPED too: that is a replay, and moves the txid to the list of those that are being replayed
        (`Exceptions.replaying`, `late`), where it stays until it is PROCESSED, or COMMITTED if it is late (L11).

        Where the topology has opaque streams and the transaction is above the commit pointer, every attempt but the
        first of a batch that was just recorded decides their part of the batch anew (P2, L10).

        :param owner: who works on it; a text is the name of a program.
        :param plan: digest of the plan that the attempt runs.
        :param metadata_of: asked for the opaque streams, with their position after the transaction before; what it says
            of others is left aside, a stream that it does not name has nothing in the batch.
        :param replays: the attempt is a replay whatever the status was: nobody but its owner would go on with it.
        :raises TransitionError: COMMITTED already, or COMMITTING with its staged batch in place.
        :raises InvalidatedError: the transaction before it has no batch.
        :raises ConfigurationError: it has to decide a batch, and there is no `metadata_of`.
        """

    @abstractmethod
    def restart_attempt(
        self, ticket: CommitTicket, *, owner: Owner | str, metadata_of: MetadataOf | None = None, plan: str = ""
    ) -> TxRecord:
        """From COMMITTING back to PROCESSING with attempt + 1: the staged batch is gone and must be emitted again.

        :param metadata_of: as of :meth:`start_attempt`, with the same effects.
        """

    @abstractmethod
    def processed(self, txid: int, attempt: int, staged: StagedRef) -> TxRecord:
        """PROCESSING -> PROCESSED."""

    @abstractmethod
    def gate(self, txid: int, *, owner: Owner | str) -> CommitTicket:
        """PROCESSED or COMMITTING -> COMMITTING, with the next fence.

        :raises TransitionError: not its turn, or no staged batch; says what was found.
        """

    @abstractmethod
    def committed(
        self, ticket: CommitTicket, *, retention: int = DEFAULT_RETENTION, late_rows: Mapping[str, int] | None = None
    ) -> TxRecord:
        """COMMITTING -> COMMITTED, pointer and pruning in the same step.

        :param late_rows: see :class:`TxRecord`.
        :raises FencedError: a newer ticket was given out.
        """

    @abstractmethod
    def attempt_failed(self, txid: int, attempt: int, error: str) -> TxRecord:
        """Note on the record that the attempt failed; it stays PROCESSING (or COMMITTING), a retry will come."""

    @abstractmethod
    def fail(self, txid: int, attempt: int, error: str) -> TxRecord:
        """-> FAILED: attempts are used up."""

    @abstractmethod
    def bar(self, txid: int, *, owner: Owner | str) -> CommitTicket:
        """The next fence for a transaction of which a commit has begun, for who takes that back; its status stays.

        The ticket `bars`: with it :meth:`State.bar` makes every state refuse the tickets before it.

        :raises TransitionError: no commit of it has begun, or it is COMMITTED.
        """

    @abstractmethod
    def take_back(self, ticket: CommitTicket, reason: str) -> TxRecord:
        """-> FAILED, and no longer `touched`: no state holds the batch, and none will take it by an older ticket.

        :param ticket: of :meth:`bar`; every state has been barred with it and holds nothing of the transaction.
        :raises FencedError: a newer ticket was given out, or another attempt begun.
        """

    @abstractmethod
    def skip(self, txid: int, reason: str) -> TxRecord:
        """-> SKIPPED: let the others pass; the pointer moves over it when it can.

        :raises TransitionError: a commit of it has begun (`touched`), so a state may hold it.
        :raises InvalidatedError: it has no batch to leave out.
        """

    @abstractmethod
    def accept_source(self, txid: int, sources: MendedSources, reason: str) -> TxRecord:
        """A transaction that is committed nowhere takes its source as it is now: new metadata, attempt + 1, nothing
        staged, FAILED (or SKIPPED, as it was), `reason` in the record. Later transactions keep their batch (P2).

        :param sources: asked for every stream of its batch; may be asked again, so without effects.
        :raises TransitionError: see :func:`airflow_trident.protocol.accepted.accepted`.
        """

    @abstractmethod
    def close_transaction(self, txid: int, reason: str) -> TxRecord:
        """SKIPPED -> CLOSED: it will never be replayed, so that nobody has to remember it (P10, L14).

        :raises TransitionError: it is not SKIPPED, or the pointer has not passed it.
        """

    # ---- the rest ----------------------------------------------------------------------------------------------

    @abstractmethod
    def export(self) -> dict[str, Json]:
        """Everything, as JSON for people and tools."""

    def note_coordinator(self, outcome: CoordinatorOutcome) -> None:
        """Keep it as the coordinator's last outcome, for people; time and next txid are the ledger's own.

        Written beside `head` and `commit`, never into them, so that it costs others nothing but one look.
        """

    def coordinator(self) -> CoordinatorOutcome | None:
        """The last one; None: nothing was said yet."""
        return None

    def enlist(self, worker: Worker, *, wait: bool = True) -> str:
        """Be listed among the live workers until this ledger is closed, or its process ends. The answer is the name for
        :attr:`Owner.worker`; "" where nobody is listed.

        :param wait: for the answer. Without it this costs no round trip, and whether it was done is not known.
        """
        return ""

    def retire(self, name: str) -> None:
        """Be listed no longer.

        :param name: what :meth:`enlist` answered.
        """

    def workers(self) -> Sequence[Worker]:
        """Who works on the topology now, oldest first."""
        return ()

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
