"""The contract of the ledger: the durable truth about transactions.


Promises (`tests/contracts/test_ledger*.py` check each one: over ZooKeeper, over znodes in memory that lose and delay
answers, and for the oracle that the verbs are compared with):

L1  Txids are dense and rise by one; a claim that asks again gets the same txid (P1).
L2  Every call is one atomic conditional step. Otherwise it changes nothing and raises with what was expected and found.
L3  A call whose answer was lost is resolved before it returns: it happened once or not at all. If that cannot be told
    before the deadline: OutcomeUnknownError. It is never repeated blindly. If somebody else has overwritten the record
    that would tell, the call is decided anew on what is there now; no verb does harm by that (`docs/protocol.md`).
L4  `attempt` gives every caller another, higher attempt, for ever (P3).
L5  `processed` and `fail` of an attempt that is not the current one raise StaleAttemptError and change nothing (P4).
L6  `gate` opens only when every lower txid is COMMITTED or SKIPPED (P6). Each opening has a higher fence and voids the
    former ticket. Who gives the record by which he decided opens none that has another attempt or fence by now.
L7  COMMITTED and the commit pointer change in the same step (P8).
L8  The step that commits prunes committed transactions beyond the latest `retention`. FAILED, SKIPPED and uncommitted
    transactions and the last committed one are kept (P10), and so are those that a spout has to be told of
    (`TopologyRecord.told`).
L9  An unreadable or newer record raises CorruptRecordError or NewerRecordError, naming it (P11).
L10 If an attempt changes a transaction's position, the same step takes the batch of every later uncommitted one (P2):
    `invalidated`, PROCESSING, attempt + 1, nothing staged, off the exceptions. Such a transaction can be neither
    skipped nor passed, and nothing begins behind it. At or below the pointer batches are frozen.
L11 A replayed transaction is on a list of `Exceptions` from the step that starts the attempt to the step that ends it:
    PROCESSED (a sweep commits it), COMMITTED if it is late, or FAILED or SKIPPED again (P12).
L12 `bar` voids every earlier ticket and moves nothing else. `take_back` takes only the ticket of a `bar`, and only if
    no later ticket was given out: then the transaction is FAILED as if no commit of it had ever begun.
L13 A ticket says which txids each state must hold (`CommitTicket.needed`): all that were committed since the state
    belongs to the topology, except those that are exceptions, closed, or noted as lost for this state. A ticket given
    out before a state joined is void (P8, P11).
L14 Records of closed transactions are pruned like committed ones. Their txids are forgotten by the step that commits
    the transaction with whose ticket every state has forgotten them (`CommitTicket.floor`) (P10).
L15 A step of a group does what the steps of its members would do one after the other, for as many as fit into one step
    (the answer tells how many). Or it changes nothing: one refused member refuses all. But a gate of a group gives all
    its tickets one fence, and its members need not wait for each other: they are committed together, or in their order
    (P6). A commit of a group prunes none of what it commits.

Small staged batches, which the ledger keeps beside its records. Such a batch needs no other place.

The ledger, with what a person does: restore it from its states or a back-up.

A ledger for notebooks and tests: it lives and dies with its process.
"""

from __future__ import annotations

import functools
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.errors import RetryableError, TransitionError, UnknownTopologyError
from airflow_trident.ledger import transact
from airflow_trident.ledger.answers import BeginResult, Committed
from airflow_trident.ledger.backup import (
    READ_AT_ONCE,
    claims_of,
    contents_of,
    export_json,
    prepare_import,
    require_finished,
)
from airflow_trident.ledger.layout import (
    DEFAULT_ROOT,
    LedgerPaths,
    new_topology,
    topologies_folder,
    topology_path,
    tx_name,
)
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.recovery import Seed, record_of, seed_ops
from airflow_trident.ledger.snapshot import Snapshot
from airflow_trident.ledger.transact import Decide, LedgerListener, Prefetch, Transactor, Verb, another_incarnation
from airflow_trident.ledger.verbs import attempts, begin, commits, partitions, topology
from airflow_trident.ledger.verbs.commits import KEPT_CLAIMS
from airflow_trident.ledger.workers import Worker, enlist, live_workers, retire
from airflow_trident.ledger.znodes import Set, ZNodes, require_sizes
from airflow_trident.protocol import codec
from airflow_trident.protocol.exceptional_txids import needed_at_any_age
from airflow_trident.protocol.outcomes import CoordinatorOutcome, OutcomeKind
from airflow_trident.protocol.partition_keys import (
    PartitionEntry,
    SeenPartition,
    decode_keys,
    may_be_outdated,
    period_of,
)
from airflow_trident.protocol.records import LedgerView, StagedRef, TopologyRecord, TxRecord
from airflow_trident.protocol.topologies import Definition
from airflow_trident.types import Json

