"""A spout of files: text, CSV, JSON lines and Parquet, in batches, oldest first.

Transactional: the metadata of a batch names its files with size, time and digest, so a listing that changes between
attempts cannot change a batch. Files must appear complete (written elsewhere and moved in, or under a temporary name),
and must not change as long as their transaction may be replayed. Objects of a store are files, too.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.contracts.spout import Coordinator, Spout, one_of, require_at_least, require_simple_types
from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.paths import AnyPath, is_hdfs_uri, is_object_uri, require_local_path, text_of_path
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.spouts.files.batch_limits import BatchLimits, LateFiles
from airflow_trident.spouts.files.consumed import (
    ORDERED,
    UPTO,
    ChosenFiles,
    Consumed,
    consumed_from_json,
    inner_of,
    next_batch,
)
from airflow_trident.spouts.files.contents import DIGEST_BYTES, recorded_files
from airflow_trident.spouts.files.emitter import FileEmitter
from airflow_trident.spouts.files.file_source import FileSource, LocalFiles
from airflow_trident.spouts.files.hdfs_files import HdfsFiles
from airflow_trident.spouts.files.listing import FilePattern, Listing
from airflow_trident.spouts.files.marks import name_mark, object_mark
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.ordered import (
    ChosenInOrder,
    ReadInOrder,
    next_in_order,
    read_in_order_from_json,
)
from airflow_trident.spouts.files.path_fields import PathFields
from airflow_trident.spouts.files.reading import CsvDialect, FileFormat, ReadOptions
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

_log = logging.getLogger(__name__)
DEFAULT_MAX_FILES = 1000
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_SPLIT_BYTES = 32 << 20
LARGE_FOLDER_FILES = 100
LISTING_AGE = 20
SHORT_LISTING_AGE, SHORT_LISTING_S = 100, 5.0
"""A listing that took milliseconds is kept longer, up to SHORT_LISTING_S seconds: otherwise listing would take a
twentieth of the time, half of what a drain may add to a small transaction. A long listing is not kept that long: files
that come late would be noticed too late."""


class FileSpout(Spout):
    """Reads the files that a path means, each in exactly one transaction.

    :param path: a file, a folder (its files; with `recursive` also those of its folders), or a pattern with ``*``,
        ``?``, ``[...]``, ``**``. It may begin with ``~``. A relative path is below the working directory of the process
        that uses it. Names that begin with ``.`` or ``_`` and files that end with ``.tmp``, ``.part``, ``._COPYING_``
        are left out. Or ``s3://[connection@]bucket/``, ``abfs://[connection@]container/`` or ``gs://[connection@]bucket/``
        with a folder or a pattern, as a text or as Airflow's ObjectStoragePath; or ``hdfs://[connection@]/``.
    :param format: ``text`` (one tuple for each line), ``csv``, ``json`` (one object in each line) or ``parquet``. Text,
        csv and json files that are packed by gzip, zstd, bzip2 or xz are unpacked, whatever their names are.
    :param fields: the columns with their types; for text one string field, by default ``"line string"``.
    :param partition_fields: more fields, whose values are in the paths: ``"day date"`` of folders ``day=2026-01-31``,
        as Hive and Spark write them. ``_file`` is the file's name, with the folders below the path.
    :param max_files, max_bytes: of one batch; a single larger file is a batch by itself.
    :param min_age_s: younger files are left for later.
    :param late_window_s: how much older than the newest read file a new file may be and still be recognised as new. In
        an HDFS, where files keep their times when they are moved, all files are within it.
    :param late_files: what to do with older files, which may be new or only touched: ``error``, ``take`` or ``ignore``.
    :param header: the first record of a csv file names its columns.
    :param delimiter, quote, escape, null: how csv files are written, if not as RFC 4180 has it
        (:class:`airflow_trident.spouts.files.reading.CsvDialect`).
    :param extra_columns: undeclared columns are an ``error``, or ``ignore`` them.
    :param split_bytes: larger text and json files are read in several splits.
    :param encoding_errors: for text, bytes that are not UTF-8 are an ``error``, or ``replace`` reads U+FFFD.
    :param digest_bytes: of larger files no digest of the content is recorded: they are identified by size and time
        alone. Of objects the ETag is recorded, whatever their size.
    :param ordered_names: for objects: the name of a new object always sorts after the names of all objects that are
        older than the newest read one by more than `late_window_s`. Then a listing begins after those, and batches are
        in the order of names.
    :raises ConfigurationError: an argument is wrong, or arguments contradict each other.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        format: str = "text",
        fields: FieldSpec | None = None,
        partition_fields: FieldSpec = (),
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_age_s: float = 0.0,
        late_window_s: float = 3600.0,
        late_files: str = "error",
        header: bool = True,
        delimiter: str = ",",
        quote: str | None = '"',
        escape: str | None = None,
        null: str | None = None,
        recursive: bool = False,
        extra_columns: str = "error",
        split_bytes: int = DEFAULT_SPLIT_BYTES,
        encoding_errors: str = "error",
        digest_bytes: int = DIGEST_BYTES,
        ordered_names: bool = False,
    ) -> None:
        kind = FileFormat(one_of("FileSpout", "format", format, tuple(FileFormat)))
        require_at_least(1, "FileSpout", max_files=max_files, max_bytes=max_bytes, split_bytes=split_bytes)
        require_at_least(0, "FileSpout", min_age_s=min_age_s, late_window_s=late_window_s, digest_bytes=digest_bytes)
        self._source, self._recursive = _source(path, recursive), recursive
        self._limits = BatchLimits(
            max_files=max_files,
            max_bytes=max_bytes,
            min_age_ns=int(min_age_s * 1e9),
            late_window_ns=int(late_window_s * 1e9) if self._source.dates_moves else sys.maxsize,
            late_files=LateFiles(one_of("FileSpout", "late_files", late_files, tuple(LateFiles))),
        )
        self._reading = ReadOptions(
            format=kind,
            schema=_declared(kind, fields),
            header=header,
            dialect=_dialect(kind, CsvDialect(delimiter=delimiter, quote=quote, escape=escape, null=null)),
            ignore_extra=one_of("FileSpout", "extra_columns", extra_columns, ("error", "ignore")) == "ignore",
            replace_broken=one_of("FileSpout", "encoding_errors", encoding_errors, ("error", "replace")) == "replace",
        )
        text = self._source.text
        self._path_fields = PathFields.of(partition_fields, self._reading.schema, text, recursive=recursive)
        self.gives_files = self._source.is_local and not self._path_fields.schema
        self._split_bytes, self._digest_bytes = split_bytes, digest_bytes
        self._listings = _Listings(self._source)
        self._ordered = ordered_names
        if ordered_names and not isinstance(self._source, ObjectFiles):
            raise ConfigurationError(
                f"FileSpout({path!r}) with ordered_names=True: it is of folders, which are listed whole",
                "Leave it out, or read from an object store.",
            )
        if ordered_names and self._limits.late_files is not LateFiles.ERROR:
            raise ConfigurationError(
                f"FileSpout with ordered_names=True and late_files={late_files!r}: what comes late is not looked for",
                "Leave one of them out.",
            )

    @property
    def schema(self) -> Schema:
        return (*self._reading.schema, *self._path_fields.schema)

    def coordinator(self) -> FileCoordinator:
        kind = OrderedCoordinator if self._ordered else FileCoordinator
        return kind(self._source, self._limits, self._listings, self._digest_bytes)

    def emitter(self) -> FileEmitter:
        return FileEmitter(self._source, self._reading, self._split_bytes, self._path_fields)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (file_dataset(self._source.text),)

    def describe(self) -> str:
        return f"FileSpout({self._reading.format}, {self._source.text}{', recursive' * self._recursive})"


