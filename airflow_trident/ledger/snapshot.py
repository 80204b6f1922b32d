"""What a verb looks at: the ledger's records as they were last seen, and a note of what the verb looked at.

The names below a node, in order, as last seen. There may be very many, so a step's work must not grow with them.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from airflow_trident.errors import CorruptRecordError
from airflow_trident.ledger.layout import LedgerPaths, kept_apart
from airflow_trident.ledger.znodes import Create, Delete, Set, ZNode, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.codec import ClaimKey
from airflow_trident.protocol.metadata import (
    BaseRef,
    BlobRef,
    Earlier,
    Positions,
    plain_metadata,
    unpack_metadata,
    unpacked,
)
from airflow_trident.protocol.partition_keys import NO_ENTRY, PartitionEntry, decode_keys, encode_keys
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, StagedRef, TopologyRecord, TxRecord


class FolderNames(Collection[str]):
    """Sorted once, when first asked for. A change then only moves the names behind it, which copies memory."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._seen: Iterable[str] = names
        self._in_order: list[str] | None = None

    @property
    def _names(self) -> list[str]:
        if self._in_order is None:
            self._in_order = sorted(self._seen)
            self._seen = ()
        return self._in_order

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._place(name) is not None

    def upto(self, name: str) -> int:
        """How many names are at or before `name`."""
        return bisect_right(self._names, name)

    def starting_with(self, prefix: str) -> Iterator[str]:
        for place in range(bisect_left(self._names, prefix), len(self._names)):
            if not self._names[place].startswith(prefix):
                return
            yield self._names[place]

    def differing(self, written: Mapping[str, bool]) -> dict[str, bool]:
        """The entries of `written` that are news here: name -> whether it exists."""
        return {name: is_there for name, is_there in written.items() if is_there != (name in self)}

    def after(self, written: Mapping[str, bool]) -> FolderNames:
        """A copy with these changes; itself if there are none."""
        news = self.differing(written)
        if not news:
            return self
        copied = FolderNames(self._names)
        copied.change(news)
        return copied

    def change(self, written: Mapping[str, bool]) -> None:
        news = self.differing(written)
        for name in sorted(name for name, is_there in news.items() if is_there):
            self._names.insert(bisect_left(self._names, name), name)
        removed_indexes = sorted(bisect_left(self._names, name) for name, is_there in news.items() if not is_there)
        while removed_indexes:  # those that follow on each other go at once: what stands behind them is moved once
            last = removed_indexes.pop()
            first = last
            while removed_indexes and removed_indexes[-1] == first - 1:
                first = removed_indexes.pop()
            del self._names[first : last + 1]

    def _place(self, name: str) -> int | None:
        place = bisect_left(self._names, name)
        return place if place < len(self._names) and self._names[place] == name else None


T = TypeVar("T")
Write: TypeAlias = Create | Set | Delete
_CACHED_NODES = 2_000
"""A larger cache is dropped: otherwise a long-lived process would keep every transaction that it ever saw."""

_CACHED_NODE_BYTES = 32 * 2**20
_CACHED_BLOB_BYTES = 16 * 2**20


