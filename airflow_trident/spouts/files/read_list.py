"""The exact list of the files that a stream has read: a record for each, in chunks in a folder of their own.

A record has 24 bytes: the mark of the file's name, the mark of its identity, and the mark of its content (zeros: none
was recorded). The newest records are in the metadata of the transaction itself. When these are too many, they become a
chunk, which is a head and records in the order of their names. A chunk is named by the digest of its head. The head
names the chunks before it, and has the digest of each block of records. So the metadata names one chunk, and with it
all that is below: a chunk that was exchanged, cut or lost is an error, and never a file that is read twice.

A new chunk takes in those before it that are not `FAN` times as large, as digits carry. So a list of n records has few
chunks, of which most are never written again.

A chunk is put before the transaction begins, and nothing refers to it before the ledger does. Two coordinators that
list the same files put the same chunk. If their files differ, the ledger takes one batch, and the other's chunk is
swept later. Nothing is locked.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import not_metadata_of
from airflow_trident.errors import ConfigurationError, CorruptRecordError, SourceChangedError
from airflow_trident.types import Json

if TYPE_CHECKING:
    import numpy as np

    from airflow_trident.io.place import Place

FAN = 8
MOST_RECORDS = 4 << 20
"""A chunk of that many records is not merged again: it has 100 MB."""
TAIL_RECORDS = 64
"""So many records are in the metadata, with 32 letters each."""
BLOCK_RECORDS = 1024
WHOLE_BYTES = 8 << 20
"""Chunks up to this size are read whole. Of larger ones blocks are read, if few names are asked for."""
NAME_BYTES, _STAMP, _CONTENT = 12, 6, 6
RECORD_BYTES = NAME_BYTES + _STAMP + _CONTENT
_BLOCK_BYTES = BLOCK_RECORDS * RECORD_BYTES
NO_CONTENT = bytes(_CONTENT)
_MAGIC = b"TRL1"
_BEGIN = len(_MAGIC) + 4
_BLOCK_DIGEST = 8
_HEAD_SLACK = 16 << 10
_AT_ONCE = 8
_APART_RECORDS, _OFTEN = 1 << 16, 8
_FILENAME_BYTES = 19 + 1 + 32
UPTO = "upto"
"""Key in the metadata of a transaction that began together with later ones: the txid of the last of them."""


def _digest(content: bytes, size: int = 16) -> bytes:
    return hashlib.blake2b(content, digest_size=size).digest()


def name_mark(path: str) -> bytes:
    return _digest(path.encode(errors="surrogateescape"), NAME_BYTES)


def identity_mark(identity: str) -> bytes:
    """Of what tells the file from another one of its name."""
    return _digest(identity.encode(), _STAMP)


def content_mark(digest: str) -> bytes:
    """Of the digest of a content; "": it has none."""
    return _digest(digest.encode(), _CONTENT) if digest else NO_CONTENT


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A file that was read. `name`, `stamp` and `content` are marks."""

    name: bytes
    stamp: bytes
    content: bytes = NO_CONTENT

    @classmethod
    def from_bytes(cls, content: bytes) -> ReadRecord:
        return cls(content[:NAME_BYTES], content[NAME_BYTES : NAME_BYTES + _STAMP], content[NAME_BYTES + _STAMP :])

    def to_bytes(self) -> bytes:
        return self.name + self.stamp + self.content


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's name: `txid` of the transaction that it was put for, `digest` of its head, and number of `records`."""

    txid: int
    digest: str
    records: int

    @property
    def file(self) -> str:
        return f"{self.txid:019d}-{self.digest}"

    def to_json(self) -> Json:
        return [self.txid, self.digest, self.records]

    @classmethod
    def from_json(cls, content: Any) -> Chunk:
        """:raises TypeError, ValueError: it is something else."""
        txid, digest, records = content
        return cls(int(txid), bytes.fromhex(digest).hex(), int(records))


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """What was read up to a transaction, as its metadata has it. `tail`: the newest records, those of later
    transactions behind those of earlier ones."""

    newest: Chunk | None = None
    tail: tuple[ReadRecord, ...] = ()

    def to_json(self) -> dict[str, Json]:
        tail = base64.b64encode(b"".join(record.to_bytes() for record in self.tail)).decode()
        return {"read": self.newest.to_json() if self.newest else None, "tail": tail}

    @classmethod
    def from_json(cls, metadata: Any) -> ReadPosition:
        """The inverse, from a whole metadata; None: nothing was read.

        :raises SourceChangedError: it is not the metadata of a FileSpout, or has no position.
        """
        if metadata is None:
            return cls()
        require_last(metadata)
        try:
            newest, tail = metadata["read"], base64.b64decode(metadata["tail"], validate=True)
            if len(tail) % RECORD_BYTES:
                raise ValueError(f"{len(tail)} bytes are no records")
            parts = (tail[at : at + RECORD_BYTES] for at in range(0, len(tail), RECORD_BYTES))
            chunk = None if newest is None else Chunk.from_json(newest)
            return cls(chunk, tuple(map(ReadRecord.from_bytes, parts)))
        except (KeyError, TypeError, ValueError) as error:
            raise not_metadata_of("a FileSpout") from error

    def with_newer(self, records: Iterable[ReadRecord]) -> ReadPosition:
        """With these records in the metadata itself, however many they are: no chunk is put."""
        tail = {record.name: record for record in (*self.tail, *records)}
        return ReadPosition(self.newest, tuple(tail.values()))


