"""What is kept of the read files that are older than the window: no names, but numbers and sums of names. Pure.

They are kept by stretches of time (:class:`Stretch`), because files come and go at different ends: those that expire
are the oldest, and those that come with a time from before (a clock went back, an upload took long) are the newest.
Within a stretch what went away is kept apart from what is there: it may come back.

Beside the stretches, cells hold the names of all old files that are there. They are a table of a fixed size, an
invertible Bloom lookup table. The difference of two such tables gives the names that came and went between them, if
these are not more than about 60. So a read file that was written again is known by its name.
"""

from __future__ import annotations

import base64
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

_CELLS = 4 * 32
"""A name is in a cell of each of four rows: 60 changes are told in 499 of 500 cases, 10 in all but one of
20,000. More cells would tell more changes, at 17 bytes of metadata each."""
_CELL_BYTES = 13
_MODULUS = 1 << 8 * _CELL_BYTES
_COUNT_BITS, _CHECK_BITS, _NUMBER_BITS = 8, 32, 64
_PRIME = (1 << 31) - 1
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


# ---- cells -----------------------------------------------------------------------------------------------------


Cells = tuple[int, ...]
"""Empty: no names."""


def _number(file: FoundFile) -> int:
    return number_of(file.path) % (1 << _NUMBER_BITS)


def cells_of(files: Iterable[FoundFile]) -> Cells:
    """The sum of the files' values in each cell."""
    cells = [0] * _CELLS
    for number in map(_number, files):
        value = _value(number)
        for place in _places(number):
            cells[place] += value
    return tuple(cell % _MODULUS for cell in cells) if any(cells) else ()


def _together(*tables: Cells) -> Cells:
    return tuple(sum(cells) % _MODULUS for cells in zip(*filter(None, tables), strict=True))


def _value(number: int) -> int:
    """The number, a check that no sum of other values has, and a one, which counts."""
    return (number << _CHECK_BITS | number * number % _PRIME) << _COUNT_BITS | 1


def _places(number: int) -> tuple[int, int, int, int]:
    """One in each row."""
    return number & 31, 32 | number >> 5 & 31, 64 | number >> 10 & 31, 96 | number >> 15 & 31


def cells_to_text(cells: Cells) -> str:
    return base64.b64encode(b"".join(cell.to_bytes(_CELL_BYTES, "big") for cell in cells)).decode()


def cells_from_text(text: str) -> Cells:
    """:raises ValueError: it is something else."""
    content = base64.b64decode(text, validate=True)
    if len(content) not in (0, _CELLS * _CELL_BYTES):
        raise ValueError(f"{len(content)} bytes are no cells")
    return tuple(
        int.from_bytes(content[begin : begin + _CELL_BYTES], "big") for begin in range(0, len(content), _CELL_BYTES)
    )


@dataclass(frozen=True, slots=True)
class ChangedNames:
    """The names that came and went, as numbers."""

    came: frozenset[int]
    went: frozenset[int]

    def has_come(self, file: FoundFile) -> bool:
        return _number(file) in self.came

    def has_gone(self, file: FoundFile) -> bool:
        return _number(file) in self.went


def changes(before: Cells, now: Cells) -> ChangedNames | None:
    """None: there are too many to tell.

    A cell that differs by one name shows it. The name is then taken out of its other cells, which may show more.
    """
    zeros = (0,) * _CELLS
    cells = [later - earlier for later, earlier in zip(now or zeros, before or zeros, strict=True)]
    came, went = set[int](), set[int]()
    waiting = list(range(_CELLS))
    while waiting and len(came) + len(went) < _CELLS:
        place = waiting.pop()
        for sign, numbers in ((1, came), (-1, went)):
            value = sign * cells[place] % _MODULUS
            number = value >> _CHECK_BITS + _COUNT_BITS
            places = _places(number)
            if value == _value(number) and place in places:
                numbers.add(number)
                for other in places:
                    cells[other] -= sign * value
                waiting += places
    is_whole = not any(cell % _MODULUS for cell in cells)
    return ChangedNames(frozenset(came), frozenset(went)) if is_whole else None


