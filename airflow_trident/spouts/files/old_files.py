"""What is kept of the read files that are older than the window: no names, but numbers and sums of names. Pure.

They are kept by stretches of time (:class:`Stretch`), because files come and go at different ends: those that expire
are the oldest, and those that come with a time from before (a clock went back, an upload took long) are the newest.
Within a stretch what went away is kept apart from what is there: it may come back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any

from airflow_trident.errors import SourceChangedError
from airflow_trident.spouts.files.contents import written_anew
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.marks import number_of, number_of_mark
from airflow_trident.types import Json

MAX_STRETCHES = 16
"""Each takes some 60 bytes in the metadata of every transaction."""
_LAST_S = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
"""Python writes no moments after that day; some file systems have them."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of files, and the sum of their names: the same for the same files in any order."""

    files: int = 0
    total: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.files + other.files, self.total + other.total)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.files - other.files, self.total - other.total)


NONE = Tally()


@dataclass(frozen=True, slots=True)
class Stretch:
    """The old files with times below `upto_ns` and not below that of the stretch before.

    `gone`: of those that were read and are not there; more of them, where nobody knows in which they were.
    """

    upto_ns: int
    there: Tally
    gone: Tally = NONE


Stretches = tuple[Stretch, ...]
"""In the order of their times."""


def stretches_to_json(stretches: Stretches) -> dict[str, Json]:
    """`files` and `total` are for versions of the package that do not know stretches."""
    there = sum((one.there for one in stretches), NONE)
    listed: list[Json] = []
    for one in stretches:
        gone: list[Json] = [one.gone.files, f"{one.gone.total:x}"] if one.gone != NONE else []
        listed.append([one.upto_ns, one.there.files, f"{one.there.total:x}", *gone])
    return {"files": there.files, "total": f"{there.total:x}", "stretches": listed}


def stretches_from_json(old: Any, upto_ns: int) -> Stretches:
    """The inverse.

    :param upto_ns: the window's begin, for what was written by a version that did not know stretches.
    :raises AttributeError, KeyError, TypeError, ValueError: it is something else.
    """
    if "stretches" not in old:
        return (Stretch(upto_ns, Tally(int(old["files"]), int(old["total"], 16))),)
    return tuple(
        Stretch(int(upto), Tally(int(files), int(total, 16)), Tally(int(gone[0]), int(gone[1], 16)) if gone else NONE)
        for upto, files, total, *gone in old["stretches"]
    )


def tally(files: Iterable[FoundFile]) -> Tally:
    numbers = [number_of(file.path) for file in files]
    return Tally(len(numbers), sum(numbers))


# ---- one look --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """`came`: the files that look read and are new; `stretches`: as before, with what went away or came back since."""

    came: Sequence[FoundFile]
    stretches: Stretches


def judged(
    stretches: Stretches,
    old: Sequence[FoundFile],
    late: Sequence[FoundFile],
    new: Sequence[FoundFile],
    *,
    behind_ns: int,
    settled_ns: int,
    base: str,
) -> Judged:
    """Compare the files that look read with those that were.

    :param late: of which nobody can tell: some may be read ones that were touched.
    :param new: the files that look new: some may be read ones that were written anew.
    :param behind_ns: how much the clock is behind what the last batch had seen, beyond what is allowed.
    :param settled_ns: what the last batch had seen, for error texts; `base`: the folder, for them, too.
    :raises SourceChangedError: some are new, or may be, but nobody can tell which; or what went away is among `new`.
    """
    came: list[FoundFile] = []
    now: list[Stretch] = []
    went: list[Tally] = []
    borders = [one.upto_ns for one in stretches]
    for one, files, touched in zip(stretches, _by_stretch(borders, old), _by_stretch(borders, late), strict=True):
        added, gone = tally(files) - one.there, one.gone
        if added == gone:
            gone = NONE  # all that had gone away is back, or nothing had and nothing is new
        elif added.files < 0 and behind_ns <= 0:
            if added + tally(touched) != NONE:
                went.append(NONE - added)
                gone -= added  # read files were removed, which is allowed
        elif added != NONE:
            found = _neighbours(files, added) if added.files > 0 and gone == NONE else ()
            if not found:
                raise _unknown(base, settled_ns, some_had_gone=gone != NONE)
            came += found
        now.append(replace(one, gone=gone))
    if anew := _written_anew(new, went):
        raise written_anew([file.path for file in anew], base)
    return Judged(came, tuple(now))