def position_in(metadata: Any) -> ReadPosition | None:
    """The position in a metadata of any spout; None: it has no list of read files."""
    if isinstance(metadata, dict) and {"files", "read", "tail"} <= metadata.keys():
        return ReadPosition.from_json(metadata)
    return None


def require_last(metadata: Any) -> None:
    """
    :raises SourceChangedError: the transaction began together with later ones, and is not the last of them.
    """
    if inner := inner_of(metadata):
        raise SourceChangedError(
            f"the recorded position is of a transaction that was begun with those up to {inner[UPTO]}, and only the "
            "last of them says which files had been read",
            "Put the ledger back from a backup (`airflow trident ledger import`), or bring the state up to that "
            "transaction.",
        )


def inner_of(metadata: Any) -> dict[str, Json]:
    """The part of the metadata besides its files, if the transaction began together with later ones and is not the last
    of them: only the metadata of the last one has what was read, for all of them. Otherwise empty."""
    return {UPTO: metadata[UPTO]} if isinstance(metadata, dict) and UPTO in metadata else {}


@dataclass(frozen=True, slots=True)
class _Head:
    """`older`: the chunks before this one, newest first; `blocks`: digests; `begin`: where the records begin."""

    older: tuple[Chunk, ...]
    blocks: bytes
    begin: int

    def has_block(self, number: int, content: bytes) -> bool:
        at = number * _BLOCK_DIGEST
        return _digest(content, _BLOCK_DIGEST) == self.blocks[at : at + _BLOCK_DIGEST]