# ---- one look --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """`came`: the files that look read and are new; `stretches`: as before, with what went away or came back since.

    `nameless`: how many read files went away without a known name. Such a file may be among the new ones.
    """

    came: Sequence[FoundFile]
    stretches: Stretches
    nameless: int = 0


def judged(
    stretches: Stretches,
    cells: Cells,
    old: Sequence[FoundFile],
    late: Sequence[FoundFile],
    new: Sequence[FoundFile],
    *,
    behind_ns: int,
    settled_ns: int,
    base: str,
) -> Judged:
    """Compare the files that look read with those that were.

    :param stretches, cells: those that were.
    :param late: of which nobody can tell: some may be read ones that were touched.
    :param new: the files that look new: some may be read ones that were written again.
    :param behind_ns: how much the clock is behind what the last batch had seen, beyond what is allowed.
    :param settled_ns: what the last batch had seen, for error texts; `base`: the folder, for them, too.
    :raises SourceChangedError: some are new, or may be, but nobody can tell which; or what went away is among `new`.
    """
    borders = [each.upto_ns for each in stretches]
    parts = list(zip(stretches, _by_stretch(borders, old), _by_stretch(borders, late), strict=True))
    if all(tally(files) == stretch.there for stretch, files, _ in parts):
        return Judged((), stretches)
    names = _changes(stretches, cells, old, late, new)
    came: list[FoundFile] = []
    after: list[Stretch] = []
    went: list[Tally] = []
    for stretch, files, touched in parts:
        step = _by_numbers(stretch, files, touched) if names is None else _by_names(stretch, files, touched, names)
        if step is None or (step.lost != NONE and behind_ns > 0):
            raise _unknown(base, settled_ns, some_had_gone=stretch.gone != NONE)
        came += step.came
        after.append(replace(stretch, gone=(NONE if step.is_back else stretch.gone) + step.lost))
        went += [step.lost] if step.lost != NONE else []
    if anew := _written_anew(new, went) if names is None else [file for file in new if names.has_gone(file)]:
        raise written_anew([file.path for file in anew], base)
    return Judged(came, tuple(after), nameless=sum(lost.files for lost in went) if names is None else 0)


def _changes(
    stretches: Stretches,
    cells: Cells,
    old: Sequence[FoundFile],
    late: Sequence[FoundFile],
    new: Sequence[FoundFile],
) -> ChangedNames | None:
    """The names that came to the old files and went from them; None: there are too many, or no cells are recorded.

    If many read files were touched or written anew, they are among the late or the new ones. Beside the old files and
    these, few names came or went, and a name that did not come had been there.
    """
    if not cells and any(stretch.there != NONE for stretch in stretches):
        return None
    names, there = frozenset(map(_number, old)), cells_of(old)
    for others in ((), late, new, (*late, *new)):
        if change := changes(cells, _together(there, cells_of(others))):
            return ChangedNames(change.came & names, change.went | (frozenset(map(_number, others)) - change.came))
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    """What changed in a stretch. `came`: new files; `lost`: what went away; `is_back`: is all back that had gone?"""

    came: Sequence[FoundFile] = ()
    lost: Tally = NONE
    is_back: bool = False


def _by_names(
    stretch: Stretch, files: Sequence[FoundFile], touched: Sequence[FoundFile], names: ChangedNames
) -> _Step | None:
    """None: nobody can tell."""
    added = [file for file in files if names.has_come(file)]
    lost = tally(added) + stretch.there - tally(files) - tally(file for file in touched if names.has_gone(file))
    if lost.files < 0:
        lost = NONE  # a read file has an old time of another stretch, and is counted there
    if not added or stretch.gone == NONE:
        return _Step(added, lost)
    return _Step(lost=lost, is_back=True) if tally(added) == stretch.gone else None


def _by_numbers(stretch: Stretch, files: Sequence[FoundFile], touched: Sequence[FoundFile]) -> _Step | None:
    """As :func:`_by_names`, where too many names changed: as far as number and sum tell."""
    change = tally(files) - stretch.there
    if change in (NONE, stretch.gone):
        return _Step(is_back=change == stretch.gone)
    if change.files < 0:
        return _Step(lost=NONE if change + tally(touched) == NONE else NONE - change)
    added = _neighbours(files, change) if change.files > 0 and stretch.gone == NONE else ()
    return _Step(added) if added else None


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
