"""Reading, deciding and writing as one step: how the ledger's verbs get atomic over any :class:`ZNodes`.

A verb is a pure function from a :class:`Snapshot` to a :class:`Step` (what to write) or :class:`Done` (nothing to
write). The transactor sends the step as one `multi` together with a check of **everything the verb looked at**, so that
a decision made on an outdated view is refused by ZooKeeper and made again on a new one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from airflow_trident.errors import (
    CorruptRecordError,
    FencedError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.ledger.paths import Life
from airflow_trident.ledger.znodes import Check, Create, Delete, Node, Op, Set, WriteRefusedError, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.codec import BlobRef, ClaimKey, Positions
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, TopologyRecord, TxRecord

T = TypeVar("T")
Write: TypeAlias = Create | Set | Delete
_CACHED_NODES = 2_000
"""Beyond this the cache is dropped: a long-lived process would else keep every transaction it ever saw."""

_CACHED_BLOBS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Generic[T]):
    """What a verb wants written.

    `witness` is a record of it that is marked with its op id, until another operation writes over that: it tells
    whether a write whose answer was lost was applied. `unchecked`: paths that the decision looked at, but does not
    depend on.
    """

    writes: tuple[Write, ...]
    witness: str
    result: T
    unchecked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """Nothing needs to be written."""

    result: T


class Snapshot:
    """What a verb may look at; it remembers what was looked at. Missing nodes are read on demand."""

    def __init__(self, life: Life, cache: Cache, now_ms: int) -> None:
        self.life = life
        self.now_ms = now_ms
        self.op = uuid.uuid4().hex[:16]
        self.used: dict[str, int] = {}
        self._cache = cache

    def topology(self) -> TopologyRecord:
        return codec.decode_topology(self._require(self.life.topology).data, self.life.topology)

    def next_txid(self) -> int:
        return codec.decode_head(self._require(self.life.head).data, self.life.head)

    def pointer(self) -> CommitPointer:
        return codec.decode_pointer(self._require(self.life.commit).data, self.life.commit)

    def exceptions(self) -> Exceptions:
        return codec.decode_exceptions(self._require(self.life.exceptions).data, self.life.exceptions)

    def claim(self, key: str) -> ClaimKey | None:
        path = self.life.claim(key)
        claim = self.claim_at(path)
        if claim is not None and claim.key != key:
            raise CorruptRecordError(
                f"the ledger record {path} belongs to the claim {claim.key!r}, not to {key!r}",
                "Restore the ledger from a back-up; nothing is guessed.",
            )
        return claim

    def claim_at(self, path: str) -> ClaimKey | None:
        node = self._node(path)
        return None if node is None else codec.decode_claim(node.data, path)

    def tx(self, txid: int) -> TxRecord | None:
        path = self.life.tx(txid)
        node = self._node(path)
        if node is None:
            return None
        try:
            return codec.decode_tx(node.data, path, lambda ref: self._blob(txid, ref))
        except _ChunkMissing:
            # Record and chunks go in one step, or come anew; the record was read before, the chunks after it.
            now = self._cache.node_now(path)
            if now is None:
                return None
            if now.version != node.version:
                return self.tx(txid)
            raise CorruptRecordError(
                f"a chunk of the metadata of {path} is missing",
                "Restore the ledger from a back-up; nothing is guessed.",
            ) from None

    def view(self, txid: int) -> LedgerView:
        """In an order that cannot mislead: the transaction after the head, so that a missing one is a pruned one."""
        topology, next_txid = self.topology(), self.next_txid()
        pointer, exceptions = self.pointer(), self.exceptions()
        tx = self.tx(txid) if txid >= 1 else None
        return LedgerView(topology=topology, next_txid=next_txid, pointer=pointer, exceptions=exceptions, tx=tx)

    def names(self, folder: str) -> frozenset[str]:
        return self._cache.folder(folder)

    def prefetch(self, paths: Iterable[str]) -> None:
        """Read these together, as they are looked at next."""
        self._cache.fetch(paths)

    def set(self, path: str, data: bytes) -> Set:
        """A write of a record that was looked at, on the condition that it is still the same."""
        return Set(path, data, self._require(path).version)

    def put(self, path: str, data: bytes) -> Create | Set:
        """A write of a record that need not be there yet, on the condition that it is as it was looked at."""
        node = self._node(path)
        return Create(path, data) if node is None else Set(path, data, node.version)

    def data(self, path: str) -> bytes | None:
        """A record as it is, None if there is none."""
        node = self._node(path)
        return None if node is None else node.data

    def set_tx(self, record: TxRecord) -> Set:
        """A write of a transaction whose metadata stays what it is."""
        return self.set(self.life.tx(record.txid), codec.encode_tx(record, self.blob_ref(record.txid)))

    def blob_ref(self, txid: int) -> BlobRef | None:
        """Where a transaction's metadata is, if not in its record."""
        path = self.life.tx(txid)
        return codec.blob_of(self._require(path).data, path)

    def _node(self, path: str) -> Node | None:
        node = self._cache.node(path)
        if node is not None:
            self.used[path] = node.version
        return node

    def _require(self, path: str) -> Node:
        node = self._node(path)
        if node is None:
            raise CorruptRecordError(
                f"the ledger record {path} is missing", "Restore the ledger from a back-up; nothing is guessed."
            )
        return node

    def _blob(self, txid: int, ref: BlobRef) -> Positions:
        if ref.sha256 in self._cache.blobs:
            return self._cache.blobs[ref.sha256]
        paths = [self.life.chunk(codec.chunk_name(txid, ref, index)) for index in range(ref.chunks)]
        self._cache.fetch(paths)
        parts = [self._cache.node(path) for path in paths]
        if None in parts:
            raise _ChunkMissing
        packed = b"".join(part.data for part in parts if part is not None)
        return self._cache.remember(ref, codec.unpack_metadata(ref, packed, self.life.tx(txid)))


