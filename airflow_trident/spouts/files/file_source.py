"""The place of a FileSpout's files: the questions of its coordinator and emitter to a file system or object store.

Files on file systems, for a FileSpout.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.files.contents import RecordedFile, as_they_are, digest_of, digests_of, require_same
from airflow_trident.spouts.files.listing import FilePattern, FoundFile, Listing


class FileSource(ABC):
    """A path, or a pattern of paths. Can be pickled; opens nothing before the first question.

    All verbs raise SourceUnavailableError if they cannot look at what they need. `base`: the result of :meth:`base`. A
    file is at `base` and its path, joined by ``/``.
    """

    is_local: bool
    """Are these paths of a file system, which Spark's own readers and scripts can use?"""

    @property
    @abstractmethod
    def text(self) -> str:
        """The path as the user wrote it, for people."""

    @abstractmethod
    def base(self) -> str:
        """The folder above all paths of files."""

    @abstractmethod
    def list(self) -> Listing:
        """The files that the path means, without their content."""

    @abstractmethod
    def content_of(self, base: str, file: FoundFile) -> str:
        """A text that identifies the content of a listed file.

        :raises OSError: the file cannot be read.
        """

    @abstractmethod
    def is_as_listed(self, base: str, file: FoundFile) -> bool:
        """Is the file as it was listed? Called when the listing is some seconds old."""

    @abstractmethod
    def claimed(self, base: str, files: Sequence[FoundFile], digest_bytes: int) -> Sequence[RecordedFile]:
        """What a transaction records of the files of its batch, in their order.

        :param digest_bytes: the content of a larger file is not read for this.
        :raises SourceUnavailableError: a file changed since it was listed: it is still being written.
        """

    @abstractmethod
    def as_they_are(self, base: str, files: Sequence[RecordedFile], digest_bytes: int) -> Sequence[RecordedFile]:
        """The same files with their present size, time and content.

        :raises SourceChangedError: a file is gone.
        """

    @abstractmethod
    def looked_at(self, path: str, file: RecordedFile) -> RecordedFile:
        """Look once, before the file's parts are read, at what otherwise each worker would look at. Never raises: the
        reader will raise the error."""

    @abstractmethod
    def opened(self, path: str, file: RecordedFile) -> AbstractContextManager[BinaryIO]:
        """Open a recorded file for reading; it can seek.

        :param path: base and path.
        :raises SourceChangedError: the file is gone or has other content, before or after it was read.
        """


@dataclass(frozen=True)
class LocalFiles(FileSource):
    """Files that are identified by size, time and a digest of the content."""

    pattern: FilePattern
    is_local = True

    @property
    def text(self) -> str:
        return self.pattern.text

    def base(self) -> str:
        return self.pattern.resolve()[0]

    def list(self) -> Listing:
        return self.pattern.list()

    def content_of(self, base: str, file: FoundFile) -> str:
        return digest_of(os.path.join(base, file.path))

    def is_as_listed(self, base: str, file: FoundFile) -> bool:
        try:
            status = os.stat(os.path.join(base, file.path))
        except OSError:
            return False
        return (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)

    def claimed(self, base: str, files: Sequence[FoundFile], digest_bytes: int) -> Sequence[RecordedFile]:
        digests = digests_of(base, files, digest_bytes)
        return [
            RecordedFile(path=file.path, size=file.size, mtime_ns=file.mtime_ns, digest=digests[file.path])
            for file in files
        ]

    def as_they_are(self, base: str, files: Sequence[RecordedFile], digest_bytes: int) -> Sequence[RecordedFile]:
        return as_they_are(base, files, digest_bytes)

    def looked_at(self, path: str, file: RecordedFile) -> RecordedFile:
        """If only the time differs, the content is compared here, once, and not for each part."""
        with suppress(SourceChangedError, SourceUnavailableError):
            return require_same(path, file)
        return file

    @contextmanager
    def opened(self, path: str, file: RecordedFile) -> Iterator[BinaryIO]:
        status = require_same(path, file)
        try:
            with open(path, "rb") as opened:
                yield opened
        except DamagedInputError:
            require_same(path, status)
            raise
        except OSError as error:
            require_same(path, status)
            raise SourceUnavailableError(
                f"the file {path!r} cannot be read ({error.strerror or error})",
                "Let this user read it, or mend its file system, and run the task again.",
            ) from error
        # Checked again, because the file may have changed while it was read.
        require_same(path, status)