class _Listings:
    """The last listing of a large folder, for a drain. It is used again while it still gives a batch and is not too
    old, so listing takes only a small part of the time."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._last: tuple[Listing, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _Listings, (self._source,)

    def remembered(self) -> Listing | None:
        if self._last is None:
            return None
        listing, taken_ns = self._last
        age_ns = time.monotonic_ns() - taken_ns
        return listing.taken_ago(age_ns) if age_ns <= kept_ns(listing.took_ns) else None

    def new(self) -> Listing:
        listing = self._source.list()
        self._last = (listing, time.monotonic_ns()) if len(listing.files) >= LARGE_FOLDER_FILES else None
        return listing


def kept_ns(took_ns: int) -> int:
    """The greatest age of a listing that took `took_ns`."""
    return max(LISTING_AGE * took_ns, min(SHORT_LISTING_AGE * took_ns, int(SHORT_LISTING_S * 1e9)))


@dataclass(frozen=True)
class FileCoordinator(Coordinator):
    """Metadata: ``files`` as [path below the base, size in bytes, mtime in ns, digest], oldest first, and what has been
    read with them (:class:`airflow_trident.spouts.files.consumed.Consumed`). For objects the digest is the ETag, and
    the version follows if the bucket keeps versions."""

    source: FileSource
    limits: BatchLimits
    listings: _Listings
    digest_bytes: int

    def is_ready(self, previous: Json) -> bool:
        return self._look(previous, self.source.base()) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: a file that was read has changed.
        :raises SourceUnavailableError: a file is still being written.
        :raises ConfigurationError: a file came too late, and `late_files` is "error".
        """
        return next(iter(self.next_batches(txid, previous, 1)), None)

    def next_batches(self, txid: int, previous: Json, most: int) -> list[Json]:
        """All from one listing. The metadata of the last batch has what was read with all of them, and an error is
        about the last one."""
        base = self.source.base()
        choice = self._remembered(previous, base, most) or self._look(previous, base, most)
        if choice is None:
            return []
        if isinstance(choice, ChosenFiles) and choice.nameless:
            _log.warning(
                "FileSpout(%r): %d files that were read went away or were written anew since the last batch. So many "
                "changes at once cannot be told apart: a file that was written anew is read again.",
                self.source.text,
                choice.nameless,
            )
        claimed = {file.path: file for file in self.source.claimed(base, choice.files, self.digest_bytes)}
        after = choice.after({path: file.digest for path, file in claimed.items()})
        upto = txid + len(choice.batches) - 1
        found: list[Json] = []
        for batch in choice.batches:
            said: dict[str, Json] = after.to_json() if txid + len(found) == upto else {UPTO: upto}
            found.append({"files": [claimed[file.path].to_json() for file in batch], **said})
        return found

    def size_bytes(self, metadata: Json) -> int:
        return sum(file.size for file in recorded_files(metadata, ""))

    def accept_source(self, metadata: Json) -> Json:
        base = self.source.base()
        files = self.source.as_they_are(base, recorded_files(metadata, base), self.digest_bytes)
        after = inner_of(metadata) or _position(metadata).knows(files).to_json()
        return {"files": [file.to_json() for file in files], **after}

    def follow_source(self, later: Json, accepted: Json) -> Json:
        assert isinstance(later, dict)
        if inner_of(later):
            return later
        known = _position(later).knows(recorded_files(accepted, self.source.base()))
        return {**later, **known.to_json()}

    def lag(self, position: Json) -> Lag | None:
        """Files that are too young (`min_age_s`) do not count."""
        unlimited = replace(self, limits=replace(self.limits, max_files=sys.maxsize, max_bytes=sys.maxsize))
        listing = self.listings.remembered() or self.listings.new()
        rest = unlimited._choose(listing, position, self.source.base())
        files = [] if rest is None else rest.files
        return {"files": len(files), "bytes": sum(file.size for file in files)}

    def _remembered(self, previous: Json, base: str, most: int) -> ChosenFiles | None:
        """The choice from the last listing, if the files of the batches are still as listed."""
        listing = self.listings.remembered()
        if listing is None:
            return None
        with suppress(TridentError):  # a new listing decides whether something is wrong
            choice = self._choose(listing, previous, base, most)
            if choice is not None and all(self.source.is_as_listed(base, file) for file in choice.files):
                return choice
        return None

    def _look(self, previous: Json, base: str, most: int = 1) -> ChosenFiles | ChosenInOrder | None:
        return self._choose(self.listings.new(), previous, base, most)

    def _choose(self, listing: Listing, previous: Json, base: str, most: int = 1) -> ChosenFiles | None:
        return next_batch(
            listing,
            consumed_from_json(previous),
            self.limits,
            base=base,
            now_ns=time.time_ns(),
            content_of=lambda file: self.source.content_of(base, file),
            most=most,
        )


