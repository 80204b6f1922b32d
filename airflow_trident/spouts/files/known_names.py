"""The names of read files that a position keeps, in the order of the files' times: mark of the name -> mark of size and
time. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.marks import name_mark, stamp_of
from airflow_trident.spouts.files.old_files import Away


def gone_away(seen: Mapping[str, str], found: Iterable[FoundFile], window_ns: int, cursor_ns: int) -> list[Away]:
    """The read files that are not there now, and may come back. Their times are between those of their neighbours,
    because the names are in the order of the files' times.

    :param window_ns, cursor_ns: begin of the window, and time of the last file read.
    """
    names = _times_when_read(seen, found)
    earliest = accumulate((-math.inf if time_ns is None else min(time_ns, window_ns) for _, _, time_ns in names), max)
    upwards = (cursor_ns if time_ns is None else time_ns for _, _, time_ns in reversed(names))
    latest = reversed(list(accumulate(upwards, min)))
    return [
        Away(name, earliest_ns, latest_ns)
        for (name, is_there, _), earliest_ns, latest_ns in zip(names, earliest, latest, strict=True)
        if not is_there
    ]


def _times_when_read(seen: Mapping[str, str], found: Iterable[FoundFile]) -> list[tuple[str, bool, int | None]]:
    """Each known name, whether its file is there, and the time that it had, if it is known."""
    there = {name_mark(file.path): file for file in found}
    times: list[tuple[str, bool, int | None]] = []
    for name, stamp in seen.items():
        file = there.get(name)
        is_same = file is not None and stamp == stamp_of(file.size, file.mtime_ns, file.etag)
        times.append((name, file is not None, file.mtime_ns if file and is_same else None))
    return times


def with_older(before: Mapping[str, str], found: Iterable[FoundFile], files: Sequence[FoundFile]) -> dict[str, str]:
    """The names that are known, and those of files that are older than some: each after the last one that is known to
    be older, so that nothing seems older than it is."""
    seen, waiting, unknown = dict[str, str](), list(files), list[str]()

    def put(upto_ns: float) -> None:
        while waiting and waiting[0].mtime_ns < upto_ns:
            file = waiting.pop(0)
            seen[name_mark(file.path)] = stamp_of(file.size, file.mtime_ns, file.etag)
        seen.update((name, before[name]) for name in unknown)
        unknown.clear()

    for name, _, time_ns in _times_when_read(before, found):
        if time_ns is not None:
            put(time_ns)
            seen[name] = before[name]
        else:
            unknown.append(name)
    put(math.inf)
    return seen