@dataclass
class ReadList:
    """Answers what is in the list of `position`, and adds to it. `place`: of one stream of one incarnation alone; None:
    the metadata has all records.

    It keeps the chunks of its position that it has read or put, so in a drain a look asks for none.
    """

    place: Place | None = None
    position: ReadPosition = ReadPosition()
    _heads: dict[str, _Head] = field(default_factory=dict)
    _bodies: dict[str, bytes] = field(default_factory=dict)
    _records: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    def chunks(self) -> list[Chunk]:
        """Newest first.

        :raises CorruptRecordError: a chunk is lost or damaged.
        """
        newest = self.position.newest
        return [] if newest is None else [newest, *self._head(newest).older]

    def records_of(self, names: Iterable[bytes]) -> dict[bytes, ReadRecord]:
        """The newest record of each of these names that is in the list.

        :raises CorruptRecordError: a chunk is lost or damaged.
        """
        return {name: ReadRecord.from_bytes(record) for name, record in self.plain_records_of(names).items()}

    def plain_records_of(self, names: Iterable[bytes]) -> dict[bytes, bytes]:
        """The same as bytes: each look asks for all files that are there."""
        wanted = set(names)
        answers = {record.name: record.to_bytes() for record in self.position.tail if record.name in wanted}
        chunks, wanted = self.chunks(), wanted - answers.keys()
        missing = [chunk for chunk in chunks if chunk.digest not in self._bodies]
        if missing:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(partial(self._read_ahead, name_count=len(wanted)), missing))
        for chunk in chunks:
            part = self._by_blocks(chunk, wanted) if chunk.digest not in self._bodies else self._in_body(chunk, wanted)
            answers |= part
            wanted -= part.keys()
        return answers

    def _in_body(self, chunk: Chunk, wanted: set[bytes]) -> dict[bytes, bytes]:
        """If many names are asked for, all records are taken apart once, for this look and the next ones."""
        body = self._bodies[chunk.digest]
        records = self._records.get(chunk.digest)
        if records is None and chunk.records <= min(_APART_RECORDS, len(wanted) * _OFTEN):
            parts = (body[at : at + RECORD_BYTES] for at in range(0, len(body), RECORD_BYTES))
            records = self._records[chunk.digest] = {record[:NAME_BYTES]: record for record in parts}
        if records is None:
            return _records_in(body, wanted)
        return {name: records[name] for name in wanted & records.keys()}

    def missing(self, names: Iterable[bytes]) -> int:
        """How many names of the list are not among these.

        :raises CorruptRecordError: a chunk is lost or damaged.
        """
        import numpy as np

        tail = b"".join(record.to_bytes() for record in self.position.tail)
        read = [_rows_of(body)["name"] for body in (tail, *map(self._body, self.chunks()))]
        there = np.frombuffer(b"".join(names), f"S{NAME_BYTES}")
        return len(np.setdiff1d(np.concatenate(read), there))

    def add(self, txid: int, records: Iterable[ReadRecord]) -> ReadPosition:
        """The position with these records, which are read from now on. It is :attr:`position` from then on.

        :raises CorruptRecordError: a chunk that it takes in is lost or damaged.
        """
        fresh = {record.name: record for record in (*self.position.tail, *records)}
        if len(fresh) <= TAIL_RECORDS or (self.place is None and self.position.newest is None):
            self.position = ReadPosition(self.position.newest, tuple(fresh.values()))
        else:
            body = b"".join(sorted(record.to_bytes() for record in fresh.values()))
            self.position = ReadPosition(self._put(txid, body))
        return self.position

    def _put(self, txid: int, body: bytes) -> Chunk:
        older, parts, size = self.chunks(), [body], len(body) // RECORD_BYTES
        while older and older[0].records < FAN * size and size + older[0].records <= MOST_RECORDS:
            parts.append(self._body(older[0]))
            size += older[0].records
            older = older[1:]
        body = _merged(parts)
        blocks = b"".join(_digest(block, _BLOCK_DIGEST) for block in _blocks_of(body))
        head = json.dumps({"older": [chunk.to_json() for chunk in older], "blocks": blocks.hex()}).encode()
        chunk = Chunk(txid, _digest(head).hex(), len(body) // RECORD_BYTES)
        whole = _MAGIC + struct.pack("<I", len(head)) + head + body
        place = self._place()
        place.put(chunk.file, lambda file: file.write(whole))
        place.sync()
        live = {each.digest for each in older}
        self._heads = {digest: each for digest, each in self._heads.items() if digest in live}
        self._bodies = {digest: each for digest, each in self._bodies.items() if digest in live}
        self._records = {digest: each for digest, each in self._records.items() if digest in live}
        self._heads[chunk.digest] = _Head(tuple(older), blocks, _BEGIN + len(head))
        self._bodies[chunk.digest] = body
        return chunk

    def require_whole(self) -> None:
        """
        :raises CorruptRecordError: a chunk is lost or damaged.
        """
        for chunk in self.chunks():
            self._body(chunk)

    # ---- chunks ------------------------------------------------------------------------------------------------

    def _place(self) -> Place:
        if self.place is None:
            raise ConfigurationError(
                "the ledger names a list of read files, and this process was not given the folder of such lists",
                "Open the ledger by `ZooKeeperHook.get_ledger`, or give `open_ledger` the place as `sources_root`.",
            )
        return self.place

    def _read(self, chunk: Chunk, begin: int, end: int | None = None) -> bytes:
        try:
            return self._place().read(chunk.file, begin, end)
        except FileNotFoundError:
            raise self._damaged(chunk, "is not there") from None

    def _damaged(self, chunk: Chunk, problem: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._place().at(chunk.file)!r} {problem}: the list of the files that were read is not whole",
            "See that all machines share the folder of [trident] sources_dir. If it was lost, put it back from a "
            "backup; import a backup of the ledger, which has the list (`airflow trident ledger import`); or make the "
            "list anew from the files that are there: `airflow trident source mark-read TOPOLOGY STREAM`.",
        )

    def _head(self, chunk: Chunk) -> _Head:
        if chunk.digest in self._heads:
            return self._heads[chunk.digest]
        is_small = chunk.records * RECORD_BYTES <= WHOLE_BYTES
        expected = _BEGIN + chunk.records // BLOCK_RECORDS * 2 * _BLOCK_DIGEST + _HEAD_SLACK
        content = self._read(chunk, 0, None if is_small else expected)
        has_head = len(content) > _BEGIN and content.startswith(_MAGIC)
        size = struct.unpack_from("<I", content, len(_MAGIC))[0] if has_head else 0
        if _BEGIN + size > len(content) and not is_small:
            content += self._read(chunk, len(content), _BEGIN + size)
        text = content[_BEGIN : _BEGIN + size]
        if _digest(text).hex() != chunk.digest:
            raise self._damaged(chunk, "is not what its name says")
        parts = json.loads(text)
        older = tuple(map(Chunk.from_json, parts["older"]))
        head = _Head(older, bytes.fromhex(parts["blocks"]), _BEGIN + size)
        if is_small:
            self._bodies[chunk.digest] = self._checked(chunk, head, content[head.begin :], 0, len(head.blocks))
        self._heads[chunk.digest] = head
        return head

    def _read_ahead(self, chunk: Chunk, name_count: int) -> None:
        self._head(chunk)
        if name_count * BLOCK_RECORDS > chunk.records // 4:
            self._body(chunk)

    def _body(self, chunk: Chunk) -> bytes:
        head = self._head(chunk)
        if chunk.digest not in self._bodies:
            content = self._read(chunk, head.begin)
            self._bodies[chunk.digest] = self._checked(chunk, head, content, 0, len(head.blocks))
        return self._bodies[chunk.digest]

    def _checked(self, chunk: Chunk, head: _Head, content: bytes, first: int, digests: int) -> bytes:
        """
        :param first: the number of the first block in the content.
        :param digests: the size of the digests of its blocks.
        """
        blocks = _blocks_of(content)
        is_whole = len(blocks) == digests // _BLOCK_DIGEST
        if not is_whole or not all(head.has_block(first + at, block) for at, block in enumerate(blocks)):
            raise self._damaged(chunk, "is not what its name says")
        return content

    def _by_blocks(self, chunk: Chunk, names: Iterable[bytes]) -> dict[bytes, bytes]:
        answers: dict[bytes, bytes] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for part in pool.map(partial(self._by_block, chunk), names):
                answers |= part
        return answers

    def _by_block(self, chunk: Chunk, name: bytes) -> dict[bytes, bytes]:
        """Marks of names are spread evenly, so some hundreds of records hold the name: one request, seldom two."""
        head, last = self._head(chunk), (chunk.records - 1) // BLOCK_RECORDS
        middle = (int.from_bytes(name[:8], "big") * chunk.records >> 64) // BLOCK_RECORDS
        spread = int(chunk.records**0.5) // BLOCK_RECORDS + 1
        low, high = max(0, middle - spread // 2), min(last, middle + spread // 2)
        while True:
            body = self._read(chunk, head.begin + low * _BLOCK_BYTES, head.begin + (high + 1) * _BLOCK_BYTES)
            self._checked(chunk, head, body, low, (high + 1 - low) * _BLOCK_DIGEST)
            if low and name < body[:NAME_BYTES]:
                low, high = max(0, low - spread), low
            elif high < last and name > body[-RECORD_BYTES:][:NAME_BYTES]:
                low, high = high, min(last, high + spread)
            else:
                return _records_in(body, {name})


def sweep(place: Place, kept: Iterable[ReadPosition], last_txid: int) -> int:
    """Deletes the chunks of transactions up to `last_txid` that no position of `kept` names. Later ones may be of a
    coordinator whose transaction is not in the ledger yet.

    :param kept: of all transactions that the ledger has.
    :param last_txid: the last transaction in the ledger.
    :raises CorruptRecordError: a chunk that one of them names is lost or damaged.
    """
    from airflow_trident.io.place import discard

    reader, live = ReadList(place), set[str]()
    for position in kept:
        reader.position = position
        live |= {chunk.file for chunk in reader.chunks()}
    swept = [name for name in place.names() if name not in live and _txid_of(name) <= last_txid]
    discard(place, swept)
    place.sweep()
    return len(swept)


def _txid_of(name: str) -> int:
    """Of a chunk's file; of another file, a number that is higher than all."""
    txid = name.partition("-")[0]
    return int(txid) if len(name) == _FILENAME_BYTES and txid.isdigit() else 1 << 63


# ---- records ---------------------------------------------------------------------------------------------------


def _blocks_of(body: bytes) -> list[bytes]:
    return [body[at : at + _BLOCK_BYTES] for at in range(0, len(body), _BLOCK_BYTES)]


def _rows_of(body: bytes) -> np.ndarray[Any, Any]:
    import numpy as np

    return np.frombuffer(body, [("name", f"S{NAME_BYTES}"), ("rest", f"V{_STAMP + _CONTENT}")])


def _records_in(body: bytes, names: Iterable[bytes]) -> dict[bytes, bytes]:
    """The records of these names in a body, which is in the order of names."""
    import numpy as np

    wanted = list(names)
    if not wanted or not body:
        return {}
    places = np.searchsorted(_rows_of(body)["name"], np.frombuffer(b"".join(wanted), f"S{NAME_BYTES}"))
    answers: dict[bytes, bytes] = {}
    for name, place in zip(wanted, places.tolist(), strict=True):
        record = body[place * RECORD_BYTES : (place + 1) * RECORD_BYTES]
        if record[:NAME_BYTES] == name:
            answers[name] = record
    return answers


def _merged(bodies: Sequence[bytes]) -> bytes:
    """One body of several, newest first. Of records with one name the newest stays."""
    if len(bodies) == 1:
        return bodies[0]
    import numpy as np

    rows = _rows_of(b"".join(bodies))
    order = np.argsort(rows["name"], kind="stable")
    names = rows["name"][order]
    is_first = np.concatenate(([True], names[1:] != names[:-1]))
    return bytes(rows[order[is_first]].tobytes())
