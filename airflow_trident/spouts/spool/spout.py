"""A transactional spout over a source that cannot be replayed. Each batch is a durable file before it gets its txid.
After the commit the source is told that it may forget the batch.

The steps; a kill may come after each of them:

1. `poll`: the source gives items. If it can, it holds them until they are acknowledged.
2. The batch is written, synced and published by put-if-absent as the next file of the folder.
3. The ledger records the transaction with the file's number, rows and sha256. If the next file exists already, because
   a process died between 2 and 3 or another was faster, it is taken and nothing is polled.
4. After the commit a later coordinator acknowledges the batch, then leaves a mark beside the file. After a kill in
   between it is acknowledged again.

After a kill between 1 and 2 the source gives the items again; a source without `ack` has lost them.

The folder of a :class:`~airflow_trident.spouts.spool.spout.SpooledSpout`. ``<19 digits>.arrow`` is a batch.
``<19 digits>.acked`` marks that it is committed and acknowledged. Numbers have no gaps and are never used twice.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.arrow import arrow_schema, fitting, rows_to_table
from airflow_trident.io.object_stores import require_place
from airflow_trident.io.paths import AnyPath
from airflow_trident.io.place import Place
from airflow_trident.io.places import place_at
from airflow_trident.names import require_counts
from airflow_trident.protocol.txids import Txids
from airflow_trident.spouts.metadata import as_json, read_back
from airflow_trident.spouts.spool.sources import Polled, SpoolSource
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

PART_ROWS = 10_000
"""Rows of one record batch in a file: a worker reads this number at once."""
ID = "__trident_id"
"""The column of ids, if the source gives ids."""
_TOKEN = b"trident.token"
_WRITER = b"trident.writer"
_NAME = re.compile(r"(\d{19})\.(arrow|acked)\Z")


class SpooledBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"number": "batch"}):
    """The metadata of a batch: its number in the folder, and its rows and digest."""

    number: Annotated[int, msgspec.Meta(ge=1)]
    rows: int
    sha256: str


class SpooledIds:
    """The ids of a folder's batches. Remembered, since the file of a number never changes: each is read once."""

    def __init__(self) -> None:
        self._of_batches: dict[int, frozenset[str]] = {}
        self._counts: Counter[str] = Counter()

    def follow(self, numbers: Collection[int], read: Callable[[int], Iterable[str]]) -> None:
        """Read the batches that are new, and forget those that are gone.

        :param numbers: the batches in the folder now.
        """
        for number in self._of_batches.keys() - set(numbers):
            ids = self._of_batches.pop(number)
            self._counts.subtract(ids)
            for item_id in ids:
                if not self._counts[item_id]:
                    del self._counts[item_id]
        for number in sorted(set(numbers) - self._of_batches.keys()):
            self._of_batches[number] = frozenset(read(number))
            self._counts.update(self._of_batches[number])

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._counts

    def batches_with(self, ids: Collection[str]) -> set[int]:
        """The batches that have any of these."""
        wanted = frozenset(ids)
        return {number for number, of_batch in self._of_batches.items() if not of_batch.isdisjoint(wanted)}


