"""The place of a FileSpout's files: the questions of its coordinator and emitter to a file system or object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from airflow_trident.spouts.files.contents import RecordedFile
from airflow_trident.spouts.files.listing import FoundFile, Listing


class FileSource(ABC):
    """A path, or a pattern of paths. Can be pickled; opens nothing before the first question.

    All verbs raise SourceUnavailableError if they cannot look at what they need. `base`: the result of :meth:`base`. A
    file is at `base` and its path, joined by ``/``.
    """

    is_local: bool
    """Are these paths of a file system, which Spark's own readers and scripts can use?"""
    dates_moves = True
    """Does a time of a file (`FoundFile.ctime_ns`) say when it got its name?"""

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
    def looked_at(self, where: str, file: RecordedFile) -> RecordedFile:
        """Look once, before the file's parts are read, at what otherwise each worker would look at. Never raises: the
        reader will raise the error."""

    @abstractmethod
    def opened(self, where: str, file: RecordedFile) -> AbstractContextManager[BinaryIO]:
        """Open a recorded file for reading; it can seek.

        :param where: base and path.
        :raises SourceChangedError: the file is gone or has other content, before or after it was read.
        """
