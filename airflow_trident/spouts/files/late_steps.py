"""Takes many late files in steps, so that few of them must be known by name. Pure.

While late files are unread, the marks of a position must not make read ones of them. But a mark may move up to the
first of those that are left: so late files are taken in the order in which they came, and behind it the marks tell that
a file was read. Of folders that were moved in, whose files keep the times of their old place, one is taken after the
other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.marks import folder_mark

MAX_TAKEN = 30_000
"""With more names of late files a coordinator waits until a mark can move: a request to ZooKeeper holds some 45,000."""


def in_steps(late: Iterable[FoundFile], settled_ns: int) -> list[FoundFile]:
    """Late files in the order in which they are taken.

    :param settled_ns: those with an older ctime came with their folders.
    """

    def step(file: FoundFile) -> tuple[int, str, tuple[int, str]]:
        return (-1, file.folder, file.place) if file.ctime_ns < settled_ns else (file.ctime_ns, "", file.place)

    return sorted(late, key=step)


def marks_before(
    left: Sequence[FoundFile],
    found: Iterable[FoundFile],
    *,
    window_ns: int,
    settled_ns: int,
    most_ns: int,
    folders: frozenset[str],
) -> tuple[int, frozenset[str]]:
    """`settled_ns` and the marks of `folders`, moved on as far as no file that is left looks read by them.

    :param left: files that are in no batch yet.
    :param found: all files.
    :param most_ns: `settled_ns` cannot be higher.
    """
    old = [file for file in left if file.mtime_ns < window_ns]
    moved_in = {file.folder for file in old if file.ctime_ns < settled_ns}
    came = (file.ctime_ns for file in old if file.ctime_ns >= settled_ns)
    known = {file.folder for file in found} - moved_in
    return max(settled_ns, min([most_ns, *came])), folders | {folder_mark(name) for name in known}
