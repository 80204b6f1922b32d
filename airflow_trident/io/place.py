"""A place: a folder that several processes share, in a file system, an object store or an HDFS; and its files.

Correctness never needs a link between two names, and a rename only in :meth:`Place.show`. The files that count have a
name that was taken once, by :meth:`Place.put_once`, and that the ledger or a record knows. Most other files have unique
names.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, BinaryIO, Protocol, Self, cast

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.paths import require_local_path
from airflow_trident.io.private_files import create_private, make_private
from airflow_trident.io.seekable import RangedFile

WriteTo = Callable[[BinaryIO], object]
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def folder_error(error: OSError, folder: str, subject: str, doing: str = "write into") -> TridentError:
    """The error of this package for an error of the operating system in `folder`.

    :param subject: "the staging folder".
    """
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return StoreUnavailableError(
            f"{subject} {folder!r} is full ({reason})", "Free some space and run the task again; nothing was published."
        )
    if error.errno in _REFUSED:
        return ConfigurationError(
            f"cannot {doing} {subject} {folder!r} ({reason})",
            "Give it a folder that exists or can be made and that this user may write to.",
        )
    return StoreUnavailableError(
        f"{subject} {folder!r} does not work ({reason})", "Repair its file system and run the task again."
    )


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

    This uses a hard link, which fails if the name is taken, and shows only whole files. If the file system has no hard
    links, the name is taken first and then filled. A crash in between leaves a short file, which readers refuse.

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


# ---- the contract ----------------------------------------------------------------------------------------------

PROBE = ".airflow-trident-takes-names-once"
"""An object that is put twice to test a place: the second try must be refused."""
STAGING = "the staging folder"
_AHEAD_BYTES = 8 << 20
"""The least that is read at a time."""


@dataclass(frozen=True, slots=True)
class PlaceEntry:
    """A file of a place. `size`: in bytes."""

    name: str
    size: int


class Place(ABC):
    """Names are relative, with ``/`` between their parts; a folder is the beginning of a name, up to a ``/``.

    Each verb does its work whole and durably, or raises an error. StoreUnavailableError: the place does not answer, or
    is full. ConfigurationError: this user lacks the permission, or the place is not what it should be. A place is
    pickled with the settings of its connection, because executors have no connections.
    """

    is_local: bool
    """A file system, so that others can use its paths."""
    is_flat: bool
    """Has no folders: a part of a name is gone with the last name that has it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The place, for people."""

    @property
    def conn_id(self) -> str:
        """The id of its connection; empty: it has none."""
        return ""

    @abstractmethod
    def below(self, folder: str) -> Place:
        """A folder of it, as a place."""

    @abstractmethod
    def list(self, folder: str = "") -> Iterator[PlaceEntry]:
        """Files below the folder, at any depth; none if the folder does not exist. An object store gives them in name
        order. Unfinished files of an HDFS are left out."""

    @abstractmethod
    def names(self, folder: str = "", after: str = "") -> Sequence[str]:
        """The names right in the folder, of its files and its folders; none if the folder does not exist. One level
        only, and no sizes: a file system is not asked for each file.

        :param after: if given, only names that sort after it are needed.
        """

    @abstractmethod
    def stat(self, name: str) -> PlaceEntry | None:
        """None: there is no such file."""

    @abstractmethod
    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Fewer bytes if the file ends before `end`.

        :raises FileNotFoundError: the name does not exist.
        """

    @abstractmethod
    def put(self, name: str, write: WriteTo) -> int:
        """Puts what `write(file)` writes, whole or not at all, in place of what was there. The content is durable at
        once; the name after :meth:`sync`, or when :meth:`put_once` takes a name in the same folder.

        :returns: its size in bytes.
        """

    @abstractmethod
    def put_once(self, name: str, content: bytes) -> bool:
        """Takes the name, in one atomic step, durably; the names of all files that were put into its folder become
        durable, too.

        :returns: does the name hold this content now? It may have done so before, if an earlier answer was lost.
        """

    @abstractmethod
    def show(self, hidden: str, name: str) -> bool:
        """Moves a file, whole, over `name`; durable after :meth:`sync`. False: it is gone, so it was shown or deleted
        before."""

    @abstractmethod
    def delete(self, names: Sequence[str]) -> None:
        """Deletes files; and folders with all that is below, but in a flat place (:func:`clear` does that). A name that
        does not exist is no error."""

    @abstractmethod
    def check(self) -> None:
        """Makes the folder if it is missing. May this user write to it, and does it take names only once?

        :raises ConfigurationError: no; the error says what to change.
        """

    def sync(self) -> None:
        """Makes the names right in the place durable. Nothing to do where an answer says that they are."""

    def sweep(self, folder: str = "") -> None:
        """Deletes what writers that were killed long ago left unfinished right in this folder, best effort. Nothing
        where a killed writer leaves nothing, or where it goes with its folder."""

    def copy_to(self, name: str, target: Place, target_name: str) -> bool:
        """Lets the store copy the file, so that its bytes do not pass through this process. False: it must be read and
        written instead.

        :raises FileNotFoundError: there is no such file.
        """
        return False

    def at(self, name: str) -> str:
        """A name for people; on file systems its absolute path."""
        return f"{self.where}/{name}"

    def open(self, name: str, *, whole: bool = True) -> BinaryIO:
        """Opens for reading; the file is seekable.

        :param whole: all of it will be read, and may be in memory. If False, an object is read by ranges.
        :raises FileNotFoundError: the name does not exist.
        """
        return io.BytesIO(self.read(name))

    def resolved(self) -> Place:
        """With the settings of its connection.

        :raises ConfigurationError: there is no such connection.
        """
        return self


