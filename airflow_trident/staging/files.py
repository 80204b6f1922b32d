"""Durable files: written under unique names, synced, and published by put-if-absent."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable
from typing import BinaryIO

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.private_files import create_private, make_private

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