class _ChunkMissing(Exception):
    """Metadata that is kept apart was not found."""


class Cache:
    """Nodes as they were last seen. Outdated ones do no harm: every write is conditional on them."""

    def __init__(self, znodes: ZNodes) -> None:
        self._znodes = znodes
        self._nodes: dict[str, Node | None] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self.blobs: dict[str, Positions] = {}

    def remember(self, ref: BlobRef, positions: Positions) -> Positions:
        """Large metadata by its digest: it never changes, and costs a round trip and much decoding each time."""
        while len(self.blobs) >= _CACHED_BLOBS:
            del self.blobs[next(iter(self.blobs))]
        self.blobs[ref.sha256] = positions
        return positions

    def has(self, paths: Iterable[str], folders: Iterable[str]) -> bool:
        return all(path in self._nodes for path in paths) and all(path in self._folders for path in folders)

    def node(self, path: str) -> Node | None:
        self.fetch([path])
        return self._nodes[path]

    def node_now(self, path: str) -> Node | None:
        """As it is now, whatever is remembered."""
        self._nodes.pop(path, None)
        return self.node(path)

    def folder(self, path: str) -> frozenset[str]:
        if path not in self._folders:
            self.fetch([], [path])
        return self._folders[path]

    def fetch(self, paths: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Read what is not known yet, in one round trip."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._nodes]
        unread = [path for path in dict.fromkeys(folders) if path not in self._folders]
        if not missing and not unread:
            return
        if len(self._nodes) > _CACHED_NODES:
            self.forget()
            missing, unread = list(dict.fromkeys(paths)), list(dict.fromkeys(folders))
        reading = self._znodes.read(missing, unread)
        self._nodes.update(reading.nodes)
        for path, names in reading.folders.items():
            self._folders[path] = names or frozenset()

    def assume_missing(self, path: str) -> None:
        """Save a read of what is most likely not there; a `Create` of it finds out."""
        self._nodes.setdefault(path, None)

    def applied(self, writes: Iterable[Write]) -> None:
        for write in writes:
            folder, _, name = write.path.rpartition("/")
            known = self._folders.get(folder)
            if isinstance(write, Delete):
                self._nodes[write.path] = None
                if known is not None:
                    self._folders[folder] = known - {name}
            else:
                version = write.version + 1 if isinstance(write, Set) else 0
                self._nodes[write.path] = Node(write.data, version)
                if known is not None:
                    self._folders[folder] = known | {name}

    def forget(self) -> None:
        self._nodes.clear()
        self._folders.clear()


Plan: TypeAlias = Callable[[Snapshot], "Step[T] | Done[T]"]


class Transactor:
    """Runs verbs. One per ledger.

    :param deadline_s: how long one verb may take in all, lost answers and competition included.
    """

    def __init__(self, znodes: ZNodes, clock_ms: Callable[[], int], deadline_s: float) -> None:
        self._znodes = znodes
        self._clock_ms = clock_ms
        self._deadline_s = deadline_s
        self.cache = Cache(znodes)

    def fresh(self, life: Life, paths: Iterable[str] = (), folders: Iterable[str] = ()) -> Snapshot:
        """A snapshot that is at least as new as this call. It is not one moment: later paths may be newer.

        :raises UnknownTopologyError: the topology is gone.
        :raises FencedError: it was deleted and created again.
        """
        self.cache.forget()
        self.cache.fetch([life.topology, *paths], folders)
        node = self.cache.node(life.topology)
        name = life.topology.rpartition("/")[2]
        if node is None:
            raise UnknownTopologyError(f"there is no ledger of a topology {name!r}", "Run its coordinator first.")
        found = codec.decode_topology(node.data, life.topology).incarnation
        if found != life.incarnation:
            self.cache.forget()
            raise another_life(name, found, life.incarnation)
        return Snapshot(life, self.cache, self._clock_ms())

    def remembered(self, life: Life, paths: Sequence[str]) -> Snapshot:
        """A snapshot of what is remembered; what is not, is read."""
        if not self.cache.has([life.topology], ()):
            return self.fresh(life, paths)
        self.cache.fetch(paths)
        return Snapshot(life, self.cache, self._clock_ms())

    def run(self, life: Life, plan: Plan[T], *, paths: Iterable[str] = (), folders: Iterable[str] = ()) -> T:
        """Decide, write, and decide again while others get in between.

        A refusal or an answer without a write is never given on a remembered view: it is looked at anew first.

        :raises OutcomeUnknownError: the answer of the write was lost, and nothing answered before the deadline.
        :raises LedgerUnavailableError: others were faster until the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        remembered = self.cache.has([life.topology, *paths], folders)
        while True:
            snapshot = Snapshot(life, self.cache, self._clock_ms()) if remembered else self.fresh(life, paths, folders)
            try:
                decided = plan(snapshot)
            except TridentError as error:
                if not remembered and not (isinstance(error, CorruptRecordError) and self._moved(snapshot)):
                    raise
                remembered = False
                continue
            if isinstance(decided, Step):
                if self._submit(decided, snapshot, deadline):
                    return decided.result
            elif not remembered:
                return decided.result
            remembered = False
            if time.monotonic() > deadline:
                raise LedgerUnavailableError(
                    f"others kept changing {life.topology} for {self._deadline_s:g} s", "Run the same step again."
                )

    def _moved(self, snapshot: Snapshot) -> bool:
        """Did others write meanwhile? Then what looks damaged may be two moments seen as one: a record that was pruned
        between the look at the head and the look at the record is not missing."""
        now = self._znodes.read(list(snapshot.used)).nodes
        return any(node is None or node.version != snapshot.used[path] for path, node in now.items())

    def apply(self, ops: Sequence[Op], *, witness: str, op: str) -> bool:
        """Apply conditional writes that no verb decided on. True: applied; False: certainly not."""
        return self._applied(ops, witness, op, time.monotonic() + self._deadline_s)

    def _submit(self, step: Step[T], snapshot: Snapshot, deadline: float) -> bool:
        """True: applied, by this call. False: certainly not applied, decide again."""
        ops = conditional(step, snapshot.used)
        try:
            applied = self._applied(ops, step.witness, snapshot.op, deadline)
        except BaseException:
            self.cache.forget()
            raise
        if applied:
            self.cache.applied(step.writes)
        return applied

    def _applied(self, ops: Sequence[Op], witness: str, op: str, deadline: float) -> bool:
        in_doubt = False
        while True:
            try:
                self._znodes.multi(ops)
                return True
            except WriteRefusedError:
                # After a lost answer the refusal may be due to this operation's own first write.
                return in_doubt and self._is_marked(witness, op, deadline)
            except LedgerUnavailableError as error:  # nothing was sent this time
                if not in_doubt:
                    raise
                if time.monotonic() > deadline:
                    raise _unresolved(witness, error) from error
            except OutcomeUnknownError:
                in_doubt = True
                if self._is_marked(witness, op, deadline):
                    return True
                # Not applied yet. The same conditional write may be sent again: however many of them arrive, and
                # however late, only one can find its conditions fulfilled.
                if time.monotonic() > deadline:
                    raise

    def _is_marked(self, witness: str, op: str, deadline: float) -> bool:
        while True:
            try:
                node = self._znodes.read([witness]).nodes[witness]
            except LedgerUnavailableError as error:
                if time.monotonic() > deadline:
                    raise _unresolved(witness, error) from error
            else:
                return node is not None and codec.op_of(node.data, witness) == op


def another_life(topology: str, found: str, known: str) -> FencedError:
    return FencedError(
        f"topology {topology!r} was deleted and created again: it is now {found}, this was {known}",
        "Clear the whole run, its coordinator included.",
    )


def _unresolved(witness: str, error: LedgerUnavailableError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the answer to a write of {witness} was lost, and then: {error.message}",
        "Run the same step again: it finds out what happened.",
    )


def conditional(step: Step[T], used: Mapping[str, int]) -> list[Op]:
    """The step's writes and a check of everything else that was looked at."""
    written = {write.path for write in step.writes}
    checks = [
        Check(path, version) for path, version in used.items() if path not in written and path not in step.unchecked
    ]
    return [*checks, *step.writes]
