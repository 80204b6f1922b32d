"""The versions of a Parquet table: each is one small JSON object that names all files of the table. A state publishes
them, a spout follows them.

A version is published by put-if-absent of its number, so a committer that decided on an outdated version cannot
publish. It names its newest files itself and the others by *lists*: objects that are written once and shared by all
later versions. So a version stays small, however many files there are.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_trident.protocol.durable_format import Format
from airflow_trident.staging.files import stays_inside
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import Schema, parse_declared

VERSIONS, LISTS, DATA = "_versions", "_lists", "_data"
"""Folders of a table. Readers of the whole folder skip them: they also hold files that no version names."""
INLINE = 256
"""How many files a version names itself, at most."""
_NAME = re.compile(rf"{VERSIONS}/(\d{{19}})\.json\Z")
FORMAT = Format(
    noun="the version",
    version=1,
    key="format",
    cure="Restore it from a copy of the table's folder. If it is empty or cut off, on a file system without hard "
    "links, its committer died while it wrote: remove it when nobody commits.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """`path`: below the table. `partition`: its value of each partition column, dates as text."""

    path: str
    rows: int
    bytes: int
    partition: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedState:
    """What is applied of a state. `of`: topology and state. `commit`: the last commit of the state, in version `at`."""

    of: tuple[str, str]
    marker: dict[str, Any]
    commit: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetVersion:
    """`fields`: as ``word string, n long``. `files`: the newest; older ones are in `lists`. `removed`: paths dropped in
    this version. `changes`: for a table of upserts, its keys and its writer. `table_id`: tells this table from one that
    is made in its place later; None: an older version of the package wrote this."""

    version: int
    fields: str
    partition_by: tuple[str, ...] = ()
    files: tuple[TableFile, ...] = ()
    lists: tuple[str, ...] = ()
    states: Mapping[str, AppliedState] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    changes: str | None = None
    table_id: str | None = None

    @property
    def schema(self) -> Schema:
        return parse_declared(self.fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileList:
    files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class ParquetVersions:
    """The versions of one table in `storage`. Methods raise the same errors as those of :class:`Storage`."""

    storage: Storage

    def numbers(self) -> list[int]:
        """Numbers of the versions that are kept, lowest first."""
        names = (name for name, _ in self.storage.list(VERSIONS))
        return sorted(int(found[1]) for found in map(_NAME.match, names) if found)

    def last(self) -> ParquetVersion | None:
        """None: there is no table."""
        before = None
        while True:
            number = max(self.numbers(), default=None)
            if number is None:
                return None
            try:
                return self.read(number)
            except FileNotFoundError:  # removed since its name was read: others have committed
                if number == before:
                    raise FORMAT.damaged(f"{number}", "it is listed and cannot be read") from None
                before = number

    def read(self, number: int) -> ParquetVersion:
        """:raises FileNotFoundError: it is not kept.
        :raises CorruptRecordError: it is damaged.
        :raises NewerRecordError: a newer version of the package wrote it.
        """
        return self.parsed(number, self.content(number))

    def content(self, number: int) -> bytes:
        """:raises FileNotFoundError: it is not kept."""
        return self.storage.get(_name(number))

    def parsed(self, number: int, content: bytes) -> ParquetVersion:
        """As :meth:`read`.

        :param content: of version `number`.
        """
        where = f"{number} ({self.storage.at(_name(number))!r})"
        found = FORMAT.build(ParquetVersion, FORMAT.load(content, where)[1], where)
        if found.version != number:
            raise FORMAT.damaged(where, f"it says that it is version {found.version}")
        self._require_inside(where, [*found.lists, *found.removed])
        self._require_files(found, found.files, where)
        return found

    def files(self, version: ParquetVersion) -> Iterator[TableFile]:
        """All files of the version."""
        for path in version.lists:
            yield from self.listed(version, path)
        yield from version.files

    def listed(self, version: ParquetVersion, path: str) -> tuple[TableFile, ...]:
        """The files in one of its lists.

        :raises CorruptRecordError: the list is damaged, or gone.
        """
        where = f"{version.version}, its list {self.storage.at(path)!r}"
        try:
            content = self.storage.get(path)
        except FileNotFoundError:
            raise FORMAT.damaged(where, "it is missing") from None
        found = FORMAT.build(_FileList, FORMAT.load(content, where)[1], where).files
        self._require_files(version, found, where)
        return found

    def put_list(self, files: Sequence[TableFile]) -> str:
        """:returns: its path."""
        path = f"{LISTS}/{uuid.uuid4().hex}.json"
        content = FORMAT.dump({"files": [asdict(one) for one in files]}, "a list of files")
        self.storage.put(path, lambda file: file.write(content))
        return path

    def publish(self, version: ParquetVersion) -> list[int] | None:
        """:returns: the numbers that are kept; None: it is not the next version, or it is, and others have committed
        since."""
        content = FORMAT.dump(asdict(version), f"version {version.version}")
        if not self.storage.put_if_absent(_name(version.version), content):
            return None
        # A very late committer may succeed after this version was removed; it then published an outdated version.
        numbers = self.numbers()
        if not numbers or numbers[-1] != version.version:
            return None
        return numbers

    def clean(self, last: ParquetVersion, numbers: Sequence[int], keep: int) -> None:
        """Remove versions before the last `keep`, and files that only they name. Runs now and then, best effort."""
        if len(numbers) < 2 * keep:
            return
        old, first_kept = numbers[:-keep], numbers[-keep]
        gone = set[str]()
        for number in (*old, first_kept):
            try:
                gone.update(self.read(number).removed)
            except FileNotFoundError:
                continue
        if gone:  # a restored version names its files again
            gone -= {*last.lists, *(one.path for one in self.files(last))}
        self.storage.remove(sorted(gone))
        self.storage.remove([_name(number) for number in old])

    def _require_files(self, version: ParquetVersion, files: Sequence[TableFile], where: str) -> None:
        self._require_inside(where, [one.path for one in files])
        for one in files:
            if len(one.partition) != len(version.partition_by):
                raise FORMAT.damaged(where, f"{one.path!r} has not one value of each of {list(version.partition_by)}")

    def _require_inside(self, where: str, paths: Sequence[str]) -> None:
        for path in paths:
            if not stays_inside(path):
                raise FORMAT.damaged(where, f"it names {path!r}, which is not below the table")


def new_table_id() -> str:
    return uuid.uuid4().hex


def _name(number: int) -> str:
    return f"{VERSIONS}/{number:019d}.json"
