"""The versions of a Parquet table: each is one small JSON object that names all files of the table. A state publishes
them, a spout follows them.

A version is published by put-if-absent of its number, so a committer that decided on an outdated version cannot
publish. It names its newest files itself and the others by *lists*: objects that are written once and shared by all
later versions. So a version stays small, however many files there are.

Old versions are removed, and a name that was removed can be taken again, by a committer that was stopped before it
published. So each version says which is the first one that counts. A version is only removed after a later one has said
that it does not count; so who has read a version, and then finds the last one, knows whether that was a late one.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_trident.protocol.durable_format import Format
from airflow_trident.staging.files import stays_inside, sync_folder
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
    is made in its place later; None: an older version of the package wrote this. `first`: none below it counts."""

    version: int
    fields: str
    partition_by: tuple[str, ...] = ()
    files: tuple[TableFile, ...] = ()
    lists: tuple[str, ...] = ()
    states: Mapping[str, AppliedState] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    changes: str | None = None
    table_id: str | None = None
    first: int = 1

    @property
    def schema(self) -> Schema:
        return parse_declared(self.fields)

    def first_of_next(self, keep: int) -> int:
        """`first` of the version after this one: goes on now and then, and leaves `keep` versions."""
        following = self.version + 1
        return following - keep + 1 if following - self.first + 1 >= 2 * keep else self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileList:
    files: tuple[TableFile, ...]


@dataclass(frozen=True, slots=True)
class ParquetVersions:
    """The versions of one table in `storage`. Methods raise the same errors as those of :class:`Storage`."""

    storage: Storage

    def numbers(self) -> list[int]:
        """Numbers of the versions that are there, lowest first: also of those that no longer count."""
        names = (name for name, _ in self.storage.list(VERSIONS))
        return sorted(int(found[1]) for found in map(_NAME.match, names) if found)

    def kept(self) -> list[int]:
        """Numbers of the versions that count, lowest first."""
        last = self.last()
        return [] if last is None else [one for one in self.numbers() if one >= last.first]

    def last(self) -> ParquetVersion | None:
        """None: there is no table."""
        found: ParquetVersion | None = None
        missed = None
        while True:
            number = max(self.numbers(), default=None)
            if number is None or (found is not None and found.version == number):
                return found  # it was the last one, too, after it was read
            try:
                found = self.read(number)
            except FileNotFoundError:  # removed since its name was read: others have committed
                if number == missed:
                    raise FORMAT.damaged(f"{number}", "it is listed and cannot be read") from None
                found, missed = None, number

    def newest(self, known: ParquetVersion) -> ParquetVersion:
        """The last version; `known` if it still is.

        :raises FileNotFoundError: there is no table any more.
        """
        if max(self.numbers(), default=None) == known.version:
            return known
        found = self.last()
        if found is None:
            raise FileNotFoundError(self.storage.at(VERSIONS))
        return found

    def counts(self, number: int) -> bool:
        """Does the version with this number count that was read before?"""
        last = self.last()
        return last is not None and number >= last.first

    def read(self, number: int) -> ParquetVersion:
        """It may be one that no longer counts, see :meth:`counts`.

        :raises FileNotFoundError: it is not kept.
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
        if found.first > number:
            raise FORMAT.damaged(where, f"it says that versions from {found.first} on count")
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
        if self.storage.is_local:
            sync_folder(self.storage.at(LISTS))  # a version will name it
        return path

    def publish(self, version: ParquetVersion) -> list[int] | None:
        """:returns: the numbers that are there; None: it is not the next version, or it is, and others have committed
        since."""
        content = FORMAT.dump(asdict(version), f"version {version.version}")
        if not self.storage.put_if_absent(_name(version.version), content):
            return None
        numbers = self.numbers()
        if numbers and numbers[-1] == version.version:
            return numbers
        if not self.counts(version.version):  # this committer was very late: the number had been removed
            self.storage.remove([_name(version.version)])
        return None

    def clean(self, last: ParquetVersion, numbers: Sequence[int], counted: int) -> None:
        """Remove versions that do not count, and files that only they name; sweep the folders. Best effort.

        :param last: the last version.
        :param numbers: the versions that are there.
        :param counted: the first that counted in the version before `last`. What is there below it was published by a
            late committer that died, or was left by a removal that was cut off.
        """
        old = [one for one in numbers if one < last.first]
        if not old:
            return
        gone = set[str]()
        for number in (*old, last.first):
            with suppress(FileNotFoundError):
                gone.update(self.read(number).removed)
        if gone:  # a restored version names its files again
            gone -= self.named([last])
        if gone and old[0] < counted:  # what a late committer wanted to remove was not removed
            gone -= self.named(self.present(one for one in numbers if one >= last.first))
        self.storage.remove(sorted(gone))
        self.storage.remove([_name(number) for number in old])
        for folder in (VERSIONS, LISTS, DATA):
            self.storage.sweep(folder)

    def present(self, numbers: Iterable[int]) -> Iterator[ParquetVersion]:
        """Those of these versions that are there."""
        for number in numbers:
            with suppress(FileNotFoundError):
                yield self.read(number)

    def named(self, versions: Iterable[ParquetVersion]) -> set[str]:
        """All that these versions name: files and lists. Each list is read once."""
        found = set[str]()
        for version in versions:
            found.update(one.path for one in version.files)
            for path in version.lists:
                if path not in found:
                    found.add(path)
                    found.update(one.path for one in self.listed(version, path))
        return found

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