class OrderedCoordinator(FileCoordinator):
    """Metadata: ``files`` as of a FileCoordinator, by name, and what has been read with them
    (:class:`airflow_trident.spouts.files.ordered.ReadInOrder`)."""

    def lag(self, position: Json) -> Lag | None:
        """None: there are more files than one listing for a batch shows."""
        choice = self._look(position, self.source.base())
        if choice is None:
            return {"files": 0, "bytes": 0}
        return {"files": len(choice.new), "bytes": sum(file.size for file in choice.new)} if choice.complete else None

    def _remembered(self, previous: Json, base: str, most: int) -> None:
        """Never: a new listing is short."""

    def _look(self, previous: Json, base: str, most: int = 1) -> ChosenInOrder | None:
        before = self._before(previous, base)
        assert isinstance(self.source, ObjectFiles)
        found = self.source.behind(before.upto)
        return next_in_order(found, before, self.limits, base=base, now_ns=time.time_ns(), most=most)

    def _before(self, previous: Json, base: str) -> ReadInOrder:
        """If `ordered_names` was set only now, one listing of everything shows what was read before."""
        if not isinstance(previous, dict) or ORDERED in previous or "cursor" not in previous:
            return read_in_order_from_json(previous)
        every = replace(self.limits, max_files=sys.maxsize, max_bytes=sys.maxsize, min_age_ns=0)
        listing = self.source.list()
        choice = replace(self, limits=every)._choose(listing, previous, base)
        new = {file.path for file in choice.files} if choice else set()
        read = [file for file in listing.files if file.path not in new]
        seen = {name_mark(file.path): object_mark(file.size, file.etag) for file in read}
        return ReadInOrder(seen=seen, last=max((file.path for file in read), default=""))


