"""Lists the files that a path or a pattern means: names and times, no content."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from airflow_trident.errors import SourceUnavailableError

_MAGIC = re.compile(r"[*?\[]")
_HIDDEN = (".", "_")
_TEMPORARY = (".tmp", ".part", "._COPYING_")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """`path`: relative to the base, with ``/``. `ctime_ns`: the last change of the file's name or status, which nobody
    can set back (`mtime_ns` can be set back). `etag`: the mark of an object's content that its store gives."""

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    etag: str = ""

    @property
    def place(self) -> tuple[int, str]:
        """Sort key: oldest first; files with the same time in the order of their paths."""
        return self.mtime_ns, self.path


by_place: Callable[[FoundFile], Any] = attrgetter("mtime_ns", "path")
"""`place` without a Python call for each file, because each transaction sorts thousands of files."""


@dataclass(frozen=True, slots=True)
class Listing:
    """`took_ns`: how long the listing took; names that appeared during that time may be missing."""

    files: tuple[FoundFile, ...]
    took_ns: int


@dataclass(frozen=True, slots=True)
class FilePattern:
    """A file, a folder, or a pattern with ``*``, ``?``, ``[...]`` and ``**``.

    Names that begin with ``.`` or ``_`` are left out unless the pattern's part begins with the same character. Names
    that end with ``.tmp``, ``.part`` or ``._COPYING_`` are left out unless the pattern's part is that name: others are
    still writing these files.
    """

    text: str
    recursive: bool

    def resolve(self) -> tuple[str, tuple[str, ...]]:
        """The absolute base folder, and the pattern below it.

        :raises SourceUnavailableError: a path without a pattern does not exist.
        """
        whole = os.path.abspath(os.path.expanduser(self.text))
        parts = whole.split(os.sep)
        plain = plain_parts(parts)
        if plain < len(parts) and not os.path.lexists(whole):
            return os.sep.join(parts[:plain]) or os.sep, tuple(parts[plain:])
        if os.path.isdir(whole):
            return whole, ("**", "*") if self.recursive else ("*",)
        if os.path.lexists(whole):
            return os.path.dirname(whole), (_escaped(parts[-1]),)
        raise _missing(whole)

    def list(self) -> Listing:
        """
        :raises SourceUnavailableError: a folder does not exist or cannot be read.
        """
        begun = time.monotonic_ns()
        base, parts = self.resolve()
        if not os.path.isdir(base):
            raise _missing(base)
        found = {file.path: file for file in walk(partial(_entries, base), _found, "", parts)}
        files = tuple(sorted(found.values(), key=by_place))
        return Listing(files, time.monotonic_ns() - begun)


class Entry(Protocol):
    """What is in a folder."""

    @property
    def name(self) -> str: ...

    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...


E = TypeVar("E", bound=Entry)


def walk(
    entries: Callable[[str], Sequence[E]],
    describe: Callable[[E, str], FoundFile | None],
    folder: str,
    parts: Sequence[str],
) -> Iterator[FoundFile]:
    """The files that a pattern below a folder means; some may come twice.

    :param entries: what is in a folder, by its path below the base.
    :param describe: an entry and its path; None: it is no file.
    """
    part, rest = parts[0], parts[1:]
    if part == "**":
        yield from walk(entries, describe, folder, rest or ("*",))
    for entry in entries(folder):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if part == "**":
            # Links are not followed here: they may lead in a circle.
            if not entry.name.startswith(_HIDDEN) and entry.is_dir(follow_symlinks=False):
                yield from walk(entries, describe, path, parts)
        elif not _is_meant(entry.name, part):
            continue
        elif rest:
            if entry.is_dir():
                yield from walk(entries, describe, path, rest)
        elif file := describe(entry, path):
            yield file


def _entries(base: str, folder: str) -> list[os.DirEntry[str]]:
    path = os.path.join(base, folder)
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except FileNotFoundError:
        if not folder:
            raise _missing(path) from None
        return []  # removed after its name was read
    except OSError as error:
        raise SourceUnavailableError(
            f"the folder {path!r} cannot be listed ({error.strerror})",
            "Let this user read it, or mend its file system.",
        ) from error


def _found(entry: os.DirEntry[str], path: str) -> FoundFile | None:
    try:
        status = entry.stat()
        link_status = entry.stat(follow_symlinks=False) if entry.is_symlink() else status
    except FileNotFoundError:
        return None  # removed after its name was read, or a link to nothing
    except OSError as error:
        raise SourceUnavailableError(
            f"the file {entry.path!r} cannot be looked at ({error.strerror})", "Let this user read it."
        ) from error
    if not stat.S_ISREG(status.st_mode):
        return None
    return FoundFile(path, status.st_size, status.st_mtime_ns, max(status.st_ctime_ns, link_status.st_ctime_ns))


def is_meant(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Does the pattern match a file with these folders and name, by the rules of :meth:`FilePattern.list`? For stores
    without folders."""
    part, rest = parts[0], parts[1:]
    if part == "**":
        if is_meant(names, rest or ("*",)):
            return True
        return len(names) > 1 and not names[0].startswith(_HIDDEN) and is_meant(names[1:], parts)
    if not _is_meant(names[0], part) or bool(rest) != (len(names) > 1):
        return False
    return not rest or is_meant(names[1:], rest)


def plain_parts(parts: Sequence[str]) -> int:
    """The number of parts before the first one with ``*``, ``?`` or ``[``."""
    return next((index for index, part in enumerate(parts) if _MAGIC.search(part)), len(parts))


def plain_text_of(part: str) -> str:
    """The beginning of all names that a part of a pattern matches."""
    return _MAGIC.split(part, maxsplit=1)[0]


def _is_meant(name: str, part: str) -> bool:
    if part == (_escaped(name) if "[" in part or _MAGIC.search(name) else name):
        return True
    hidden = name.startswith(_HIDDEN) and part[:1] != name[:1]
    return fnmatchcase(name, part) and not hidden and not name.endswith(_TEMPORARY)


def _escaped(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


def _missing(path: str) -> SourceUnavailableError:
    return SourceUnavailableError(f"there is no {path!r}", "Make it, mend the spout's path, or mount its file system.")
