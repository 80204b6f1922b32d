"""Reads the versions of a ParquetTable: the files that a version has and the version before it did not have."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError, StoreUnavailableError
from airflow_trident.spouts.table_log import AddedFile, Span, TableLog, TableVersion
from airflow_trident.staging.parquet_versions import ParquetVersion, ParquetVersions, TableFile
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import names_of

_ANEW = "give the stream a new name and begin anew."


class ParquetLog(TableLog):
    """The table in `storage`. `head` is the newest version when this is made. A version's id is the digest of its
    content: a table that was restored from a copy has other versions with the same numbers.
    """

    has_ids = True

    def __init__(self, storage: Storage) -> None:
        self.what = f"the Parquet table {storage.where!r}"
        self._versions = ParquetVersions(storage)
        self._last_read: tuple[int, ParquetVersion, int] | None = None
        with answers():
            last = self._versions.last()
        if last is None:
            raise SourceUnavailableError(
                f"there is no {self.what.removeprefix('the ')}", "Make it, or correct the path of the spout's table."
            )
        if last.table_id is None:
            raise ConfigurationError(
                f"version {last.version} of {self.what} has no table_id, which tells it from a table that is made in "
                "its place: an older version of this package wrote it",
                "Let a topology append to it once with this version, which gives it one.",
            )
        self._newest = last
        self.table_id, self.head, self._columns = last.table_id, last.version, set(names_of(last.schema))
        self.head_id = self._at(self.head)[1]

    def columns(self) -> set[str]:
        return self._columns

    def start_at(self, start: int) -> tuple[int, int | None]:
        if start == 1:
            return start, None
        with answers():
            first = self._versions.kept()[0]
        if not first < start <= self.head + 1:
            raise ConfigurationError(
                f"what version {start} of {self.what} added cannot be told: versions {first} to {self.head} are kept",
                f"Begin at one of {first + 1} to {self.head + 1}, or at snapshot or latest.",
            )
        return start, self._at(start - 1)[1]

    def numbers(self, first: int) -> Iterator[tuple[int, int | None]]:
        return ((number, None) for number in range(first, self.head + 1))

    def change(self, number: int, version_id: int | None) -> TableVersion:
        return self._change(number)

    def whole(self, number: int, version_id: int | None) -> TableVersion:
        return self._whole(number)

    def require_same(self, span: Span) -> None:
        """The last version that was read must be the same as it was then."""
        assert span.ids is not None
        if self.table_id != span.table_id:
            raise SourceChangedError(
                f"{self.what} was made anew since the transaction was recorded", f"Restore the old one, or {_ANEW}"
            )
        number = span.last
        if number > self.head or (span.ids[1] is not None and self._at(number)[1] != span.ids[1]):
            raise SourceChangedError(
                f"{self.what} has no version {number} as the transaction recorded it, and ends at version {self.head}",
                f"It was restored from an old copy: {_ANEW}",
            )

    def _at(self, number: int) -> tuple[ParquetVersion, int]:
        """A version and its id.

        :raises SourceChangedError: the version is no longer kept.
        """
        if self._last_read is not None and self._last_read[0] == number:
            return self._last_read[1:]
        try:
            with answers():
                content = self._versions.content(number)
                self._newest = self._versions.newest(self._newest)
                if number < self._newest.first:
                    raise FileNotFoundError(number)  # it was removed, and published again by a late committer
        except FileNotFoundError as error:
            raise SourceChangedError(
                f"{self.what} no longer has version {number}",
                f"Let those who write to it keep more (keep_versions of their ParquetTable), and {_ANEW}",
            ) from error
        digest = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) >> 1
        self._last_read = number, self._versions.parsed(number, content), digest
        return self._last_read[1:]

    def _whole(self, number: int) -> TableVersion:
        """All files that the table had at a version, as if that version had added them."""
        version, digest = self._at(number)
        with answers():
            added = tuple(map(_added, self._versions.files(version)))
        return TableVersion(number=number, added=added, removes=False, operation="snapshot", id=digest)

    def _change(self, number: int) -> TableVersion:
        """The change of one version. Lists in both versions are not read, so the cost grows only with the change."""
        before = self._at(number - 1)[0] if number > 1 else ParquetVersion(version=0, fields="")
        version, digest = self._at(number)
        shared = {*before.lists} & {*version.lists}
        old, new = self._files(before, shared), self._files(version, shared)
        added = tuple(_added(file) for path, file in new.items() if path not in old)
        removes = not old.keys() <= new.keys()
        operation = "removes files" if removes else "append"
        return TableVersion(number=number, added=added, removes=removes, operation=operation, id=digest)

    def _files(self, version: ParquetVersion, shared: set[str]) -> dict[str, TableFile]:
        """The files by path, in the order of the version, without those in `shared` lists."""
        with answers():
            listed = [self._versions.listed(version, path) for path in version.lists if path not in shared]
        return {file.path: file for files in (*listed, version.files) for file in files}


@contextmanager
def answers() -> Iterator[None]:
    """:raises SourceUnavailableError: the storage does not answer."""
    try:
        yield
    except StoreUnavailableError as error:
        raise SourceUnavailableError(error.message, error.cure) from error


def _added(file: TableFile) -> AddedFile:
    """The files contain their partition columns."""
    return AddedFile(path=file.path, bytes=file.bytes, rows=file.rows, partition={})