class RemoteAddress(Protocol):
    """Where a place is that is reached by requests."""

    @property
    def where(self) -> str: ...

    @property
    def conn_id(self) -> str: ...

    def resolved(self, *, required: bool = True) -> Self: ...


@dataclass(frozen=True)
class RemotePlace(Place):
    """A place that is reached by requests, whose answers may be lost."""

    address: RemoteAddress
    is_local = False

    def __getstate__(self) -> dict[str, Any]:
        return {"address": self.address.resolved(required=False)}

    @property
    def where(self) -> str:
        return self.address.where

    @property
    def conn_id(self) -> str:
        return self.address.conn_id

    def resolved(self) -> Self:
        return replace(self, address=self.address.resolved())

    def put_once(self, name: str, content: bytes) -> bool:
        try:
            return self._takes(name, content) or self._holds(name, content)
        except StoreUnavailableError:  # perhaps only its answer was lost
            with suppress(TridentError, FileNotFoundError):
                if self.read(name) == content:
                    return True
            raise

    @abstractmethod
    def _takes(self, name: str, content: bytes) -> bool:
        """False: the name is taken, perhaps by an earlier try of this call whose answer was lost."""

    @abstractmethod
    def _absent(self, name: str) -> StoreUnavailableError:
        """The error for a name that is taken and not there."""

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.read(name) == content
        except FileNotFoundError:
            raise self._absent(name) from None

    def takes_twice(self) -> bool:
        """Does the place ignore that a name is taken?"""
        return self._takes(PROBE, b"") and self._takes(PROBE, b"")


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file of a place."""

    place: Place
    name: str

    def copied_to(self, target: PlacedFile) -> bool:
        """See :meth:`Place.copy_to`."""
        return self.place.copy_to(self.name, target.place, target.name)


# ---- what every place can do by its verbs ----------------------------------------------------------------------


def nothing_is_kept(_part: str) -> bool:
    return False


def clear(
    place: Place, folder: str, first: str = "", end: str = "", keeps: Callable[[str], bool] = nothing_is_kept
) -> int:
    """Deletes what is below the folder and whose next part is not before `first`, and is before `end`, if given.
    Without these three it deletes the folder, too. Best effort: leftovers are only garbage.

    :param keeps: says of such a part that it stays.
    :returns: how many parts were deleted.
    """

    def goes(part: str) -> bool:
        return first <= part and (not end or part < end) and not keeps(part)

    parts = set[str]()
    with suppress(TridentError):
        if place.is_flat:
            begin = len(f"{folder}/") if folder else 0
            names = (entry.name for entry in place.list(folder))
            before_end = takewhile(lambda name: not end or name[begin:].split("/", 1)[0] < end, names)
            removed = [name for name in before_end if goes(name[begin:].split("/", 1)[0])]
            parts = {name[begin:].split("/", 1)[0] for name in removed}
        else:
            parts = set(filter(goes, place.names(folder, first[:-1])))
            removed = [f"{folder}/{part}" if folder else part for part in sorted(parts)]
            removed = removed if first or end or keeps is not nothing_is_kept else [folder]
        place.delete(removed)
    return len(parts)


def discard(place: Place, names: Sequence[str]) -> None:
    """Deletes these files, best effort."""
    with suppress(TridentError):
        place.delete(names)


def sizes(place: Place, folder: str, names: Iterable[str]) -> dict[str, int]:
    """The sizes of those names that exist; all names are below the folder. A file system is asked for one file at a
    time, because the listing of a file server may be some seconds old."""
    if place.is_local:
        entries: Iterable[PlaceEntry] = filter(None, map(place.stat, names))
    else:
        wanted = set(names)
        entries = (entry for entry in place.list(folder) if entry.name in wanted)
    return {entry.name: entry.size for entry in entries}


def open_ranges(place: Place, name: str, size: int) -> BinaryIO:
    """Opens for reading piece by piece; asks for nothing before something is read.

    :param size: of the content, in bytes. Reading a shorter one, or none, raises an OSError.
    """

    def fetch(begin: int, end: int) -> bytes:
        content = place.read(name, begin, end)
        if len(content) != end - begin:
            raise OSError(f"{place.at(name)!r} has fewer than {size} bytes")
        return content

    return cast("BinaryIO", RangedFile(size, fetch, _AHEAD_BYTES))


# ---- file systems ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PosixPlace(Place):
    """A folder. `root` may begin with ``~``.

    For speed, the two lowest folders of a name, below the root, are made without a sync. `put_once` syncs them, also
    those that another process made.

    :param subject: what the folder is, for errors.
    :param private: see :mod:`airflow_trident.io.private_files`; if False, as the umask says.
    """

    root: str
    subject: str = STAGING
    private: bool = True
    is_local = True
    is_flat = False

    @property
    def folder(self) -> str:
        return os.path.abspath(os.path.expanduser(require_local_path(self.subject, self.root)))

    @property
    def where(self) -> str:
        return self.folder

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def below(self, folder: str) -> PosixPlace:
        return replace(self, root=os.path.join(self.root, folder))

    def list(self, folder: str = "") -> Iterator[PlaceEntry]:
        root = self.folder
        with self._errors():
            for above, _, names in os.walk(os.path.join(root, folder), onerror=_unless_gone):
                for name in names:
                    path = os.path.join(above, name)
                    try:
                        size = os.path.getsize(path)
                    except FileNotFoundError:
                        continue
                    yield PlaceEntry(os.path.relpath(path, root), size)

    def names(self, folder: str = "", after: str = "") -> Sequence[str]:
        with self._errors():
            try:
                return os.listdir(self.at(folder))
            except OSError as error:
                _unless_gone(error)
                return []

    def stat(self, name: str) -> PlaceEntry | None:
        with self._errors():
            try:
                status = os.stat(self.at(name))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return None if stat.S_ISDIR(status.st_mode) else PlaceEntry(name, status.st_size)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        with self._errors(f"read {name!r} in", may_miss=True), self.open(name) as file:
            file.seek(begin)
            return file.read(-1 if end is None else max(0, end - begin))

    def open(self, name: str, *, whole: bool = True) -> BinaryIO:
        """Other errors stay those of the operating system, as they are of reading the file."""
        try:
            return open(self.at(name), "rb")
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.at(name)) from error

    def put(self, name: str, write: WriteTo) -> int:
        with self._errors():
            path = self._ready(name)
            try:
                return write_durably(path, write, name_too=False, private=self.private)
            except FileExistsError:
                draft = f"{path}.{uuid.uuid4().hex}.tmp"
                size = write_durably(draft, write, name_too=False, private=self.private)
                os.replace(draft, path)
                return size

    def put_once(self, name: str, content: bytes) -> bool:
        with self._errors():
            try:
                absent = put_if_absent(self._ready(name), content, private=self.private)
            except FileNotFoundError:  # so slow that others have cleaned up its draft
                absent = put_if_absent(self._ready(name), content, private=self.private)
            for folder in self._lowest(name)[1:]:
                sync_folder(folder)  # whoever made them may be dead
            return absent or self.read(name) == content

    def show(self, hidden: str, name: str) -> bool:
        with self._errors():
            try:
                os.replace(self.at(hidden), self._ready(name))
            except FileNotFoundError:
                return False
            return True

    def delete(self, names: Sequence[str]) -> None:
        """All that can be deleted are, before an error is raised."""
        errors = [error for name in names if (error := _deleted(self.at(name))) is not None]
        for error in errors[:1]:
            with self._errors("delete from"):
                raise error

    def sync(self) -> None:
        with self._errors():
            sync_folder(self.folder)

    def check(self) -> None:
        with self._errors():
            make_folder(self.folder, private=self.private)

    def _lowest(self, name: str) -> Sequence[str]:
        """The folder of a name and the two above it, but none above the root."""
        root, folder = self.folder, os.path.dirname(self.at(name))
        folders = [folder]
        while folder != root and len(folders) < 3:
            folder = os.path.dirname(folder)
            folders.append(folder)
        return folders

    def _ready(self, name: str) -> str:
        path = self.at(name)
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            make_folder(self._lowest(name)[-1], private=self.private)
            make_folder(folder, private=self.private, durably=False)
        return path

    @contextmanager
    def _errors(self, doing: str = "write into", *, may_miss: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if may_miss and isinstance(error, FileNotFoundError):
                raise
            raise folder_error(error, self.folder, self.subject, doing) from error


def _unless_gone(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one. One that does not exist is, and so is what is no folder."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _deleted(path: str) -> OSError | None:
    """Deletes a file, or a folder with all that is below, as far as possible."""
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        shutil.rmtree(path, ignore_errors=True)
        return error if os.path.lexists(path) else None
    return None
