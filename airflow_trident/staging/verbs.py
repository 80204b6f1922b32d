"""Files and objects that several processes share: five verbs, on file systems and on object stores.

Correctness never needs a rename, or a link between two names. The files that count have a name that was taken once, by
`put_if_absent`, and that the ledger knows. All other files have names that nobody else uses.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast

from airflow_trident.io.seekable import RangedFile
from airflow_trident.staging.files import WriteTo

if TYPE_CHECKING:
    from airflow_trident.io.object_stores import StoredObject

PROBE = ".airflow-trident-takes-names-once"
"""An object that is put twice to test a place: the second try must be refused."""
STAGING = "the staging folder"
_AHEAD_BYTES = 8 << 20
"""The least that is read at a time."""


Keeps: TypeAlias = Callable[[str], bool]


def nothing_is_kept(_part: str) -> bool:
    return False


class Storage(ABC):
    """Names are relative, with ``/`` between their parts; a folder is the beginning of a name, up to a ``/``.

    All verbs raise StoreUnavailableError if the storage does not answer or is full, and ConfigurationError if this user
    lacks the permission or the storage is not what it should be.
    """

    is_local: bool
    """Is it a file system, so that others can use its paths?"""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, for people."""

    @abstractmethod
    def put_if_absent(self, name: str, content: bytes) -> bool:
        """Takes the name, in one atomic step, durably; the names of all files that were put into its folder become
        durable, too.

        :returns: does the name hold this content now? It may have done so before, if an earlier answer was lost.
        """

    @abstractmethod
    def put(self, name: str, write: WriteTo) -> int:
        """Puts what `write(file)` writes under a name that nobody else uses. The content is durable at once; the name
        when :meth:`put_if_absent` takes a name in the same folder.

        :returns: its size in bytes.
        """

    @abstractmethod
    def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """The content from byte `start` on: `size` bytes, or up to the end; fewer if it ends before.

        :raises FileNotFoundError: the name does not exist.
        """

    @abstractmethod
    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """Names below the folder, at any depth, with sizes; none if the folder does not exist. An object store gives
        them in name order."""

    @abstractmethod
    def delete(self, folder: str, first: str = "", end: str = "", keeps: Keeps = nothing_is_kept) -> int:
        """Deletes, best effort because leftovers are only garbage, all names below the folder whose next part is
        `first` or sorts after it, and before `end`, if `end` is given.

        :param keeps: says of such a part that it stays.
        :returns: how many parts were deleted.
        """

    @abstractmethod
    def remove(self, names: Sequence[str]) -> None:
        """Deletes these names, best effort. They must not belong to others."""

    def sweep(self, folder: str = "") -> None:
        """Deletes what writers that were killed long ago left unfinished right in this folder, best effort. Nothing
        where a killed writer leaves nothing, or where it goes with its folder."""

    def at(self, name: str) -> str:
        """A name for people; on file systems its absolute path."""
        return f"{self.where}/{name}"

    def stored(self, name: str) -> StoredObject | None:
        """As an object, if it is one that its store can copy."""
        return None

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """The sizes of those names that exist; all names are below the folder."""
        there, wanted = dict(self.list(folder)), set(names)
        return {name: size for name, size in there.items() if name in wanted}

    def open(self, name: str) -> BinaryIO:
        """Opens for reading; the file is seekable.

        :raises FileNotFoundError: the name does not exist.
        """
        return io.BytesIO(self.get(name))

    def open_ranges(self, name: str, size: int) -> BinaryIO:
        """Opens for reading piece by piece; asks for nothing before something is read.

        :param size: of the content, in bytes. Reading a shorter one, or none, raises an OSError.
        """

        def fetch(begin: int, end: int) -> bytes:
            content = self.get(name, begin, end - begin)
            if len(content) != end - begin:
                raise OSError(f"{self.at(name)!r} has fewer than {size} bytes")
            return content

        return cast("BinaryIO", RangedFile(size, fetch, _AHEAD_BYTES))

    def require_usable(self) -> None:
        """Does it exist, may this user write to it, and does it take names only once? Checked when an attempt begins.

        :raises ConfigurationError: no; the error says what to change.
        """

    def resolved(self) -> Storage:
        """The storage in a form for executors, which have no connections."""
        return self