class Snapshot:
    """The records that a verb may look at; the snapshot remembers which it looked at. Missing nodes are read on
    demand."""

    def __init__(
        self, paths: LedgerPaths, cache: Cache, now_ms: int, *, op: str = "", drafted: Mapping[str, Write] | None = None
    ) -> None:
        self.paths = paths
        self.now_ms = now_ms
        self._op = op
        self.used: dict[str, int] = {}
        self._cache = cache
        self._drafted = drafted or {}

    @property
    def op(self) -> str:
        """The id of this operation. It is made when it is first used: most snapshots are only read and need none."""
        if not self._op:
            self._op = uuid.uuid4().hex[:16]
        return self._op

    def after(self, drafted: Mapping[str, Write]) -> Snapshot:
        """The snapshot as it will be after these writes, by their paths, which belong to the same step."""
        return Snapshot(self.paths, self._cache, self.now_ms, op=self.op, drafted=drafted)

    def topology(self) -> TopologyRecord:
        return self._decoded(self.paths.topology, codec.decode_topology)

    def next_txid(self) -> int:
        return self._decoded(self.paths.head, codec.decode_head)

    def pointer(self) -> CommitPointer:
        return self._decoded(self.paths.commit, codec.decode_pointer)

    def exceptions(self) -> Exceptions:
        return self._decoded(self.paths.exceptions, codec.decode_exceptions)

    def claim(self, key: str) -> ClaimKey | None:
        path = self.paths.claim(key)
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

    def keys(self, path: str) -> Mapping[str, PartitionEntry]:
        """The partition keys in a record of the index."""
        node = self._node(path)
        return {} if node is None else self._cache.decoded(path, node.data, decode_keys)

    def entry(self, key: str) -> PartitionEntry:
        """The entry of a partition key in the index."""
        return self.keys(self.paths.period(key)).get(key, NO_ENTRY)

    def put_entry(self, key: str, entry: PartitionEntry) -> Create | Set:
        path = self.paths.period(key)
        return self.put(path, encode_keys({**self.keys(path), key: entry}))

    def tx(self, txid: int) -> TxRecord | None:
        path = self.paths.tx(txid)
        node = self._node(path)
        if node is None:
            return None
        try:
            return codec.decode_tx(node.data, path, lambda ref: self._blob(txid, ref))
        except (_ChunkMissing, CorruptRecordError) as error:
            # One step deletes or rewrites a record with its chunks. The record may have been read before such a step,
            # the chunks after it.
            now = self._cache.node_now(path)
            if now is None:
                return None
            if now.version != node.version:
                for ref in (codec.blob_of(node.data, path), codec.blob_of(now.data, path)):
                    self._cache.drop(self.paths.chunks_of(txid, ref) if ref else ())
                return self.tx(txid)
            if isinstance(error, CorruptRecordError):
                raise
            raise CorruptRecordError(
                f"a chunk of the metadata of {path} is missing",
                "Restore the ledger from a back-up; nothing is guessed.",
            ) from None

    def light_tx(self, txid: int) -> TxRecord | None:
        """The record without the metadata that it keeps apart, which may be megabytes."""
        path = self.paths.tx(txid)
        node = self._node(path)
        return None if node is None else codec.decode_tx(node.data, path, lambda _ref: ({}, {}))

    def view(self, txid: int) -> LedgerView:
        """Reads in an order that cannot mislead: the transaction after the head, so a missing transaction was
        pruned."""
        topology, next_txid = self.topology(), self.next_txid()
        pointer, exceptions = self.pointer(), self.exceptions()
        tx = self.tx(txid) if txid >= 1 else None
        return LedgerView(topology=topology, next_txid=next_txid, pointer=pointer, exceptions=exceptions, tx=tx)

    def names(self, folder: str) -> FolderNames:
        return self._cache.folder(folder).after(_below(self._drafted.values()).get(folder, {}))

    def prefetch(self, paths: Iterable[str]) -> None:
        """Reads these together, because they are needed next."""
        self._cache.fetch(paths)

    def prefetch_transactions(self, txids: Iterable[int]) -> None:
        """Reads these records together, and then the metadata that they keep apart."""
        paths = {txid: self.paths.tx(txid) for txid in txids if txid >= 1}
        self._cache.fetch(paths.values())
        seen = ((txid, path, self._seen(path)) for txid, path in paths.items())
        apart = ((txid, codec.blob_of(node.data, path)) for txid, path, node in seen if node)
        self._fetch_chunks(path for txid, ref in apart if ref for path in self._unread_chunks(txid, ref))

    def set(self, path: str, data: bytes) -> Set:
        """A write of a record that was looked at, on the condition that it has not changed."""
        return Set(path, data, self._require(path).version)

    def put(self, path: str, data: bytes) -> Create | Set:
        """A write of a record that may not exist yet, on the condition that it has not changed since the look."""
        node = self._node(path)
        return Create(path, data) if node is None else Set(path, data, node.version)

    def data(self, path: str) -> bytes | None:
        """The bytes of a record; None if it does not exist."""
        node = self._node(path)
        return None if node is None else node.data

    def set_tx(self, record: TxRecord) -> Set:
        """A write of a transaction whose metadata stays the same."""
        return self.set(self.paths.tx(record.txid), codec.encode_tx(record, self.blob_ref(record.txid)))

    def blob_ref(self, txid: int) -> BlobRef | None:
        """Where a transaction's metadata is, if it is not in its record."""
        path = self.paths.tx(txid)
        return codec.blob_of(self._require(path).data, path)

    def keep_apart(self, record: TxRecord, earlier: Earlier | None = None) -> tuple[BlobRef | None, list[Create]]:
        """Where metadata goes that is too large for its record, and what creates the chunks. The writer need not read
        it again."""
        ref, chunks = kept_apart(self.paths, record, earlier)
        if ref is not None:
            self._cache.remember(ref, (record.metadata, record.carried))
            if ref.base is not None and not ref.chunks:
                self._cache.remember_base(ref.base, plain_metadata(record))
        return ref, chunks

    def staged_chunk(self, staged: StagedRef) -> list[Create]:
        """What creates the chunk of a staged batch, if the ledger is to keep it; empty if an earlier step did."""
        path = self.paths.chunk(staged.chunk)
        return [Create(path, staged.content)] if staged.content and self._node(path) is None else []

    def shareable(self, record: TxRecord) -> Earlier | None:
        """What the next transaction's metadata may share with this one's, if this one's is kept apart."""
        ref = self.blob_ref(record.txid)
        return None if ref is None else self.shared_by(record, ref)

    def shared_by(self, record: TxRecord, ref: BlobRef) -> Earlier:
        if ref.base is None:
            return Earlier(plain=plain_metadata(record))
        return Earlier(plain=self._base(record.txid, ref.base), base=ref.base, patched=ref.patched)

    def _decoded(self, path: str, decode: Callable[[bytes, str], T]) -> T:
        return self._cache.decoded(path, self._require(path).data, decode)

    def _node(self, path: str) -> ZNode | None:
        node = self._seen(path)
        if node is not None and path not in self._drafted:  # the drafted write has a condition of its own
            self.used[path] = node.version
        return node

    def _seen(self, path: str) -> ZNode | None:
        write = self._drafted.get(path)
        if write is None:
            return self._cache.node(path)
        if isinstance(write, Delete):
            return None
        return ZNode(write.data, write.version if isinstance(write, Set) else 0)

    def _require(self, path: str) -> ZNode:
        node = self._node(path)
        if node is None:
            raise CorruptRecordError(
                f"the ledger record {path} is missing", "Restore the ledger from a back-up; nothing is guessed."
            )
        return node

    def _blob(self, txid: int, ref: BlobRef) -> Positions:
        remembered = self._cache.blob(ref)
        if remembered is not None:
            return remembered
        self._fetch_chunks(self._unread_chunks(txid, ref))
        base = self._base(txid, ref.base) if ref.base else b""
        packed = self._packed(self.paths.chunks_of(txid, ref))
        return self._cache.remember(ref, unpack_metadata(ref, packed, self.paths.tx(txid), base))

    def _base(self, txid: int, ref: BaseRef) -> bytes:
        """The plain JSON that the metadata of `txid` shares with others."""
        remembered = self._cache.base(ref)
        if remembered is not None:
            return remembered
        paths = self.paths.chunks_of(ref.txid, ref)
        self._fetch_chunks(paths)
        return self._cache.remember_base(ref, unpacked(self._packed(paths), self.paths.tx(txid)))

    def _packed(self, paths: Iterable[str]) -> bytes:
        parts = [self._seen(path) for path in paths]
        if None in parts:
            raise _ChunkMissing
        return b"".join(part.data for part in parts if part is not None)

    def _unread_chunks(self, txid: int, ref: BlobRef) -> list[str]:
        if self._cache.blob(ref):
            return []
        base = ref.base if ref.base is not None and self._cache.base(ref.base) is None else None
        return [*self.paths.chunks_of(txid, ref), *(self.paths.chunks_of(base.txid, base) if base else ())]

    def _fetch_chunks(self, paths: Iterable[str]) -> None:
        self._cache.fetch(path for path in paths if path not in self._drafted)


