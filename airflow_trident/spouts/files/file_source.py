"""Where the files of a FileSpout are: what its coordinator and its emitter ask of a file system or an object store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import BinaryIO

from airflow_trident.spouts.files.contents import RecordedFile
from airflow_trident.spouts.files.listing import FoundFile, Listing


class FileSource(ABC):
    """A path, or a pattern of paths. Picklable; nothing is opened before it is asked.

    All verbs raise SourceUnavailableError if what they need cannot be looked at. `base`: what :meth:`base` said; a file
    is at `base` and its path, joined by ``/``.
    """

    is_local: bool
    """Are these paths of a file system, which Spark's own readers and scripts may be given?"""

    @property
    @abstractmethod
    def text(self) -> str:
        """As it was written, for people."""

    @abstractmethod
    def base(self) -> str:
        """The folder that the paths of files are below."""

    @abstractmethod
    def list(self) -> Listing:
        """The files that are meant, and none of their content."""

    @abstractmethod
    def content_of(self, base: str, file: FoundFile) -> str:
        """What tells the content of a listed file from another content.

        :raises OSError: it cannot be read.
        """

    @abstractmethod
    def is_as_listed(self, base: str, file: FoundFile) -> bool:
        """Asked of files whose listing is some seconds old."""

    @abstractmethod
    def claimed(self, base: str, files: Sequence[FoundFile], digest_bytes: int) -> Sequence[RecordedFile]:
        """What a transaction records of the files of its batch, in their order.

        :param digest_bytes: the content of a larger file is not read for it.
        :raises SourceUnavailableError: one changed since it was listed: it is still being written.
        """

    @abstractmethod
    def as_they_are(self, base: str, files: Sequence[RecordedFile], digest_bytes: int) -> Sequence[RecordedFile]:
        """The same files, with what they are now.

        :raises SourceChangedError: one is gone.
        """

    @abstractmethod
    def looked_at(self, where: str, file: RecordedFile) -> RecordedFile:
        """Look once at what all workers would have to find out, before they read parts of it. Never an error: the
        reader raises it."""

    @abstractmethod
    def opened(self, where: str, file: RecordedFile) -> AbstractContextManager[BinaryIO]:
        """A recorded file, for reading; it can be sought in.

        :param where: base and path.
        :raises SourceChangedError: it is gone, or has other content; or that is so when it has been read.
        """
