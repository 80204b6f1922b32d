"""Files of an HDFS, for a FileSpout.

A file is identified by its number in the file system, its size and its time. A rename changes none of them; a new file
of the same name, an append and a truncation change them. So a file that was moved to the trash and back is the recorded
one, and a copy of it is not.

No time says when a file was moved in: HDFS keeps the time of its last close, and the numbers rise with the creation. So
a FileSpout remembers by their names which files it has read, of all that are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, BinaryIO, cast

from airflow_trident.errors import ConfigurationError, SourceUnavailableError, StoreUnavailableError
from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.seekable import RangedFile
from airflow_trident.io.webhdfs import FileStatus
from airflow_trident.spouts.files.contents import RecordedFile, changed, gone, nothing_to_take, still_written
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import FoundFile, Listing, by_place, plain_parts, walk

AHEAD_BYTES = 4 << 20
"""The least that is read at a time: a smaller file is one request to a data node."""
_THREADS = 8
_MS = 1_000_000


@dataclass(frozen=True)
class _Child:
    """An entry of a folder, as :func:`walk` asks for it. HDFS has no links."""

    status: FileStatus

    @property
    def name(self) -> str:
        return self.status.name

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return not self.status.is_file


@dataclass(frozen=True)
class HdfsFiles(FileSource):
    """`parts`: the pattern below the place. A path without a pattern is a folder, and means the files in it."""

    place: HdfsAddress
    parts: tuple[str, ...]
    written: str
    is_local = False

    @classmethod
    def parse(cls, subject: str, uri: str, recursive: bool) -> HdfsFiles:
        """:raises ConfigurationError: it is no place in an HDFS, or it contains a password."""
        scheme, _, rest = uri.strip().partition("://")
        host, *names = rest.rstrip("/").split("/")
        plain = plain_parts(names)
        place = HdfsAddress.parse(subject, f"{scheme}://{'/'.join([host, *names[:plain]])}")
        return cls(place, tuple(names[plain:]) or (("**", "*") if recursive else ("*",)), uri.strip())

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: executors have no connections."""
        return {**self.__dict__, "place": self.place.resolved(required=False)}

    @property
    def text(self) -> str:
        return self.written

    def base(self) -> str:
        return self.place.where

    def list(self) -> Listing:
        """
        :raises SourceUnavailableError: the folder does not exist.
        :raises ConfigurationError: it is a file, or this user may not list it.
        """
        begun = time.monotonic_ns()
        client = self.place.client()

        @cache  # ``**`` asks for a folder more than once
        def entries(folder: str) -> Sequence[_Child]:
            try:
                return [_Child(status) for status in client.children(self._path(folder))]
            except FileNotFoundError:
                if folder:
                    return []  # removed after its name was read
                raise

        with self._asking("list the files"):
            try:
                files = {file.path: file for file in walk(entries, _found, "", self.parts)}
            except FileNotFoundError:
                raise SourceUnavailableError(
                    f"there is no {self.base()!r}", "Make it, or mend the spout's path."
                ) from None
            if any(not entry.name for entry in entries("")):
                raise self._is_a_file()
        return Listing(tuple(sorted(files.values(), key=by_place)), time.monotonic_ns() - begun)

    def _is_a_file(self) -> ConfigurationError:
        address = self.base()
        return ConfigurationError(
            f"{address!r} is a file, and the path of a FileSpout in an HDFS is a folder or a pattern",
            f"Write a pattern that means it: {f'{address[:-1]}[{address[-1]}]'!r}.",
        )

    def content_of(self, base: str, file: FoundFile) -> str:
        return file.etag

    def is_as_listed(self, base: str, file: FoundFile) -> bool:
        now = self._now(file.path)
        return now is not None and (now.size, now.etag) == (file.size, file.etag)

    def claimed(self, base: str, files: Sequence[FoundFile], digest_bytes: int) -> Sequence[RecordedFile]:
        with ThreadPoolExecutor(max_workers=min(_THREADS, len(files))) as pool:
            same = list(pool.map(lambda file: self.is_as_listed(base, file), files))
        for file, unchanged in zip(files, same, strict=True):
            if not unchanged:
                raise still_written(f"{base}/{file.path}")
        return [_recorded(file) for file in files]

    def as_they_are(self, base: str, files: Sequence[RecordedFile], digest_bytes: int) -> Sequence[RecordedFile]:
        return [self._as_it_is(f"{base}/{file.path}", file) for file in files]

    def _as_it_is(self, location: str, file: RecordedFile) -> RecordedFile:
        now = self._now(file.path)
        if now is None:
            raise nothing_to_take(location)
        return _recorded(now)

    def looked_at(self, location: str, file: RecordedFile) -> RecordedFile:
        return file

    @contextmanager
    def opened(self, location: str, file: RecordedFile) -> Iterator[BinaryIO]:
        self._require_same(location, file)
        yield cast("BinaryIO", RangedFile(file.size, partial(self._range_of, location, file), AHEAD_BYTES))
        # Checked again, because the file may have changed while it was read.
        self._require_same(location, file)

    def _range_of(self, location: str, file: RecordedFile, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of the file that is there now.

        :raises SourceChangedError: it is gone, or shorter than the recorded one.
        """
        with self._asking(f"read {file.path!r}"):
            try:
                content = self.place.client().read(self._path(file.path), begin, end - begin)
            except FileNotFoundError:
                raise gone(location) from None
        if len(content) != end - begin:
            self._require_same(location, file)
            raise SourceUnavailableError(
                f"the file {location!r} gave {len(content)} of the {end - begin} bytes from {begin} on",
                "See that HDFS is healthy (hdfs fsck), and run the task again.",
            )
        return content

    def _require_same(self, location: str, file: RecordedFile) -> None:
        """
        :raises SourceChangedError: the file is gone, or another one, or was changed.
        """
        now = self._now(file.path)
        if now is None:
            raise gone(location)
        if (now.size, now.etag) != (file.size, file.digest):
            longer = f"{file.size} bytes then, {now.size} now"
            how = longer if now.size != file.size else "it was written again, or is another file"
            raise changed(location, how, "the same file, by a rename: a copy is another one")

    def _now(self, path: str) -> FoundFile | None:
        with self._asking(f"look at {path!r}"):
            try:
                status = self.place.client().status(self._path(path))
            except FileNotFoundError:
                return None
        return _found(_Child(status), path)

    def _path(self, name: str) -> str:
        return "/" + "/".join(part for part in (self.place.path, name) if part)

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            with self.place.errors(doing):
                yield
        except StoreUnavailableError as error:
            raise SourceUnavailableError(error.message, error.cure) from None


def _found(entry: _Child, path: str) -> FoundFile | None:
    """None: it is a folder."""
    status = entry.status
    at_ns, etag = status.modified_ms * _MS, f'"{status.file_id:x}-{status.modified_ms:x}"'
    return FoundFile(path, status.size, at_ns, at_ns, etag=etag) if status.is_file else None


def _recorded(file: FoundFile) -> RecordedFile:
    return RecordedFile(path=file.path, size=file.size, mtime_ns=file.mtime_ns, digest=file.etag)