def _below(writes: Iterable[Write]) -> dict[str, dict[str, bool]]:
    """Folder -> the names in it that are written -> does the node exist afterwards?"""
    names_by_folder: dict[str, dict[str, bool]] = {}
    for write in writes:
        folder, _, name = write.path.rpartition("/")
        names_by_folder.setdefault(folder, {})[name] = not isinstance(write, Delete)
    return names_by_folder


class _ChunkMissing(Exception):
    """A chunk of metadata that is kept apart was not found."""


class Cache:
    """Nodes as they were last seen. Outdated ones do no harm: every write is conditional on their versions."""

    def __init__(self, znodes: ZNodes) -> None:
        self._znodes = znodes
        self._nodes: dict[str, ZNode | None] = {}
        self._node_bytes = 0
        """An upper bound: overwritten data count until everything is forgotten."""
        self._folders: dict[str, FolderNames] = {}
        self._decoded: dict[str, tuple[bytes, Any]] = {}
        self._blobs: dict[BlobRef, Positions] = {}
        self._blob_bytes = 0
        self._base: tuple[BaseRef, bytes] | None = None

    def decoded(self, path: str, data: bytes, decode: Callable[[bytes, str], T]) -> T:
        """Every step looks at these records: decodes one only once, as long as it stays the same. The result must be
        immutable, because it is shared."""
        remembered = self._decoded.get(path)
        if remembered is None or remembered[0] != data:
            remembered = self._decoded[path] = (data, decode(data, path))
        record: T = remembered[1]
        return record

    def blob(self, ref: BlobRef) -> Positions | None:
        return self._blobs.get(ref)

    def remember(self, ref: BlobRef, positions: Positions) -> Positions:
        """Keeps large metadata by its digest: it never changes, and reading it again costs a round trip and much
        decoding."""
        if ref not in self._blobs:
            self._blobs[ref] = positions
            self._blob_bytes += ref.bytes
        while self._blob_bytes > _CACHED_BLOB_BYTES and len(self._blobs) > 1:
            oldest = next(iter(self._blobs))
            del self._blobs[oldest]
            self._blob_bytes -= oldest.bytes
        return positions

    def base(self, ref: BaseRef) -> bytes | None:
        return self._base[1] if self._base is not None and self._base[0] == ref else None

    def remember_base(self, ref: BaseRef, plain: bytes) -> bytes:
        """Keeps the last base only: transactions that are processed at the same time share it."""
        self._base = (ref, plain)
        return plain

    def has(self, paths: Iterable[str], folders: Iterable[str]) -> bool:
        return all(path in self._nodes for path in paths) and all(path in self._folders for path in folders)

    def node(self, path: str) -> ZNode | None:
        if path not in self._nodes:
            self.fetch([path])
        return self._nodes[path]

    def node_now(self, path: str) -> ZNode | None:
        """The node as it is now, whatever is remembered."""
        self.drop([path])
        return self.node(path)

    def drop(self, paths: Iterable[str]) -> None:
        """They are read again when they are needed."""
        for path in paths:
            self._nodes.pop(path, None)

    def folder(self, path: str) -> FolderNames:
        if path not in self._folders:
            self.fetch([], [path])
        return self._folders[path]

    def fetch(self, paths: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Reads what is not known yet, in one round trip."""
        missing = [path for path in dict.fromkeys(paths) if path not in self._nodes]
        unread = [path for path in dict.fromkeys(folders) if path not in self._folders]
        if not missing and not unread:
            return
        if len(self._nodes) > _CACHED_NODES or self._node_bytes > _CACHED_NODE_BYTES:
            self.forget()
            missing, unread = list(dict.fromkeys(paths)), list(dict.fromkeys(folders))
        reading = self._znodes.read(missing, unread)
        self._nodes.update(reading.nodes)
        self._node_bytes += sum(len(node.data) for node in reading.nodes.values() if node is not None)
        for path, names in reading.folders.items():
            self._folders[path] = FolderNames(names or ())

    def assume_missing(self, path: str) -> None:
        """Saves a read of a node that most likely does not exist; a `Create` of it finds out."""
        self._nodes.setdefault(path, None)

    def applied(self, writes: Iterable[Write]) -> None:
        written = tuple(writes)
        for write in written:
            if isinstance(write, Delete):
                self._nodes[write.path] = None
            else:
                self._nodes[write.path] = ZNode(write.data, write.version + 1 if isinstance(write, Set) else 0)
                self._node_bytes += len(write.data)
        for folder, names in _below(written).items():
            if folder in self._folders:
                self._folders[folder].change(names)

    def forget(self) -> None:
        self._nodes.clear()
        self._node_bytes = 0
        self._folders.clear()