@dataclass(frozen=True)
class Spool:
    """The folder. `schema`: of the rows; `keep`: how many acknowledged batches before the last one stay."""

    folder: Place
    schema: Schema
    keep: int
    _seen: SpooledIds = field(default_factory=SpooledIds, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Without the ids: readers elsewhere need none."""
        return {**self.__dict__, "_seen": SpooledIds()}

    # ---- writing -----------------------------------------------------------------------------------------------

    def append(self, polled: Polled) -> bool:
        """Write the rows that are not spooled yet as the next batch, durably; False: all of them were spooled.

        If another process takes the number first, the folder is read again: it may have written the same rows.

        :raises DamagedInputError: the rows do not fit the fields.
        """
        self.folder.check()
        while True:
            files, marks = self._listing()
            rows, ids = self._unknown(polled, files)
            if not rows:
                return False
            number = max(files | marks, default=0) + 1
            if self.folder.put_once(_name(number, "arrow"), self._content(rows, ids, polled.token)):
                return True

    def mark_acknowledged(self, number: int) -> None:
        """Mark the batch as committed and acknowledged, and remove marked batches that `keep` does not cover."""
        self.folder.put_once(_name(number, "acked"), b"")
        _, marks = self._listing()
        old = sorted(mark for mark in marks if mark < max(marks) - self.keep)
        # The marks go last: a batch with neither file nor mark would look lost.
        for kind in ("arrow", "acked") if old else ():
            self.folder.delete([_name(mark, kind) for mark in old])
        self.folder.sync()

    def _unknown(self, polled: Polled, numbers: Collection[int]) -> tuple[list[tuple[Any, ...]], list[str] | None]:
        if polled.ids is None:
            return list(polled.rows), None
        self._seen.follow(numbers, self._ids)
        new: dict[str, tuple[Any, ...]] = {}
        for row, item_id in zip(polled.rows, polled.ids, strict=True):
            if item_id not in self._seen:
                new.setdefault(item_id, row)
        return list(new.values()), list(new)

    def _content(self, rows: list[tuple[Any, ...]], ids: list[str] | None, token: Json) -> bytes:
        import pyarrow as pa

        problem = f"what the source of the spool {self.folder.where!r} gave does not fit its fields"
        with fitting(problem, self.schema, "Declare the fields as they come; nothing was spooled or acknowledged."):
            table = rows_to_table(self.schema, rows)
        if ids is not None:
            table = table.append_column(ID, pa.array(ids, pa.string()))
        # An answer that was lost is told by the content, so no two processes may publish the same one.
        table = table.replace_schema_metadata({_TOKEN: json.dumps(token).encode(), _WRITER: uuid.uuid4().bytes})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=PART_ROWS)
        content: bytes = sink.getvalue().to_pybytes()
        return content

    # ---- reading -----------------------------------------------------------------------------------------------

    def has(self, number: int) -> bool:
        """Is the batch spooled? False: it is the next one to be spooled.

        :raises SourceChangedError: the batch is gone, or lower ones are missing.
        """
        files, marks = self._listing()
        highest = max(files | marks, default=0)
        if number not in files and number != highest + 1:
            raise SourceChangedError(
                f"the next batch of the stream is number {number} of the spool {self.folder.where!r}, whose last is "
                f"{highest}{'' if number > highest else ', and which keeps it no longer'}: folder and ledger do not "
                "belong together",
                "Mount the right folder; for a new ledger, give the spout a new one.",
            )
        return number in files

    def batch(self, number: int) -> SpooledBatch:
        self.folder.sync()  # its writer may have been killed before the new name was durable
        content = self._read(number)
        return SpooledBatch(
            number, self._opened(number, content).read_all().num_rows, hashlib.sha256(content).hexdigest()
        )

    def parts(self, batch: SpooledBatch) -> list[str]:
        """A digest for each part of the batch, by which :meth:`part` checks it. The file is as it was recorded.

        :raises SourceChangedError: the file is gone or has changed, or the source declares other fields now.
        """
        content = self._read(batch.number)
        if hashlib.sha256(content).hexdigest() != batch.sha256:
            raise self._changed(batch.number)
        reader = self._opened(batch.number, content)
        names = [name for name in reader.schema.names if name != ID]
        if [reader.schema.field(name) for name in names] != list(arrow_schema(self.schema)):
            raise SourceChangedError(
                f"the file {self._path(batch.number)!r} has other fields than the source declares now",
                "Give the source the fields that it had until its spooled batches are committed.",
            )
        return [_digest(reader.get_batch(part)) for part in range(reader.num_record_batches)]

    def part(self, number: int, part: int, digest: str) -> pa.RecordBatch:
        """One part of a batch. Nothing else of its file is read.

        :raises SourceChangedError: the file is gone, or the part has changed.
        """
        import pyarrow as pa

        path = self._path(number)
        try:
            with _reading(), self.folder.open(_name(number, "arrow"), whole=False) as file:
                batch: pa.RecordBatch = pa.ipc.open_file(file).get_batch(part)
                if _digest(batch) == digest:
                    return batch
        except FileNotFoundError as error:
            raise self._gone(path) from error
        except (pa.ArrowException, ValueError) as error:
            raise self._changed(number) from error
        except OSError as error:
            if error.errno is None:  # from Arrow, about the content of the file
                raise self._changed(number) from error
            raise _unreadable(path, error) from error
        raise self._changed(number)

    def token(self, number: int) -> Json:
        token: Json = json.loads((self._opened(number, self._read(number)).schema.metadata or {})[_TOKEN])
        return token

    def is_acknowledged(self, number: int) -> bool:
        """Is the batch committed and acknowledged? Also true for a batch that is no longer kept."""
        files, marks = self._listing()
        return number in marks or (number not in files and number < max(marks, default=0))

    def waiting(self, ids: Collection[str]) -> list[int]:
        """The batches that have any of these rows and are not acknowledged."""
        files, marks = self._listing()
        self._seen.follow(files, self._ids)
        return sorted(self._seen.batches_with(ids) - marks)

    def _ids(self, number: int) -> list[str]:
        try:
            reader = self._opened(number, self._read(number))
        except SourceChangedError:
            return []  # removed in the meantime
        if ID not in reader.schema.names:
            return []
        return [
            row_id for part in range(reader.num_record_batches) for row_id in reader.get_batch(part)[ID].to_pylist()
        ]

    def _opened(self, number: int, content: bytes) -> pa.ipc.RecordBatchFileReader:
        import pyarrow as pa

        try:
            return pa.ipc.open_file(content)
        except pa.ArrowException as error:
            raise DamagedInputError(
                f"the file {self._path(number)!r} is no whole batch ({error})",
                "Put it back as it was. If no transaction has it yet, remove it: the source was not told to forget it.",
            ) from error

    # ---- the folder --------------------------------------------------------------------------------------------

    def _read(self, number: int) -> bytes:
        path = self._path(number)
        try:
            with _reading(), self.folder.open(_name(number, "arrow")) as file:
                return file.read()
        except FileNotFoundError as error:
            raise self._gone(path) from error
        except OSError as error:
            raise _unreadable(path, error) from error

    def _gone(self, path: str) -> SourceChangedError:
        return SourceChangedError(
            f"the file {path!r}, which the transaction recorded, is gone", "Put it back as it was and replay."
        )

    def _changed(self, number: int) -> SourceChangedError:
        return SourceChangedError(
            f"the file {self._path(number)!r} changed since the transaction recorded it",
            "Put it back as it was and replay.",
        )

    def _path(self, number: int) -> str:
        """For people."""
        return f"{self.folder.where.rstrip('/')}/{_name(number, 'arrow')}"

    def _listing(self) -> tuple[set[int], set[int]]:
        """The numbers that have a file, and the numbers that have a mark."""
        with _reading():
            matches = [match for match in map(_NAME.match, self.folder.names()) if match]
        files, marks = ({int(match[1]) for match in matches if match[2] == kind} for kind in ("arrow", "acked"))
        return files, marks


def _name(number: int, kind: str) -> str:
    return f"{number:019d}.{kind}"


def _digest(batch: pa.RecordBatch) -> str:
    return hashlib.sha256(memoryview(batch.serialize())).hexdigest()


@contextmanager
def _reading() -> Iterator[None]:
    """To a spout, a folder that does not answer is a source that does not."""
    try:
        yield
    except StoreUnavailableError as error:
        raise SourceUnavailableError(error.message, error.cure) from None


def _unreadable(path: str, error: OSError) -> SourceUnavailableError:
    return SourceUnavailableError(
        f"the file {path!r} cannot be read ({error.strerror or error})", "Let this user read it."
    )


_log = logging.getLogger(__name__)


class SpooledSpout(Spout):
    """Batches of a source, written to a folder first.

    :param source: a :class:`SpoolSource`.
    :param folder: for this stream alone, the same for coordinators, workers and executors; durable storage. Or
        ``s3://[connection@]bucket/folder``, ``abfs://[connection@]container/folder`` or
        ``gs://[connection@]bucket/folder``, as a text or as Airflow's ObjectStoragePath, or
        ``hdfs://[connection@]/folder``.
    :param max_rows: how many rows the source is asked for in one batch.
    :param keep: the last committed batch and this number before it are kept, to be read again and to know their ids; a
        batch that is not acknowledged is always kept.
    """

    def __init__(self, source: SpoolSource, folder: AnyPath, *, max_rows: int = 10_000, keep: int = 20) -> None:
        if not isinstance(source, SpoolSource):
            raise ConfigurationError(f"SpooledSpout of {source!r}", "Give it a CallableSource or another SpoolSource.")
        require_counts("SpooledSpout", max_rows=max_rows, keep=keep)
        self._source, self._max_rows = source, max_rows
        place = place_at(require_place("SpooledSpout", folder), "the spool")
        self._spool = Spool(place, source.schema, keep)

    @property
    def schema(self) -> Schema:
        return self._source.schema

    def placed(self, topology: str, stream: str) -> SpooledSpout:
        made = copy.copy(self)
        made._source = self._source.placed(topology, stream)
        return made

    def coordinator(self) -> SpoolCoordinator:
        return SpoolCoordinator(self._source, self._spool, self._max_rows)

    def emitter(self) -> SpoolEmitter:
        return SpoolEmitter(self._spool)

    def describe(self) -> str:
        return f"SpooledSpout({self._source.describe()}, {self._spool.folder.where})"


@dataclass(frozen=True)
class SpoolCoordinator(Coordinator):
    """Metadata: :class:`airflow_trident.spouts.spool.spout.SpooledBatch`."""

    source: SpoolSource
    spool: Spool
    max_rows: int
    passed: dict[int, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Batch -> its transaction, which others pass, as the ledger last said."""

    def is_ready(self, previous: Json) -> bool:
        """Polls if nothing is spooled: what it gets is not lost, it is the next batch."""
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """May be called any number of times: its only effect is a file, which the next call finds.

        :raises SourceChangedError: the folder is not the one that the ledger knows.
        """
        wanted = 1 if previous is None else _batch(previous).number + 1
        if not self.spool.has(wanted) and not self._fill():
            return None
        return as_json(self.spool.batch(wanted))

    def _fill(self) -> bool:
        seen: set[str] = set()
        while True:
            polled = self.source.poll(self.max_rows)
            if polled is None or not polled.rows:
                return False
            is_new = self.spool.append(polled)
            self.source.spooled()
            if is_new:
                return True
            if polled.token is None:
                return False
            # All rows were spooled before. If they are committed, the source may forget them; otherwise it keeps them.
            ids = set(polled.ids or ())
            waiting = self.spool.waiting(ids)
            if not waiting:
                self.source.ack(polled.token)
            if not waiting or len(polled.rows) < self.max_rows or not self.passed.keys() >= set(waiting):
                return False
            # Nobody is going to commit them now, and there may be others: a source that hides what it gave gives those.
            if ids <= seen:
                raise self._stands_still(waiting)
            seen |= ids

    def _stands_still(self, waiting: Sequence[int]) -> SourceUnavailableError:
        txids = Txids.of(*(self.passed[number] for number in waiting))
        return SourceUnavailableError(
            f"{self.source.describe()} gives the same items again and again, as many as it is asked for "
            f"({self.max_rows}): those of what was SKIPPED or CLOSED (transactions: {txids}), which are not "
            "acknowledged. What is behind them stays unseen",
            "Let the source hide for some time what it gave, or poll for what is behind that. Or backfill what is "
            "SKIPPED, and delete the items of what is CLOSED.",
        )

    def skipped(self, batches: Mapping[int, Json]) -> None:
        self.passed.clear()
        self.passed.update({_batch(metadata).number: txid for txid, metadata in batches.items()})

    def success(self, txid: int, metadata: Json) -> None:
        number = _batch(metadata).number
        if self.spool.is_acknowledged(number):
            return
        token = self.spool.token(number)
        if token is not None:
            self.source.ack(token)
        self.spool.mark_acknowledged(number)

    def close(self) -> None:
        """Spools what the source still gives at its end: the next coordinator takes it, as after a kill at step 2."""
        with closing(self.source):
            rest = self.source.rest()
            if rest is None or not rest.rows:
                return
            try:
                self.spool.append(rest)
            except TridentError as error:  # not raised: what the coordinator was opened for is done, or has failed
                _log.warning(
                    "%s: %d rows that came at its end are lost: %s", self.source.describe(), len(rest.rows), error
                )


@dataclass(frozen=True)
class SpoolEmitter(Emitter):
    """One split for each record batch of the file."""

    spool: Spool

    def splits(self, metadata: Json) -> list[Split]:
        batch = _batch(metadata)
        return [
            Split(index, {"batch": batch.number, "part": index, "sha256": digest})
            for index, digest in enumerate(self.spool.parts(batch))
        ]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        assert isinstance(split.body, dict)
        number, part, digest = split.body["batch"], split.body["part"], split.body["sha256"]
        assert isinstance(number, int)
        assert isinstance(part, int)
        batch = self.spool.part(number, part, str(digest))
        yield batch.select([field.name for field in self.spool.schema])


def _batch(metadata: Json) -> SpooledBatch:
    return read_back(SpooledBatch, metadata, "a SpooledSpout")