def _position(metadata: Json) -> Consumed | ReadInOrder:
    ordered = isinstance(metadata, dict) and ORDERED in metadata
    return read_in_order_from_json(metadata) if ordered else consumed_from_json(metadata)


def _source(path: AnyPath, recursive: bool) -> FileSource:
    text = text_of_path(path)
    if isinstance(text, str) and is_hdfs_uri(text):
        return HdfsFiles.parse("FileSpout", text, recursive)
    if isinstance(text, str) and is_object_uri(text) and not text.strip().lower().startswith("file:"):
        return ObjectFiles.parse("FileSpout", text, recursive)
    return LocalFiles(FilePattern(require_local_path("FileSpout", path), recursive))


def _dialect(kind: FileFormat, dialect: CsvDialect) -> CsvDialect:
    if kind is not FileFormat.CSV and dialect != CsvDialect():
        raise ConfigurationError(
            f"FileSpout of {kind} files with delimiter, quote, escape or null: they say how csv is written",
            'Leave them out, or read format="csv".',
        )
    return dialect


def _declared(kind: FileFormat, fields: FieldSpec | None) -> Schema:
    if fields is None:
        if kind is not FileFormat.TEXT:
            raise ConfigurationError(
                f"FileSpout of {kind} files does not know their columns",
                'Declare them, as in FileSpout(path, format="csv", fields="id long, name string").',
            )
        return parse_declared("line string")
    schema = parse_declared(fields, ["string"] if kind is FileFormat.TEXT else [])
    if kind is FileFormat.TEXT and [field.type for field in schema] != ["string"]:
        raise ConfigurationError(
            f"FileSpout of text files has one string field, not ({', '.join(map(str, schema))})",
            "Name one field, and take lines apart with each().",
        )
    if kind is FileFormat.CSV:
        require_simple_types("csv files", schema)
    return schema