def _by_stretch(borders: Sequence[int], files: Iterable[FoundFile]) -> list[list[FoundFile]]:
    """The files of each stretch, and in the last one those without."""
    found: list[list[FoundFile]] = [[] for _ in borders]
    for file in files:
        found[_place(borders, file.mtime_ns)].append(file)
    return found


def _place(borders: Sequence[int], time_ns: float) -> int:
    return min(bisect_right(borders, time_ns), len(borders) - 1)


def _neighbours(files: Iterable[FoundFile], *wanted: Tally) -> Sequence[FoundFile]:
    """The files with the names of the first one of `wanted` that is found. They came or were written one after the
    other, so they are neighbours in the order of their ctimes. Empty if there are none."""
    ordered = sorted(files, key=lambda file: (file.ctime_ns, file.path))
    sums = [0, *accumulate(number_of(file.path) for file in ordered)]
    for names in wanted:
        for begin in range(len(ordered) - names.files + 1):
            if sums[begin + names.files] - sums[begin] == names.total:
                return ordered[begin : begin + names.files]
    return ()


def _written_anew(new: Sequence[FoundFile], went: Sequence[Tally]) -> Sequence[FoundFile]:
    """The files among new ones with the names of those that went away from a stretch, or from all stretches behind one
    (older files may have expired meanwhile). Empty if there are none, or nobody can tell which."""
    if not new or not went:
        return ()
    return _neighbours(new, *dict.fromkeys([*went, *accumulate(reversed(went))]))


def _unknown(base: str, settled_ns: int, *, some_had_gone: bool) -> SourceChangedError:
    wrong = f"the files in {base!r} that should have been read are not those that were: "
    if some_had_gone:
        return SourceChangedError(
            f"{wrong}files with times from before the window came, and some that were read had gone away, so nobody "
            "can tell whether these are new or came back",
            "Remove those that were read, or put all that were removed back; `touch` each file that was in no batch: "
            "then it is new.",
        )
    until = moment_of(settled_ns)
    return SourceChangedError(
        f"{wrong}the clock was set back behind {until}, or the path of the spout was changed, and files came or went "
        "since",
        f"Put read files that were removed back; or, when the clock is past {until}, `touch` each file that was in no "
        "batch: then it is new.",
    )


def moment_of(time_ns: int) -> str:
    """A time, for people."""
    seconds = min(time_ns // 10**9, _LAST_S)
    return datetime.fromtimestamp(seconds, tz=UTC).isoformat(timespec="seconds")


# ---- what is kept after it -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Away:
    """The name (see `name_mark`) of a read file that is not there; the earliest and latest time that it may have."""

    name: str
    earliest_ns: float
    latest_ns: int


def next_stretches(before: Stretches, old: Iterable[FoundFile], window_ns: int, forgotten: Sequence[Away]) -> Stretches:
    """The stretches that are recorded with the next transaction.

    :param before: as :func:`judged` gives them.
    :param old: the read files that are there and are older than the window, which begins at `window_ns`.
    :param forgotten: those that were known by name until now. One that may be of several stretches counts in each.
    """
    borders = [one.upto_ns for one in before]
    if not borders or window_ns > borders[-1]:
        borders.append(window_ns)
    gone = [one.gone for one in before] + [NONE] * (len(borders) - len(before))
    for away in forgotten:
        first, last = (_place(borders, time_ns) for time_ns in (away.earliest_ns, away.latest_ns))
        for at in range(first, last + 1):
            gone[at] += Tally(1, number_of_mark(away.name))
    there = map(tally, _by_stretch(borders, old))
    found = [Stretch(*parts) for parts in zip(borders, there, gone, strict=True)]
    # what is dropped becomes a part of the next one, so the last one stays
    return _merged([*(one for one in found[:-1] if one.there != NONE or one.gone != NONE), found[-1]])


def _merged(stretches: list[Stretch]) -> Stretches:
    """At most `MAX_STRETCHES`: of neighbours, those with the fewest files become one, and those without any first."""
    while len(stretches) > MAX_STRETCHES:
        sizes = [
            (one.there.files + other.there.files, one.gone.files + other.gone.files)
            for one, other in pairwise(stretches)
        ]
        at = min(range(len(sizes)), key=sizes.__getitem__)
        one, other = stretches[at : at + 2]
        stretches[at : at + 2] = [Stretch(other.upto_ns, one.there + other.there, one.gone + other.gone)]
    return tuple(stretches)
