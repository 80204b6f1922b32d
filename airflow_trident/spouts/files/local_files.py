"""Files on file systems, for a FileSpout."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.files.contents import RecordedFile, as_they_are, digest_of, digests_of, require_same
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import FilePattern, FoundFile, Listing


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

    def looked_at(self, where: str, file: RecordedFile) -> RecordedFile:
        """If only the time differs, the content is compared here, once, and not for each part."""
        with suppress(SourceChangedError, SourceUnavailableError):
            return require_same(where, file)
        return file

    @contextmanager
    def opened(self, where: str, file: RecordedFile) -> Iterator[BinaryIO]:
        known = require_same(where, file)
        try:
            with open(where, "rb") as opened:
                yield opened
        except DamagedInputError:
            require_same(where, known)
            raise
        except OSError as error:
            require_same(where, known)
            raise SourceUnavailableError(
                f"the file {where!r} cannot be read ({error.strerror or error})",
                "Let this user read it, or mend its file system, and run the task again.",
            ) from error
        # Checked again, because the file may have changed while it was read.
        require_same(where, known)