CHUNK_BYTES = 256 * 1024
"""A staged batch of more bytes goes to the staging area: ZooKeeper takes 1 MB in a request, and a step of groups 450
KB."""
_NAME = re.compile(r"[0-9]{19}-staged-[0-9]+\Z")


class KeepsStaged:
    """The part of a ledger that returns staged batches. The step that says PROCESSED writes them."""

    transactor: Transactor
    chunk_bytes: int = 0
    """The ledger keeps staged batches of at most this many bytes; 0: none."""
    sources_root: str = ""
    """The place of what spouts keep beside the ledger (`Coordinator.keep_notes_in`); "": there is none."""

    def paths(self) -> LedgerPaths:
        raise NotImplementedError

    def staged_content(self, staged: StagedRef) -> bytes | None:
        """What an attempt staged; None: the ledger has it no longer. A chunk never changes, so a remembered one is
        right.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        if not _NAME.match(staged.chunk):
            return None
        path, cache = self.paths().chunk(staged.chunk), self.transactor.cache
        node = cache.node(path) or cache.node_now(path)
        return None if node is None else node.data


T = TypeVar("T")
SAID_ENOUGH_MS = 60_000
"""A drain asks its sources after each transaction, but records "nothing new" again only after this time."""
SLOW_POLL_S = 30.0
"""A safety net under the watches: a waiter reads at least this often."""
STEP_DEADLINE_S = 120.0
"""How long a step tries to resolve a write without an answer, or competes with others. Giving up earlier gains nothing:
the next try would wait for the same server."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def topology_names(znodes: ZNodes, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger, sorted."""
    folder = topologies_folder(root)
    return sorted(znodes.read([], [folder]).folders[folder] or ())


# ---- what goes with some of the verbs --------------------------------------------------------------------------


def _after_begin(ledger: Ledger, outcome: BeginResult) -> None:
    if isinstance(outcome, tuple) and any(begun.new for begun in outcome):
        ledger.forget_said()


def _after_commit(ledger: Ledger, committed: Committed) -> None:
    _after_begin(ledger, committed.begun)
    for record in committed.records:
        ledger.sweep_claims(record.txid)


