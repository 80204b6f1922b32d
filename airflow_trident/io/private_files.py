"""Files that only their user can read, unless their folder is shared.

States, staged batches, spools, orders and the data of servers hold rows and logins. They get the modes 0600 and 0700,
whatever the umask. A folder counts as shared if others may write to it. New files in it are open to the same others,
its group or everybody, and belong to its group if it has the setgid bit. A sticky folder (``/tmp``) does not count as
shared: each user keeps separate files there.
"""

from __future__ import annotations

import errno
import os
import stat
import uuid
from contextlib import suppress
from typing import BinaryIO

from airflow_trident.errors import ConfigurationError

_OWNER, _GROUP, _OTHERS = 0o700, 0o070, 0o007


def folder_mode(above: str) -> int:
    """The mode of a new folder in the folder `above`.

    :raises OSError: `above` cannot be read.
    """
    mode = os.stat(above).st_mode
    if mode & stat.S_ISVTX:
        return _OWNER
    shared = (_GROUP if mode & stat.S_IWGRP else 0) | (_OTHERS if mode & stat.S_IWOTH else 0)
    return _OWNER | shared | (mode & stat.S_ISGID if shared else 0)


def others_may_write(root: str, folder: str) -> bool:
    """May somebody else write to `root`, to `folder` below it, or to a folder between them? Who may write to one of
    these can put another folder in the place of those below it.

    :raises OSError: one of them cannot be read.
    """
    root, ancestor = os.path.realpath(root), os.path.realpath(folder)
    while True:
        if folder_mode(ancestor) != _OWNER or os.stat(ancestor).st_uid not in (os.geteuid(), 0):
            return True
        above = os.path.dirname(ancestor)
        if ancestor in (root, above):
            return False
        ancestor = above


def file_mode(folder: str) -> int:
    return folder_mode(folder) & 0o666


def make_private(folder: str) -> None:
    """Make one folder.

    :raises OSError: as os.mkdir.
    """
    above = os.path.dirname(folder) or "."
    mode = folder_mode(above)
    if mode == _OWNER:
        os.mkdir(folder, mode)
        return
    # Made under another name: other users must never see it closed, and the umask may close it.
    made = os.path.join(above, f".{uuid.uuid4().hex}")
    os.mkdir(made, _OWNER)
    os.chmod(made, mode)
    try:
        os.rename(made, folder)
    except OSError as error:
        os.rmdir(made)
        if os.path.lexists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder) from error
        raise


def create_private(path: str) -> BinaryIO:
    """A new file, open for writing.

    :raises OSError: as open; FileExistsError if it exists.
    """
    mode = file_mode(os.path.dirname(path) or ".")
    file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - the caller closes it
    if mode != 0o600:
        os.fchmod(file.fileno(), mode)
    return file


def touch_private(path: str) -> None:
    """Create the file if it is missing, for a library that opens it by name. An existing file keeps its mode."""
    with suppress(OSError):
        create_private(path).close()


def read_own(path: str, subject: str) -> bytes:
    """The content of a file that only this user or root can have written, because it will be unpickled.

    :param subject: "the order of a drain".
    :raises ConfigurationError: another user owns it or may write to it.
    :raises OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigurationError(
                f"{subject} {path!r} belongs to user {status.st_uid} and this process to user {os.geteuid()}: somebody "
                "else may have put it there",
                "Let the driver run as the user of the task, or keep others from writing into the staging folder.",
            )
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise ConfigurationError(
                f"{subject} {path!r} may be written by others (mode {stat.S_IMODE(status.st_mode):o})",
                "Run the task again; let nobody change the modes of files in the staging folder.",
            )
        return file.read()
