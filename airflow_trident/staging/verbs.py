"""Files and objects that several processes share: five verbs, on file systems and on object stores.

Correctness never needs a rename, or a link between two names. The files that count have a name that was taken once, by
`put_if_absent`, and that the ledger knows. All other files have names that nobody else uses.

Durable files: written under unique names, synced, and published by put-if-absent.
"""

from __future__ import annotations

import errno
import io
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, cast

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.private_files import create_private, make_private
from airflow_trident.io.seekable import RangedFile

if TYPE_CHECKING:
    from airflow_trident.io.object_stores import StoredObject

WriteTo = Callable[[BinaryIO], object]
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def storage_error(error: OSError, folder: str, what: str) -> TridentError:
    """What an error of the operating system means for a writer into `folder`; `what`: for example "the staging
    folder"."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreUnavailableError(
            f"{what} {folder!r} is full ({reason})", "Free some space and run the task again; nothing was published."
        )
    if error.errno in _REFUSED:
        return ConfigurationError(
            f"cannot write into {what} {folder!r} ({reason})",
            "Give it a folder that exists or can be made and that this user may write to.",
        )
    return StoreUnavailableError(
        f"{what} {folder!r} does not work ({reason})", "Mend its file system and run the task again."
    )


def stays_inside(path: str) -> bool:
    """Is `path`, from a record, below any folder that it is joined to? Judges by its text: links there belong to the
    owner."""
    return bool(path) and "\0" not in path and not os.path.isabs(path) and ".." not in path.split("/")


def make_folder(folder: str, *, private: bool = True, durably: bool = True) -> None:
    """Makes `folder` and the missing folders above it.

    :param private: see :mod:`airflow_trident.io.private_files`; if False, as the umask says.
    :param durably: False if the caller syncs the folders above, or their names need not be durable.
    :raises OSError: as os.makedirs.
    """
    missing: list[str] = []
    above = folder
    while not os.path.isdir(above):
        missing.append(above)
        parent = os.path.dirname(above)
        if parent == above:
            break
        above = parent
    for made in reversed(missing):
        try:
            make_private(made) if private else os.mkdir(made)
        except FileExistsError as error:
            if not os.path.isdir(made):
                raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name", folder) from error
        if durably:
            sync_folder(os.path.dirname(made))


def sync_folder(folder: str) -> None:
    """Makes the names in `folder` durable; ignores that a file system cannot sync folders."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def write_durably(path: str, write: WriteTo, *, name_too: bool = True, private: bool = True) -> int:
    """Writes a new file by `write(file)`, syncs it and its folder; leaves nothing behind if that fails.

    :param name_too: False if the caller syncs the folder, or the name need not be durable.
    :param private: see :mod:`airflow_trident.io.private_files`; if False, as the umask says.
    :returns: its size in bytes.
    :raises OSError: the file exists, or cannot be written.
    """
    try:
        with create_private(path) if private else open(path, "xb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        if name_too:
            sync_folder(os.path.dirname(path))
    except FileExistsError:
        raise
    except BaseException:
        _unlink(path)
        raise
    return size


def put_if_absent(path: str, content: bytes, *, private: bool = True) -> bool:
    """Publishes `content` as `path` in one atomic step, durably. False: `path` existed already and was not changed. In
    both cases the name is durable afterwards: another publisher may have been killed before it was.

    This uses a hard link, which fails if the name is taken, whoever took it, and shows only whole files. If the file
    system has no hard links, the name is taken first and then filled: a crash in between leaves a short file, which
    readers refuse.

    :raises OSError: it cannot be written.
    """
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    write_durably(temporary, lambda file: file.write(content), name_too=False, private=private)
    absent = True
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A server that was asked twice, because its first answer was lost, reports our own link as taken.
        absent = os.stat(temporary).st_nlink > 1
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            write_durably(path, lambda file: file.write(content), private=private)
        except FileExistsError:
            absent = False
    finally:
        _unlink(temporary)
    sync_folder(os.path.dirname(path))
    return absent


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return  # best effort: the name is unique and nobody reads it


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
