"""Tables that are written version by version: a batch is files that versions added, in their order. Transactional.

:class:`TableLog` is what a table format must offer for that. A version that changes rows which are there already
(delete, update, overwrite) is an error or left out, as the spout's options say. A version that only moves rows to
other files is neither.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from airflow_trident.contracts.spout import Coordinator, not_metadata_of
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError
from airflow_trident.io.values import UnfitValueError
from airflow_trident.names import require_counts, without_none
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.types import Json, Schema, paths_of

T = TypeVar("T")

DEFAULT_MAX_FILES = 1000
DEFAULT_MAX_BYTES = 256 << 20
QUIET_VERSIONS = 100
"""After this number of versions without data, an empty transaction passes them, because logs forget old versions. If
versions have ids, one version is enough."""


class Start(StrEnum):
    """Where the first transaction begins, if not at the number of a version."""

    SNAPSHOT = "snapshot"
    """With all rows that the table has at that moment."""
    LATEST = "latest"
    """With rows that are added later."""


class OnChange(StrEnum):
    """What to do with a version that changes or deletes rows."""

    ERROR = "error"
    SKIP = "skip"
    """Leave out the whole version, also the rows that it adds; its number is in the metadata as `skipped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedFile:
    """A file of a table. `partition`: column -> value, as the format writes it. `rows`: None if not in the log."""

    path: str
    bytes: int
    rows: int | None
    partition: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One commit: the files that it added, in an order that never changes, and whether it removed data.

    Files that hold rows which were there before (compaction) are not added files. `id`: the format's id of the version,
    if its number is not enough to find it.
    """

    number: int
    added: tuple[AddedFile, ...]
    removes: bool
    operation: str
    id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Decoded metadata: the files from `begin` to below `end`; each of both is a version and a file number in it.

    `snapshot`: the version that stands for all files that the table had then. `skipped`: versions in between that were
    left out. `ids`: only for a format with ids: the id of the version directly before `begin` (or of the one that
    `begin` is in the middle of), and the same for `end`. `bytes`: of all its files together; None: an older version of
    the package wrote it. `mark`: see :meth:`TableLog.mark_of`; of the last version. `passes`: it only passes versions,
    and no file is in it; False: an older version of the package may not have said so. `within`: only the files that
    have this value in this partition column.
    """

    table_id: str
    begin: tuple[int, int]
    end: tuple[int, int]
    snapshot: int | None = None
    skipped: tuple[int, ...] = ()
    ids: tuple[int | None, int | None] | None = None
    bytes: int | None = None
    mark: str | None = None
    passes: bool = False
    within: tuple[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """No file is in it, whatever the table has by now."""
        return self.passes or self.begin == self.end

    @property
    def last(self) -> int:
        """The version before `end`, or the one that `end` is in the middle of."""
        return self.end[0] if self.end[1] else self.end[0] - 1

    def to_json(self) -> Json:
        record: dict[str, Json] = {
            "table": self.table_id,
            "from": list(self.begin),
            "to": list(self.end),
            "snapshot": self.snapshot,
            "skipped": list(self.skipped),
        }
        if self.ids is not None:
            record["ids"] = list(self.ids)
        if self.bytes is not None:
            record["bytes"] = self.bytes
        if self.mark is not None:
            record["mark"] = self.mark
        if self.passes:
            record["passes"] = True
        if self.within is not None:
            record["column"], record["value"] = self.within
        return record

    @classmethod
    def of(cls, metadata: Json, spout: str, *, with_ids: bool = False) -> Span:
        """
        :param spout: the kind of spout that must have written it: ``a TableSpout of a DeltaTable``.
        :raises SourceChangedError: another kind of spout wrote it.
        """
        try:
            assert isinstance(metadata, dict)
            record: Any = metadata
            (first, first_file), (last, last_file) = record["from"], record["to"]
            if with_ids != ("ids" in record):
                raise ValueError
            ids = None
            if with_ids:
                before, at = record["ids"]
                ids = before, at
            return cls(
                table_id=str(record["table"]),
                begin=(int(first), int(first_file)),
                end=(int(last), int(last_file)),
                snapshot=record["snapshot"],
                skipped=tuple(record["skipped"]),
                ids=ids,
                bytes=None if record.get("bytes") is None else int(record["bytes"]),
                mark=record.get("mark"),
                passes=bool(record.get("passes", False)),
                within=(record["column"], record["value"]) if "column" in record else None,
            )
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise not_metadata_of(spout) from error


@dataclass
class _Slot:
    """One value of a :class:`RecentValues`. The lock is held while it is made."""

    lock: Lock = field(default_factory=Lock)
    values: list[Any] = field(default_factory=list)


class RecentValues(Generic[T]):
    """The values that were asked for last in this process, each made once, whichever thread asks.

    :param limit: so many are kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = Lock()
        self._slots = OrderedDict[Hashable, _Slot]()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        with self._lock:
            slot = self._slots.setdefault(key, _Slot())
            self._slots.move_to_end(key)
            while len(self._slots) > self._limit:
                self._slots.popitem(last=False)
        with slot.lock:
            if not slot.values:
                slot.values.append(make())
            value: T = slot.values[0]
            return value


SNAPSHOTS = RecentValues[Any](4)
"""Whole tables, by their format's identity of the version. A table of 50,000 files takes about 30 MB. Without it each
batch of ``start="snapshot"`` would put the whole table together twice."""


_ADDED = RecentValues[int](100_000)
"""How many files a version added, for the lag alone: what becomes a batch is read anew."""


def unlike_columns(declared: Schema, columns: set[str]) -> str:
    """What a table has, or has not, against the declared fields; "" if nothing. Other columns may be there, other
    members of a declared struct may not.

    :param columns: as :meth:`TableLog.columns` gives them.
    """
    paths = paths_of(declared)
    if missing := [path for path in paths if path not in columns]:
        return f"no column {missing[0]!r}"
    extra = [path for path in sorted(columns) if path not in paths and path.rpartition(".")[0] in paths]
    return f"a member {extra[0]!r} that is not declared" if extra else ""


def require_columns(log: TableLog, declared: Schema) -> None:
    """:raises ConfigurationError: the table lacks a column, or a struct in it has other members."""
    if why := unlike_columns(declared, log.columns()):
        raise ConfigurationError(f"{log.what} has {why}", "Correct the spout's fields.")


class TableLog(ABC):
    """The versions of a table as they are at this moment. `what` names the table in errors."""

    what: str
    table_id: str
    head: int
    """The newest version."""
    head_id: int | None = None
    """:attr:`TableVersion.id` of the newest version."""
    has_ids: bool = False
    """Do the versions have ids?"""

    @abstractmethod
    def columns(self) -> set[str]:
        """The columns and their parts, as :func:`airflow_trident.types.paths_of` calls them."""

    @abstractmethod
    def numbers(self, first: int) -> Iterator[tuple[int, int | None]]:
        """Number and id of each version from `first` to the newest."""

    @abstractmethod
    def change(self, number: int, version_id: int | None) -> TableVersion:
        """:raises SourceChangedError: the version no longer exists."""

    @abstractmethod
    def whole(self, number: int, version_id: int | None) -> TableVersion:
        """All files that the table had at a version, as if that version had added them, in an order that never changes.
        Not put together twice, see `SNAPSHOTS`.

        :raises SourceChangedError: the version no longer exists.
        """

    @abstractmethod
    def partition_value(self, file: AddedFile, column: str) -> str | None:
        """What all rows of a file of :meth:`whole` have in a column, as text.

        :raises LookupError: the table is not partitioned by the column, or was not when the file was written.
        """

    def kept_rows(self, span: Span) -> Mapping[str, str]:
        """Path -> which rows of that file count, of files in which others are deleted.

        :raises SourceChangedError: that version can no longer be put together.
        """
        return {}

    def versions(self, first: int, snapshot: int | None) -> Iterator[TableVersion]:
        """The versions from `first` to the newest; the version `snapshot` stands for the whole table as it was then.

        :raises SourceChangedError: a version no longer exists.
        """
        for number, version_id in self.numbers(first):
            yield self.whole(number, version_id) if number == snapshot else self.change(number, version_id)

    @abstractmethod
    def require_same(self, span: Span) -> None:
        """:raises SourceChangedError: `span` was recorded of another table, or the table was set back since."""

    def start_at(self, start: int) -> tuple[int, int | None]:
        """The number of the version that `start` means, and the id of the version before it."""
        return start, None

    def snapshot_at(self) -> int:
        """The number of the version that stands for the whole table as it is now."""
        return self.head

    def mark_of(self, number: int) -> str | None:
        """What tells a version without an id from another one with the same number, in a table that was restored from a
        copy and went on. None: nothing does, or the log no longer has it."""
        return None


@dataclass(frozen=True, kw_only=True)
class TableLimits:
    """Limits of one batch; a single larger file is a batch by itself. Rows are counted by the numbers in the log."""

    max_files: int
    max_bytes: int
    max_rows: int | None

    def allow(self, files: int, size_bytes: int, rows: int) -> bool:
        return files <= self.max_files and size_bytes <= self.max_bytes and rows <= (self.max_rows or rows)


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """Which parts of a table become batches."""

    start: Start | int
    on_change: OnChange
    limits: TableLimits

    @classmethod
    def of(
        cls,
        spout: str,
        start: Start | str | int,
        changes: OnChange | str,
        *,
        max_files: int,
        max_bytes: int,
        max_rows: int | None,
    ) -> TableReading:
        """:raises ConfigurationError: an argument is wrong."""
        require_counts(spout, max_files=max_files, max_bytes=max_bytes, **without_none(max_rows=max_rows))
        if start not in tuple(Start) and not (isinstance(start, int) and start >= 0):
            raise ConfigurationError(
                f"{spout} with start={start!r}", "Use snapshot, latest, or the number of a version."
            )
        if changes not in tuple(OnChange):
            raise ConfigurationError(f"{spout} with changes={changes!r}", "Use error or skip.")
        return cls(
            start=start if isinstance(start, int) else Start(start),
            on_change=OnChange(changes),
            limits=TableLimits(max_files=max_files, max_bytes=max_bytes, max_rows=max_rows),
        )


@dataclass(frozen=True)
class VersionsCoordinator(Coordinator):
    """Metadata: see :class:`Span`. `open_log`: gives the table as it is now. `decode`: reads this spout's metadata."""

    open_log: Callable[[], TableLog]
    decode: Callable[[Json], Span]
    row_schema: Schema
    reading: TableReading

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: the table was created anew, its log was cleaned up too early, or rows were changed.
        :raises ConfigurationError: the table lacks a column, or a struct in it has other members.
        """
        before = None if previous is None else self.decode(previous)
        log = self.open_log()
        require_columns(log, self.row_schema)
        if before is not None:
            log.require_same(before)
        span, files = self._next(log, self._first(log) if before is None else before)
        # Formats with ids expire snapshots one by one, and the one that was read last must still be known.
        quiet = span.end[0] - span.begin[0] >= (1 if log.has_ids else QUIET_VERSIONS)
        pins = before is None and self.reading.start is Start.LATEST
        if not (files or quiet or pins):
            return None
        return replace(span, mark=log.mark_of(span.last), passes=quiet and not files).to_json()

    def size_bytes(self, metadata: Json) -> int | None:
        with suppress(SourceChangedError):  # of another spout, which is an error when it is read
            return self.decode(metadata).bytes
        return None

    def lag(self, position: Json) -> Lag | None:
        if position is None:
            return None
        log, span = self.open_log(), self.decode(position)
        files = 0
        for number, version_id in log.numbers(span.end[0]):
            if number == span.snapshot:
                added = len(log.whole(number, version_id).added)
            else:
                key = log.what, log.table_id, number, version_id
                added = _ADDED.get(key, partial(self._added, log, number, version_id))
            files += added - (span.end[1] if number == span.end[0] else 0)
        return {"files": files}

    def _added(self, log: TableLog, number: int, version_id: int | None) -> int:
        version = log.change(number, version_id)
        return 0 if self._skips(log, version) else len(version.added)

    def _first(self, log: TableLog) -> Span:
        """An empty span before the first batch."""
        start, snapshot, before = self.reading.start, None, None
        if isinstance(start, int):
            at, before = log.start_at(start)
        elif start is Start.SNAPSHOT:
            at = snapshot = log.snapshot_at()
        else:
            at, before = log.head + 1, log.head_id
        ids = (None, before) if log.has_ids else None
        return Span(table_id=log.table_id, begin=(at, 0), end=(at, 0), snapshot=snapshot, ids=ids)

    def _next(self, log: TableLog, before: Span) -> tuple[Span, int]:
        """The span of the next batch, with as many files as the limits allow, and the number of these files."""
        begin, id_before = before.end, None if before.ids is None else before.ids[1]
        files, taken, rows = 0, 0, 0
        skipped, at = list[int](), id_before

        def span(end: tuple[int, int]) -> Span:
            ids = (id_before, at) if log.has_ids else None
            return replace(before, begin=begin, end=end, skipped=tuple(skipped), ids=ids, bytes=taken)

        end = begin
        for version in log.versions(begin[0], before.snapshot):
            if self._skips(log, version):
                skipped.append(version.number)
                end, at = (version.number + 1, 0), version.id
                continue
            first = begin[1] if version.number == begin[0] else 0
            for number in range(first, len(version.added)):
                file = version.added[number]
                rows += file.rows or 0
                if files and not self.reading.limits.allow(files + 1, taken + file.bytes, rows):
                    at = version.id if number else at
                    return span((version.number, number)), files
                files, taken = files + 1, taken + file.bytes
            end, at = (version.number + 1, 0), version.id
        return span(end), files

    def _skips(self, log: TableLog, version: TableVersion) -> bool:
        if version.removes and self.reading.on_change is OnChange.ERROR:
            raise SourceChangedError(
                f"version {version.number} of {log.what} ({version.operation}) changes or deletes rows, which were "
                "read or will be",
                'Nothing was begun. changes="skip" leaves such versions out. A topology that is bound to partitions '
                'reads a replaced partition again: name its column="day".',
            )
        return version.removes


@contextmanager
def reading_file(
    subject: str, row_schema: Schema, damaged: tuple[type[Exception], ...], *, cure: str
) -> Iterator[None]:
    """A context for reading a recorded file.

    :param damaged: errors that the format raises for content that it cannot read.
    :param cure: if the file does not exist.
    :raises SourceChangedError: the file is gone.
    :raises DamagedInputError: the file cannot be read, or a value does not fit its field.
    """
    unreadable: tuple[type[Exception], ...] = (*damaged, UnfitValueError)
    try:
        yield
    except FileNotFoundError as error:
        raise SourceChangedError(f"{subject}, which the transaction recorded, is gone", cure) from error
    except unreadable as error:
        raise DamagedInputError(
            f"{subject} cannot be read as ({', '.join(map(str, row_schema))}): {error}",
            "Correct the spout's fields, or restore the file.",
        ) from error


def require_rows(subject: str, rows: int, recorded: int | None) -> None:
    """:raises DamagedInputError: the file does not have `recorded` rows; None: the log has no number."""
    if recorded not in (None, rows):
        raise DamagedInputError(f"{subject} has {rows} rows and should have {recorded}", "Restore it from a copy.")


def files_of(log: TableLog, span: Span) -> Iterator[AddedFile]:
    """The files of a batch.

    :raises SourceChangedError: the table no longer has the recorded versions.
    """
    if span.is_empty:
        return
    log.require_same(span)
    for version in log.versions(span.begin[0], span.snapshot):
        if version.number > span.end[0] or (version.number, 0) == span.end:
            break
        if version.number in span.skipped:
            continue
        first = span.begin[1] if version.number == span.begin[0] else 0
        last = span.end[1] if version.number == span.end[0] else len(version.added)
        yield from (file for file in version.added[first:last] if _is_within(log, file, span.within))


def _is_within(log: TableLog, file: AddedFile, within: tuple[str, str] | None) -> bool:
    """:raises SourceChangedError: the partition column has another name now."""
    if within is None:
        return True
    column, value = within
    try:
        return log.partition_value(file, column) == value
    except LookupError:
        raise SourceChangedError(
            f"{log.what} is no longer partitioned by {column!r}", "Rename the column back, or correct column=."
        ) from None