class Ledger(Closing, KeepsStaged):
    """The ledger of one topology, over any :class:`~airflow_trident.ledger.znodes.ZNodes`. Do not share it between
    threads; use it as a context manager.

    :param root: the node below which all ledgers are.
    :param incarnation: the topology's, if the caller knows it (from the coordinator's XCom): saves a round trip. A
        topology of another incarnation is refused.
    :param step_deadline_s: the longest time of one call; after it an unresolved write is an OutcomeUnknownError.
    :param keep_claims: claim keys are kept for this many transactions.
    """

    def __init__(
        self,
        znodes: ZNodes,
        topology_name: str,
        root: str = DEFAULT_ROOT,
        *,
        incarnation: str = "",
        step_deadline_s: float = STEP_DEADLINE_S,
        keep_claims: int = commits.KEPT_CLAIMS,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.topology_name = topology_name
        self.znodes = znodes
        self.transactor = Transactor(znodes, clock_ms, step_deadline_s)
        self._root = root
        self._path = topology_path(root, topology_name)
        self._keep_claims = keep_claims
        self._clock_ms = clock_ms
        self._known_paths = LedgerPaths(self._path, incarnation) if incarnation else None
        self._told = bool(incarnation)
        self._said: tuple[CoordinatorOutcome | None, int] = (None, 0)
        self.listener: LedgerListener | None = None

    # ---- the verbs: signature, promises and decision of each are in `ledger/verbs` ---------------------------------

    begin = Verb(begin.begin, transact.of_claims, then=_after_begin)
    attempt = Verb(attempts.attempt, transact.transactions)
    processed = Verb(attempts.processed, transact.staged)
    fail = Verb(attempts.fail, transact.transactions)
    gate = Verb(commits.gate, transact.with_what_is_kept)
    committed = Verb(commits.committed, transact.tickets_and_claims, then=_after_commit)
    bar = Verb(commits.bar, transact.transactions)
    take_back = Verb(commits.take_back, transact.transactions)
    skip = Verb(topology.skip, transact.transactions)
    accept_source = Verb(topology.accept_source, transact.transactions)
    close_transaction = Verb(topology.close_transaction, transact.transactions)
    join = Verb(partitions.join, transact.of_partition)
    refresh = Verb(partitions.refresh, transact.of_partition)
    set_command = Verb(topology.set_command, transact.the_deployment)
    note_states = Verb(topology.note_states, transact.the_topology)
    note_told = Verb(topology.note_told, transact.the_topology)
    take_fence = Verb(topology.take_fence, transact.the_pointer)

    # ---- the topology ------------------------------------------------------------------------------------------

    def register(
        self, definition: Definition, *, accept_change: bool = False, empty: Collection[str] = ()
    ) -> TopologyRecord:
        """Creates the topology's ledger, or checks that it has the same definition.

        A state of a new ledger belongs to the topology from the first transaction on. A state that an accepted change
        adds belongs to it from the next commit on (`TopologyRecord.since`).

        :param accept_change: record the new definition instead of refusing it.
        :param empty: the states that hold nothing: such a state begins anew if it was changed.
        :raises DefinitionChangedError: the name has another definition; lists the differences.
        """
        for _ in range(2):  # the second time only if somebody else created it meanwhile
            record = self._read_topology()
            if record is not None:
                break
            if self._told:
                raise self._unknown()
            created = self._create(definition)
            if created is not None:
                return created
        if record is None:
            raise self._unknown()
        if self._known_paths is not None and self._known_paths.incarnation != record.incarnation:
            raise another_incarnation(self.topology_name, record.incarnation, self._known_paths.incarnation)
        if record.definition == definition:
            return record
        redefine = functools.partial(topology.redefine, definition=definition, accept_change=accept_change, empty=empty)
        return self.run(redefine, Prefetch())

    def topology(self) -> TopologyRecord:
        """:raises UnknownTopologyError: nothing is registered under the name; names those that are."""
        record = self._read_topology()
        if record is None:
            raise self._unknown()
        return record

    def _read_topology(self) -> TopologyRecord | None:
        node = self.znodes.read([self._path]).nodes[self._path]
        if node is None:
            return None
        require_finished(node.data, self._path)
        record = codec.decode_topology(node.data, self._path)
        if self._known_paths is None:
            self._known_paths = LedgerPaths(self._path, record.incarnation)
        return record

    def _create(self, definition: Definition) -> TopologyRecord | None:
        """Creates all nodes of a new incarnation in one step; None if somebody else was faster."""
        op = uuid.uuid4().hex[:16]
        record, ops = new_topology(self.topology_name, self._path, definition, op=op, now_ms=self._clock_ms())
        self.znodes.ensure(topologies_folder(self._root))
        if not self.transactor.apply(ops, witness=self._path, op=op):
            return None
        self._known_paths = LedgerPaths(self._path, record.incarnation)
        return record

    def paths(self) -> LedgerPaths:
        """Where the records of this incarnation are."""
        if self._known_paths is None:
            self.topology()
        assert self._known_paths is not None
        return self._known_paths

    def _unknown(self) -> UnknownTopologyError:
        names = topology_names(self.znodes, self._root)
        return UnknownTopologyError(
            f"there is no ledger of a topology {self.topology_name!r} in {self.znodes.describe()} below {self._root}",
            f"Known topologies: {', '.join(names) or 'none'}. A topology's first coordinator run creates its ledger. "
            "If it has run, check the ZooKeeper connection and [trident] root of this process.",
        )

    # ---- reading -----------------------------------------------------------------------------------------------

    def view(self, txid: int, *, remembered: bool = False, ahead: bool = False) -> LedgerView:
        """The transaction and what decides about it; `view(0)`: the topology alone.

        :param remembered: answer with what this process last saw or wrote, which costs nothing. For a caller that goes
            from transaction to transaction: verbs find out what others did meanwhile. Waiting and giving up need a new
            view.
        :param ahead: the caller begins or commits next. The same round trip also lists the kept records for that step,
            which otherwise spends a round trip on the list.
        """
        if remembered:
            paths = self.paths()
            return self.transactor.remembered(paths, paths.about(txid)).view(txid)
        return self._snapshot(txid, self.paths().pruned() if ahead else ()).view(txid)

    def transactions(self, first: int = 1, last: int | None = None) -> Sequence[TxRecord]:
        """The kept records with first <= txid <= last, in txid order."""
        paths = self.paths()
        snap = self.transactor.fresh(paths, folders=[paths.transactions])
        txids = sorted(int(name) for name in snap.names(paths.transactions))
        return self._records(snap, [txid for txid in txids if first <= txid and (last is None or txid <= last)])

    def records(self, txids: Iterable[int]) -> Sequence[TxRecord]:
        """The kept records of these transactions, in the same order: one round trip, without a look at what else there
        is."""
        paths, wanted = self.paths(), list(txids)
        return self._records(self.transactor.fresh(paths, map(paths.tx, wanted[:READ_AT_ONCE])), wanted)

    def _light(self, wanted: Sequence[int]) -> Iterator[TxRecord]:
        """The records without the metadata that they keep apart."""
        paths = self.paths()
        for at in range(0, len(wanted), READ_AT_ONCE):
            some = wanted[at : at + READ_AT_ONCE]
            snap = self.transactor.fresh(paths, map(paths.tx, some))
            yield from (tx for tx in map(snap.light_tx, some) if tx is not None)

    @staticmethod
    def _records(snap: Snapshot, wanted: Sequence[int]) -> list[TxRecord]:
        records: list[TxRecord] = []
        for at in range(0, len(wanted), READ_AT_ONCE):
            some = wanted[at : at + READ_AT_ONCE]
            snap.prefetch_transactions(some)
            records.extend(tx for tx in map(snap.tx, some) if tx is not None)  # None: pruned meanwhile
        return records

    def claimed(self, keys: Sequence[str]) -> dict[str, int]:
        """The transactions that claims have: claim key -> txid. Claims without one are left out."""
        paths = self.paths()
        snap = self.transactor.fresh(paths, [*paths.about(0), *map(paths.claim, keys)])
        return {key: claim.txid for key in keys if (claim := snap.claim(key)) is not None}

    def partition(self, key: str) -> SeenPartition:
        """The entry of a partition key in the index, and the records of its transactions. Only for a bound topology."""
        paths = self.paths()
        while True:
            snap = self.transactor.fresh(paths, [*paths.about(0), paths.period(key)])
            entry = snap.entry(key)
            records = self._records(snap, [txid for txid in (entry.tx, entry.before) if txid])
            kept = {record.txid: record for record in records}
            if (
                not may_be_outdated(entry, kept)
                or self.transactor.fresh(paths, [paths.period(key)]).entry(key) == entry
            ):
                return SeenPartition.of(entry, kept)

    def partitions(self, first: str = "", last: str = "") -> dict[str, PartitionEntry]:
        """The index of a bound topology: partition key -> its entry, in the order of the keys.

        :param first: the lowest key, if not all are wanted; `last`: the highest one.
        """
        paths = self.paths()
        names = sorted(self.znodes.read([], [paths.keys]).folders[paths.keys] or ())
        lowest, highest = period_of(first), period_of(last) if last else max(names, default="")
        periods = [f"{paths.keys}/{name}" for name in names if lowest <= name <= highest]
        entries: dict[str, PartitionEntry] = {}
        for at in range(0, len(periods), READ_AT_ONCE):
            for path, node in self.znodes.read(periods[at : at + READ_AT_ONCE]).nodes.items():
                entries |= {} if node is None else decode_keys(node.data, path)
        return {key: entries[key] for key in sorted(entries) if first <= key and (not last or key <= last)}

    def seen_partitions(self, first: str = "", last: str = "", *, metadata: bool = True) -> dict[str, SeenPartition]:
        """The entries of :meth:`partitions`, with the records of their transactions.

        :param metadata: also those that records keep apart; without them a large partition costs no more than others.
        """
        while True:
            entries = self.partitions(first, last)
            wanted = sorted({txid for entry in entries.values() for txid in (entry.tx, entry.before) if txid})
            kept = {record.txid: record for record in (self.records(wanted) if metadata else self._light(wanted))}
            pruned = {key: entry for key, entry in entries.items() if may_be_outdated(entry, kept)}
            if not pruned or pruned.items() <= self.partitions(first, last).items():
                return {key: SeenPartition.of(entry, kept) for key, entry in entries.items()}

    def keeps(self) -> Callable[[int], bool]:
        """Says of a transaction that its record is kept, as this process last saw it; costs nothing after a commit.
        What belongs to a transaction outside of the ledger stays at least as long as its record."""
        paths = self.paths()
        snap = self.transactor.remembered(paths, [paths.exceptions])
        names, needed = snap.names(paths.transactions), needed_at_any_age(snap.exceptions())
        return lambda txid: txid in needed or tx_name(txid) in names

    def wait_for_change(self, txid: int, seen: LedgerView, timeout_s: float) -> bool:
        """Blocks until transaction `txid` or the exceptions differ from `seen`, at most `timeout_s` seconds.

        True if something differs. May return early. Reads again after it has set its watch, so no change is missed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            changed, watched = self.compare(txid, seen)
            if changed:
                return True
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self.znodes.wait_for_change(watched, min(left_s, SLOW_POLL_S))

    def compare(self, txid: int, seen: LedgerView) -> tuple[bool, dict[str, int | None]]:
        """Whether what a waiter on the transaction saw has changed; and the nodes to watch, with the versions read."""
        paths, snap = self.paths(), self._snapshot(txid)
        now = snap.view(txid)
        changed = (now.tx, now.exceptions, now.pointer) != (seen.tx, seen.exceptions, seen.pointer)
        return changed, {path: snap.used.get(path) for path in (paths.tx(txid), paths.exceptions)}

    def export(self) -> dict[str, Json]:
        """Everything, as JSON for people and tools."""
        view, records = self.view(0), self.transactions()
        bound = view.topology.definition.partitions
        return export_json(view, records, claims_of(self.znodes, self.paths()), self.partitions() if bound else {})

    def _snapshot(self, txid: int, folders: Iterable[str] = ()) -> Snapshot:
        paths = self.paths()
        return self.transactor.fresh(paths, paths.about(txid), folders)

    # ---- for people: the coordinator's last outcome, and who is at work ----------------------------------------

    def note_coordinator(self, outcome: CoordinatorOutcome) -> None:
        """Records the coordinator's last outcome; time and next txid are the ledger's own.

        It has a node of its own beside `head` and `commit`, so it costs others only one read.
        """
        if outcome.kind is OutcomeKind.NOTHING_NEW:
            last_outcome, said_ms, now_ms = *self._said, self._clock_ms()
            if last_outcome == outcome and now_ms - said_ms < SAID_ENOUGH_MS:
                return
            self._said = (outcome, now_ms)
        else:
            self.forget_said()
        paths = self.paths()
        self.run(functools.partial(topology.note, outcome=outcome), Prefetch([paths.head, paths.coordinator]))

    def forget_said(self) -> None:
        """The next outcome is recorded, whatever was recorded before."""
        self._said = (None, 0)

    def coordinator(self) -> CoordinatorOutcome | None:
        """The last outcome; None: none was recorded yet."""
        paths = self.paths()
        return topology.outcome_at(self.transactor.fresh(paths, [paths.coordinator]))

    def enlist(self, worker: Worker, *, wait: bool = True) -> str:
        """Lists a live worker until this ledger is closed or its process ends. Returns its name for
        :attr:`Owner.worker`.

        :param wait: for the answer. Without it this costs no round trip, but success is not known.
        """
        return enlist(self.znodes, self.paths(), worker, wait=wait)

    def retire(self, name: str) -> None:
        """Takes a worker off the list.

        :param name: what :meth:`enlist` returned.
        """
        retire(self.znodes, self.paths(), name)

    def workers(self) -> Sequence[Worker]:
        """Who works on the topology now, oldest first."""
        return live_workers(self.znodes, self.paths())

    # ---- claim keys --------------------------------------------------------------------------------------------

    def sweep_claims(self, txid: int) -> None:
        """Deletes old claim keys, if the commit of `txid` makes that due (P10)."""
        if not commits.sweep_is_due(txid, self._keep_claims):
            return
        paths, bucket = self.paths(), commits.bucket_of_sweep(txid)
        sweep = functools.partial(commits.sweep_claims, bucket=bucket, kept=self._keep_claims)
        try:
            self.run(sweep, Prefetch(folders=[paths.bucket(bucket), paths.transactions]))
        except RetryableError:
            # The commit itself is done. The next sweep of this bucket catches up.
            self.transactor.cache.forget()

    # ---- the rest ----------------------------------------------------------------------------------------------

    def run(self, decide: Decide[T], ahead: Prefetch) -> T:
        """One atomic step: see :class:`Transactor`."""
        return self.transactor.run(self.paths(), decide, paths=ahead.paths, folders=ahead.folders)

    def close(self) -> None:
        """Ends the session, and with it the entries in :meth:`workers`."""
        self.znodes.close()


class ZNodeLedger(Ledger):
    """The ledger that hooks and commands open: see :class:`~airflow_trident.ledger.ledger.Ledger`."""

    def seed(
        self,
        definition: Definition,
        seed: Seed,
        *,
        behind: Callable[[], bool] = lambda: False,
        first: Callable[[], object] = lambda: None,
        dry_run: bool = False,
        taken_over: str = "",
    ) -> None:
        """Makes the ledger agree with what the states hold: see :mod:`airflow_trident.ledger.recovery`.

        From now on cleared runs whose claim keys were lost are refused (`floor_ms`).

        :param behind: asked only if the numbers do not show it: is the ledger behind nevertheless?
        :param first: called once it is certain that the ledger is behind, before anything is written.
        :param taken_over: see `TopologyRecord.taken_over`.
        :param dry_run: look whether it could be done, and do nothing.
        :raises TransitionError: the ledger is not behind the states, or somebody else wrote meanwhile.
        """
        op, now_ms = uuid.uuid4().hex[:16], self._clock_ms()
        record = record_of(self.topology_name, definition, seed, now_ms=now_ms, taken_over=taken_over)
        if not dry_run:
            self.znodes.ensure(topologies_folder(self._root))
        ops = seed_ops(self.znodes, record, self._path, seed, op=op, now_ms=now_ms, behind=behind)
        require_sizes(ops)
        if dry_run:
            return
        first()
        if not self.transactor.apply(ops, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Repair it again.")
        self.transactor.cache.forget()
        self._known_paths = LedgerPaths(self._path, seed.incarnation)

    def import_from(self, exported: Json) -> TopologyRecord:
        """Imports what `export` wrote: see :mod:`airflow_trident.ledger.backup`.

        :raises TransitionError: the topology has a ledger with transactions, or somebody else wrote meanwhile.
        """
        op = uuid.uuid4().hex[:16]
        contents = contents_of(exported, self.topology_name, op=op)
        version = prepare_import(self.znodes, self._path, contents)
        last = [Set(self._path, codec.encode_topology(contents.topology, op=op), version)]
        if not self.transactor.apply(last, witness=self._path, op=op):
            raise TransitionError(f"somebody else wrote to the ledger of {self.topology_name!r}", "Look at it first.")
        self.transactor.cache.forget()
        self._known_paths = LedgerPaths(self._path, contents.topology.incarnation)
        return contents.topology

    def was(self, incarnation: str) -> bool:
        """Is or was this ledger the one of that incarnation?"""
        head = LedgerPaths(self._path, incarnation).head
        return self.znodes.read([head]).nodes[head] is not None


class MemoryLedger(ZNodeLedger):
    """The ledger over znodes in memory: all but durable. It may be closed and used again.

    :param keep_claims: claim keys are kept for this many transactions.
    """

    def __init__(self, topology_name: str, *, keep_claims: int = KEPT_CLAIMS) -> None:
        super().__init__(MemoryZNodes(), topology_name, keep_claims=keep_claims)
