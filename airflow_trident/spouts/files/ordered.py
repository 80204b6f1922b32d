"""Finds objects that have not been in a batch yet, if names sort in the order in which objects come. Pure.

All objects up to one name, `upto`, have been read and are not listed any more. After it, the names of read objects are
kept. So a listing costs only what came lately, not what ever came. `upto` moves on over read objects that are older
than the window: a new object must sort after those. A user who sets `ordered_names` promises that it does.

A read object that is not listed may come back. Its name is kept as one that is away until `upto` has passed the last
name that had been read when it was missed, which it does at the latest when the window has passed that moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from airflow_trident.contracts.spout import not_metadata_of
from airflow_trident.errors import ConfigurationError
from airflow_trident.spouts.files.batch_limits import BatchLimits, cut, is_old_enough
from airflow_trident.spouts.files.consumed import MAX_SEEN, ORDERED, require_last
from airflow_trident.spouts.files.contents import RecordedFile, read_and_changed
from airflow_trident.spouts.files.listing import FoundFile
from airflow_trident.spouts.files.marks import entries_of, name_mark, object_mark
from airflow_trident.types import Json

MAX_AWAY = 32
"""Groups of objects that were missed at the same time; beyond that, the oldest two become one."""


@dataclass(frozen=True, slots=True)
class AwayObjects:
    """Read objects that were missed at the same time: name (as a hash) -> mark.

    `last`: the last name that had been read then, so theirs are not behind it. `newest_ns`: the time of the newest
    object that had been read then, so theirs are not later.
    """

    last: str
    newest_ns: int
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInOrder:
    """The read objects: all up to `upto`, and `seen`: name (as a hash) -> mark of size and ETag. `last`: the last name
    of all. `away`: those that were not there, oldest first."""

    upto: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)
    last: str = ""
    away: tuple[AwayObjects, ...] = ()

    def to_json(self) -> dict[str, Json]:
        body: dict[str, Json] = {"upto": self.upto, "seen": _text_of(self.seen)}
        if self.last > self.upto:
            body["last"] = self.last
        if self.away:
            body["away"] = [[one.last, one.newest_ns, _text_of(one.names)] for one in self.away]
        return {ORDERED: body}

    @property
    def marks(self) -> dict[str, str]:
        """Of all whose names are known."""
        return {name: mark for names in (*(one.names for one in self.away), self.seen) for name, mark in names.items()}

    def knows(self, files: Iterable[RecordedFile]) -> ReadInOrder:
        """The same, with these files read as they are described here."""
        behind = {file.path: object_mark(file.size, file.etag) for file in files if file.path > self.upto}
        seen = {**self.seen, **{name_mark(path): mark for path, mark in behind.items()}}
        return replace(self, seen=seen, last=max([self.last, *behind]))


def read_in_order_from_json(metadata: Any) -> ReadInOrder:
    """The inverse of `to_json`, given a whole metadata; None: nothing was read.

    :raises SourceChangedError: it is not the metadata of a FileSpout with ordered names.
    """
    if metadata is None:
        return ReadInOrder()
    require_last(metadata)
    try:
        known = metadata[ORDERED]
        upto = str(known["upto"])
        return ReadInOrder(
            upto=upto,
            seen=entries_of(str(known["seen"])),
            last=str(known.get("last", upto)),
            away=tuple(AwayObjects(str(last), int(at), entries_of(names)) for last, at, names in known.get("away", ())),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_metadata_of("a FileSpout with ordered_names") from error


def _text_of(names: Mapping[str, str]) -> str:
    return "".join(name + names[name] for name in sorted(names))


@dataclass(frozen=True, kw_only=True)
class ChosenInOrder:
    """The next batches. `listed`: in the order of names; `new`: not read before; `complete`: there are no more."""

    batches: Sequence[Sequence[FoundFile]]
    listed: Sequence[FoundFile]
    new: Sequence[FoundFile]
    complete: bool
    before: ReadInOrder
    limits: BatchLimits

    @property
    def files(self) -> list[FoundFile]:
        return [file for batch in self.batches for file in batch]

    def after(self, digests: Mapping[str, str]) -> ReadInOrder:
        """What has been read, with these batches.

        :raises ConfigurationError: more names would have to be kept than the limit.
        """
        before = self.before
        unread = {file.path for file in self.new} - {file.path for file in self.files}
        read = [file for file in self.listed if file.path not in unread]
        newest_ns = max(file.mtime_ns for file in read)
        window_ns = newest_ns - self.limits.late_window_ns
        passed = list(
            takewhile(lambda file: file.path not in unread and file.mtime_ns < window_ns, self.listed)
            if self.limits.late_window_ns
            else takewhile(lambda file: file.path not in unread, self.listed)
        )
        upto = passed[-1].path if passed else before.upto
        last = max([before.last, *(file.path for file in read)])
        away = self._away(last, newest_ns)
        over = [one.last for one in away if one.newest_ns < window_ns and self._read_all_upto(one.last, unread)]
        upto = max([upto, *over])
        away = tuple(one for one in away if one.last > upto)
        seen = {name_mark(file.path): object_mark(file.size, file.etag) for file in read if file.path > upto}
        if not self.complete:  # the listing stopped before it reached some of the names
            reached = {name_mark(file.path) for file in self.listed}
            seen.update((name, mark) for name, mark in before.seen.items() if name not in reached)
        after = ReadInOrder(upto=upto, seen=seen, last=last, away=away)
        if (names := len(after.marks)) > MAX_SEEN:
            raise ConfigurationError(
                f"{names} objects behind {upto!r} were read and may have new ones between them, and the names "
                f"of {MAX_SEEN} can be kept",
                "Give the FileSpout a smaller late_window_s: how much older than the newest object that was read a "
                "new one's neighbours by name may be.",
            )
        return after

    def _read_all_upto(self, name: str, unread: Set[str]) -> bool:
        return name < min(unread, default=name + "0") and (self.complete or name <= self.listed[-1].path)

    def _away(self, last: str, newest_ns: int) -> tuple[AwayObjects, ...]:
        """The known names that are not listed. A listing that stopped early says nothing of those behind it."""
        there = {name_mark(file.path) for file in self.listed}
        away = [
            AwayObjects(one.last, one.newest_ns, {name: mark for name, mark in one.names.items() if name not in there})
            for one in self.before.away
        ]
        if self.complete:
            missed = {name: mark for name, mark in self.before.seen.items() if name not in there}
            away.append(AwayObjects(last, newest_ns, missed))
        away = [one for one in away if one.names]
        while len(away) > MAX_AWAY:
            one, other = away[:2]
            away[:2] = [AwayObjects(max(one.last, other.last), other.newest_ns, {**one.names, **other.names})]
        return tuple(away)


def next_in_order(
    found: Iterable[FoundFile], before: ReadInOrder, limits: BatchLimits, *, base: str, now_ns: int, most: int = 1
) -> ChosenInOrder | None:
    """The objects of the next batches, by name; None: there is nothing new.

    :param found: objects after `before.upto`, in the order of names; read only as far as needed.
    :raises SourceChangedError: an object that was read has changed.
    """
    listed: list[FoundFile] = []
    new: list[FoundFile] = []
    size, complete, marks = 0, True, before.marks
    for file in found:
        listed.append(file)
        mark = marks.get(name_mark(file.path))
        if mark is not None:
            if mark != object_mark(file.size, file.etag):
                raise read_and_changed(file.path, base)
            continue
        new.append(file)
        size += file.size
        if len(new) > limits.max_files * most or size > limits.max_bytes * most:
            complete = False
            break
    ready = takewhile(lambda file: is_old_enough(file, limits, now_ns), new)
    batches = cut(list(ready), limits, most)
    if not batches:
        return None
    return ChosenInOrder(batches=batches, listed=listed, new=new, complete=complete, before=before, limits=limits)
