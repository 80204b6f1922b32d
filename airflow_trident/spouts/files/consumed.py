"""Finds the files that have not been in a batch yet. Pure: from a listing, and from what earlier transactions recorded.

Files are read in the order of their modification times. But that time does not say when a file came: files are moved
in, copied with their old times, or come late. So each transaction records four things beside the cursor, which is the
time and path of the last file read:

- `seen`: names of the read files whose time is within `late_window` of the cursor, also of those that are gone: they
  may come back. A file in the window that is not among them is new, no matter how late it came.
- `settled`: every file with an older status-change time (ctime, which cannot be set back) was there when the last batch
  was chosen, so an old file with an older ctime has been read. Read files with a newer ctime are in `seen`, too.
- `folders`: the folders that were there. A folder that is moved in brings files with an old ctime.
- `old` and `cells`: the files that these rules take for read, by number and in a table of a fixed size
  (:mod:`airflow_trident.spouts.files.old_files`). The rules fail when the clock goes back, or an upload takes longer
  than the window: then new files have times from before. The table shows which these are.

An old file with a new ctime, or in a new folder, may be new, or may have been read and touched since. Nobody can tell,
so a person decides (`late_files`). A read file that is written again has a new time. One of the window is in `seen`.
An older one is a new file whose name went from the table.

None of the four grows with the files: beyond a number of names, marks move on, and the table says what is new.

Takes many late files in steps, so that few of them must be known by name. Pure.

While late files are unread, the marks of a position must not make read ones of them. But a mark may move up to the
first of those that are left: so late files are taken in the order in which they came, and behind it the marks tell that
a file was read. Of folders that were moved in, whose files keep the times of their old place, one is taken after the
other.

What a person is asked about late files, of which nobody can tell whether they were read. Pure.

The names of read files that a position keeps, in the order of the files' times: mark of the name -> mark of size and
time. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import accumulate, takewhile
from operator import attrgetter
from typing import Any

from airflow_trident.contracts.spout import not_metadata_of
from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.spouts.files.batch_limits import BatchLimits, LateFiles, cut, is_old_enough
from airflow_trident.spouts.files.contents import RecordedFile, read_and_changed
from airflow_trident.spouts.files.listing import FoundFile, Listing, by_place
from airflow_trident.spouts.files.marks import (
    FOLDER_LENGTH,
    MARK_LENGTH,
    content_mark,
    entries_of,
    folder_mark,
    name_mark,
    stamp_of,
)
from airflow_trident.spouts.files.old_files import (
    Away,
    Cells,
    Stretches,
    cells_from_text,
    cells_of,
    cells_to_text,
    judged,
    moment_of,
    next_stretches,
    stretches_from_json,
    stretches_to_json,
)
from airflow_trident.types import Json

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
    settled_ns: int,
    most_ns: int,
    folders: frozenset[str],
) -> tuple[int, frozenset[str]]:
    """`settled_ns` and the marks of `folders`, moved on as far as no file that is left looks read by them.

    :param left: older files than the window's that are in no batch yet.
    :param found: all files.
    :param most_ns: `settled_ns` cannot be higher.
    """
    moved_in = {file.folder for file in left if file.ctime_ns < settled_ns}
    came = (file.ctime_ns for file in left if file.ctime_ns >= settled_ns)
    known = {file.folder for file in found} - moved_in
    marks = folders if folders == EVERY_FOLDER else folders | {folder_mark(name) for name in known}
    return max(settled_ns, min([most_ns, *came])), marks


def require_no_question(
    late: Sequence[FoundFile], limits: BatchLimits, *, window_ns: int, now_ns: int, apart_ns: int, base: str
) -> None:
    """
    :param window_ns: the window's begin.
    :param apart_ns: as much as the clocks of this machine and of the file system may differ.
    :raises ConfigurationError: `late_files` is "error"; or it is "ignore", and the files would be known as new if the
        window did not begin in the future, where a read file's time had moved it: all that comes would be ignored.
    """
    if limits.late_files is LateFiles.TAKE:
        return
    if window_ns > now_ns + apart_ns and (recent := [one for one in late if one.mtime_ns >= _begin(limits, now_ns)]):
        until = moment_of(window_ns)
        raise ConfigurationError(
            f"{_named(recent, base)} cannot be told from those that were read, because one of these has a time in the "
            f"future: whatever comes before {until} looks as if it came late",
            'Set late_files="take" until then, and before that move away those that were read; or, if the clock of '
            "this machine is behind, set it right.",
        )
    if late and limits.late_files is LateFiles.ERROR:
        raise ConfigurationError(
            f"{_named(late, base)} is older than what has been read, and came late or was touched: nobody can tell "
            "whether it was read",
            'Set late_files="take" if it is new, late_files="ignore" if it was read, or give it the present time '
            "(`touch`) if it is new.",
        )


def _begin(limits: BatchLimits, now_ns: int) -> int:
    """Of the window, if the newest read file were of this moment."""
    return now_ns - limits.late_window_ns


def _named(files: Sequence[FoundFile], base: str) -> str:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"the file {files[0].path!r}{more} in {base!r}"


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


UPTO = "upto"
"""Key in the metadata of a transaction that began together with later ones: the txid of the last of them."""
ORDERED = "ordered"
"""Key in the metadata of a FileSpout with `ordered_names`."""
MAX_SEEN = 10_000
"""If more files than this are within the window, the window becomes smaller, so that the metadata stays small."""
MAX_UNSETTLED = 5_000
"""If more older files than this have a ctime from `settled` on, `settled` moves on: files that came within seconds are
then known by number and cells (:mod:`airflow_trident.spouts.files.old_files`), and not by name."""
MAX_FOLDERS = 20_000
"""With more folders none is recorded, and what is moved in is told by number and cells, too."""
EVERY_FOLDER = frozenset({"*" * FOLDER_LENGTH})
_SLACK_NS = 5_000_000_000
_CLOCKS_APART_NS = 60_000_000_000
"""The clocks of a worker and of a file system may differ by this much although no clock went back."""
_NO_CONTENT = "...."
_START = (-1, "")
"""The cursor if nothing was read: no file has this path. The time alone would not tell: it may be before 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What was read up to a transaction (see the module; hashes stand for names). `window`: the place of its first
    file; `seen`: name -> mark of size and time; `contents`: name -> mark of the content, if recorded."""

    cursor: tuple[int, str] = _START
    window: tuple[int, str] = (0, "")
    settled_ns: int = 0
    folders: frozenset[str] = frozenset()
    seen: dict[str, str] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    old: Stretches = ()
    cells: Cells = ()

    @property
    def window_ns(self) -> int:
        """No file that this or a later moment has is older than the window."""
        return self.window[0] + bool(self.window[1])

    def is_in_window(self, file: FoundFile) -> bool:
        return file.place >= self.window

    def to_json(self) -> dict[str, Json]:
        names = list(self.seen)  # in their order, so that the next transaction has these first, and new ones after them
        return {
            "cursor": {"mtime_ns": self.cursor[0], "path": self.cursor[1], "ctime_ns": self.settled_ns},
            "window_ns": self.window_ns,
            "folders": "".join(sorted(self.folders)),
            "seen": "".join(name + self.seen[name] for name in names),
            "contents": "".join(self.contents.get(name, _NO_CONTENT) for name in names),
            "old": stretches_to_json(self.old),
            **({"window_path": self.window[1]} if self.window[1] else {}),
            **({"cells": cells_to_text(self.cells)} if self.cells else {}),
        }

    def knows(self, files: Iterable[RecordedFile]) -> Consumed:
        """The same, with these files read as they are described here."""
        seen, contents = dict(self.seen), dict(self.contents)
        for file in files:
            name = name_mark(file.path)
            seen[name] = stamp_of(file.size, file.mtime_ns, file.etag)
            contents.pop(name, None)
            if file.digest:
                contents[name] = content_mark(file.digest)
        return replace(self, seen=seen, contents=contents)


def consumed_from_json(metadata: Any) -> Consumed:
    """The inverse of `to_json`, from a whole metadata; None: nothing was read.

    :raises SourceChangedError: it is not the metadata of a FileSpout.
    """
    if metadata is None:
        return Consumed()
    require_last(metadata)
    if isinstance(metadata, dict) and ORDERED in metadata:
        raise SourceChangedError(
            "the recorded position is of a FileSpout with ordered_names=True, which does not know all that was read",
            "Set it again, or give the stream a new name.",
        )
    try:
        cursor, folders, seen = metadata["cursor"], metadata["folders"], metadata["seen"]
        entries = entries_of(seen)
        contents, window_path = metadata["contents"], str(metadata.get("window_path", ""))
        stamps = [contents[at : at + MARK_LENGTH] for at in range(0, len(contents), MARK_LENGTH)]
        return Consumed(
            cursor=(int(cursor["mtime_ns"]), str(cursor["path"])),
            window=(int(metadata["window_ns"]) - bool(window_path), window_path),
            settled_ns=int(cursor["ctime_ns"]),
            folders=frozenset(folders[at : at + FOLDER_LENGTH] for at in range(0, len(folders), FOLDER_LENGTH)),
            seen=entries,
            contents={name: stamp for name, stamp in zip(entries, stamps, strict=True) if stamp != _NO_CONTENT},
            old=stretches_from_json(metadata["old"], int(metadata["window_ns"])),
            cells=cells_from_text(metadata.get("cells", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise not_metadata_of("a FileSpout") from error


def require_last(metadata: Any) -> None:
    """
    :raises SourceChangedError: the transaction began together with later ones, and is not the last of them.
    """
    if inner := inner_of(metadata):
        raise SourceChangedError(
            f"the recorded position is of a transaction that was begun with those up to {inner[UPTO]}, and only the "
            "last of them says which files had been read",
            "Put the ledger back from a backup (`airflow trident ledger import`), or bring the state up to that "
            "transaction.",
        )


def inner_of(metadata: Any) -> dict[str, Json]:
    """The part of the metadata besides its files, if the transaction began together with later ones and is not the last
    of them: only the metadata of the last one has what was read, for all of them. Otherwise empty."""
    return {UPTO: metadata[UPTO]} if isinstance(metadata, dict) and UPTO in metadata else {}


ContentOf = Callable[[FoundFile], str]
"""The digest of a file's content; "" if it has none."""


@dataclass(frozen=True, kw_only=True)
class ChosenFiles:
    """The next batches, oldest first. `read`: files that were read before; `left`: new files without room, late ones
    first; `nameless`: see :class:`airflow_trident.spouts.files.old_files.Judged`."""

    batches: Sequence[Sequence[FoundFile]]
    read: Sequence[FoundFile]
    left: Sequence[FoundFile]
    listing: Listing
    before: Consumed
    stretches: Stretches
    nameless: int
    limits: BatchLimits
    now_ns: int

    @property
    def files(self) -> list[FoundFile]:
        return [file for batch in self.batches for file in batch]

    def after(self, digests: Mapping[str, str] | None = None) -> Consumed:
        """What has been read, with these batches.

        :param digests: of the batches' files, by path.
        """
        away = gone_away(self.before.seen, self.listing.files, self.before.window_ns, self.before.cursor[0])
        after = self._marked(digests or {}, away)
        left = {file.path for file in self.left}
        old = [
            file
            for file in self.listing.files
            if not after.is_in_window(file)
            and name_mark(file.path) not in after.seen
            and _kind(file, after) is _Kind.OLD
            and file.path not in left
        ]
        forgotten = [one for one in away if one.name not in after.seen]
        return replace(after, old=next_stretches(self.stretches, old, after.window_ns, forgotten), cells=cells_of(old))

    def _marked(self, digests: Mapping[str, str], away: Sequence[Away]) -> Consumed:
        before, found = self.before, self.listing.files
        contents = {name_mark(path): content_mark(digest) for path, digest in digests.items() if digest}
        files = sorted(self.files, key=by_place)
        cursor = files[-1].place if before.cursor == _START else max(before.cursor, files[-1].place)
        if self.left and self.left[0].place < cursor:
            # Old files are still unread, so the marks that tell them from read files must not change.
            seen = with_older(before.seen, found, files)
            after = replace(before, cursor=cursor, seen=seen, contents={**before.contents, **contents})
            return after if len(seen) <= MAX_SEEN else self._stepped(after)
        settled = _settled(before, self.listing, self.now_ns)
        window = (cursor[0] - self.limits.late_window_ns, "")
        if before.cursor != _START:
            window = max(before.window, window)
        read = [*self.read, *files]
        places = [*map(by_place, read), *((one.latest_ns, "") for one in away)]
        if len(within := [place for place in places if place >= window]) > MAX_SEEN:
            window = (sorted(within)[-MAX_SEEN - 1][0] + 1, "")
        settled = _bounded(settled, [file for file in read if file.place < window])
        marked = [
            (file.mtime_ns, file.path, name_mark(file.path), stamp_of(file.size, file.mtime_ns, file.etag))
            for file in read
            if file.place >= window or file.ctime_ns >= settled
        ]
        marked += [(one.latest_ns, "", one.name, before.seen[one.name]) for one in away if one.latest_ns >= window[0]]
        seen = {name: stamp for *_, name, stamp in sorted(marked)}
        contents = {**before.contents, **contents}
        return Consumed(
            cursor=cursor,
            window=window,
            settled_ns=settled,
            folders=_folders_of(found),
            seen=seen,
            contents={name: contents[name] for name in seen if name in contents},
        )

    def _stepped(self, after: Consumed) -> Consumed:
        """Without the names of files that look read by marks that may be moved on while others are left.

        :raises ConfigurationError: too many came with one folder.
        """
        found = self.listing.files
        first, settled = min(map(by_place, self.left)), _settled(self.before, self.listing, self.now_ns)
        if first >= after.window:  # all that is left is in the window, which may begin with it
            read = sorted([*self.read, *self.files], key=by_place)
            window = max(after.window, min(first, read[-MAX_SEEN:][0].place))
            settled = _bounded(max(settled, after.settled_ns), [file for file in read if file.place < window])
            folders = _folders_of(found)
        else:
            window = after.window
            settled, folders = marks_before(
                [file for file in self.left if not after.is_in_window(file)],
                found,
                settled_ns=after.settled_ns,
                most_ns=settled,
                folders=after.folders,
            )
        after = replace(after, window=window, settled_ns=settled, folders=folders)
        old = {name_mark(file.path) for file in found if _kind(file, after) is _Kind.OLD}
        seen = {name: stamp for name, stamp in after.seen.items() if name not in old}
        if len(seen) > MAX_TAKEN + MAX_SEEN:
            raise ConfigurationError(
                f"more than {MAX_TAKEN + MAX_SEEN} files of the folder {self.left[0].folder!r} are older than what has "
                "been read, and came at once: a transaction cannot know so many by their names",
                "Give those that are left the present time (`touch`): then they are new.",
            )
        return replace(after, seen=seen, contents={name: one for name, one in after.contents.items() if name in seen})


def _bounded(settled_ns: int, older: Iterable[FoundFile]) -> int:
    """`settled_ns`, or a later moment behind which at most `MAX_UNSETTLED` read files have their ctime.

    :param older: the read files that are older than the window.
    """
    later = sorted((file.ctime_ns for file in older if file.ctime_ns >= settled_ns), reverse=True)
    return later[MAX_UNSETTLED] + 1 if len(later) > MAX_UNSETTLED else settled_ns


def _folders_of(files: Iterable[FoundFile]) -> frozenset[str]:
    folders = {file.folder for file in files}
    return frozenset(map(folder_mark, folders)) if len(folders) <= MAX_FOLDERS else EVERY_FOLDER


def _settled(before: Consumed, listing: Listing, now_ns: int) -> int:
    newest = max(map(attrgetter("ctime_ns"), listing.files), default=0)
    if now_ns - newest > listing.took_ns + _CLOCKS_APART_NS:
        return newest + 1  # whatever comes from now on is newer
    return max(before.settled_ns, newest - listing.took_ns - _SLACK_NS)


def next_batch(
    listing: Listing,
    before: Consumed,
    limits: BatchLimits,
    *,
    base: str,
    now_ns: int,
    content_of: ContentOf = lambda _: "",
    most: int = 1,
) -> ChosenFiles | None:
    """The files of the next batches; None: there is nothing new.

    :param most: at most this number of batches.
    :param base: the folder, for error texts.
    :param content_of: called if a read file has another time than before.
    :raises SourceChangedError: a file that was read has changed, or new files cannot be told from read ones.
    :raises ConfigurationError: a file came late, and `late_files` is "error"; or "ignore", and a read file's time is in
        the future.
    """
    seen, kinds = _sorted_out(listing, before, base, content_of)
    late = kinds[_Kind.LATE]
    look = judged(
        before.old,
        before.cells,
        kinds[_Kind.OLD],
        late,
        kinds[_Kind.NEW],
        behind_ns=before.settled_ns - now_ns - limits.late_window_ns - _CLOCKS_APART_NS,
        settled_ns=before.settled_ns,
        base=base,
    )
    hidden = {file.path for file in look.came}
    require_no_question(late, limits, window_ns=before.window_ns, now_ns=now_ns, apart_ns=_CLOCKS_APART_NS, base=base)
    taken_late = in_steps(late, before.settled_ns) if limits.late_files is LateFiles.TAKE else []
    waiting: list[FoundFile] = []
    if len(before.seen) >= MAX_TAKEN and taken_late and taken_late[0].ctime_ns >= _settled(before, listing, now_ns):
        taken_late, waiting = [], taken_late
    new = [*kinds[_Kind.NEW], *(file for file in kinds[_Kind.OLD] if file.path in hidden)]
    offered = [*taken_late, *sorted(new, key=by_place)]
    # No file is passed over: the cursor must not move beyond a file that is left for later.
    ready = takewhile(lambda file: is_old_enough(file, limits, now_ns), offered)
    batches = cut(list(ready), limits, most)
    if not batches:
        return None
    return ChosenFiles(
        batches=[sorted(batch, key=by_place) for batch in batches] if taken_late else batches,
        read=[*seen, *(file for file in kinds[_Kind.OLD] if file.path not in hidden)],
        left=[*waiting, *offered[sum(map(len, batches)) :]],
        listing=listing,
        before=before,
        stretches=look.stretches,
        nameless=look.nameless,
        limits=limits,
        now_ns=now_ns,
    )


# ---- one file --------------------------------------------------------------------------------------------------


class _Kind(Enum):
    """What is known of a file whose name is not in `seen`."""

    NEW = auto()
    OLD = auto()
    """It was read, by its times."""
    LATE = auto()
    """Nobody can tell whether it was read."""


def _sorted_out(
    listing: Listing, before: Consumed, base: str, content_of: ContentOf
) -> tuple[list[FoundFile], dict[_Kind, list[FoundFile]]]:
    """The files that were read, by their names, and all others by kind. Each transaction looks at all files, and most
    are in `seen`.

    :raises SourceChangedError: a file that was read has changed.
    """
    seen, unseen = list[FoundFile](), list[FoundFile]()
    stamps = before.seen
    for file in listing.files:
        stamp = stamps.get(name_mark(file.path))
        if stamp is None:
            unseen.append(file)
            continue
        if stamp != stamp_of(file.size, file.mtime_ns, file.etag):
            _require_same_content(file, before, base, content_of)
        seen.append(file)
    kinds: dict[_Kind, list[FoundFile]] = {kind: [] for kind in _Kind}
    for file in unseen:
        kinds[_kind(file, before)].append(file)
    return seen, kinds


def _kind(file: FoundFile, before: Consumed) -> _Kind:
    if before.cursor == _START or file.place > before.cursor or before.is_in_window(file):
        return _Kind.NEW
    is_of_folder = before.folders == EVERY_FOLDER or folder_mark(file.folder) in before.folders
    if file.ctime_ns < before.settled_ns and is_of_folder:
        return _Kind.OLD
    return _Kind.LATE


def _require_same_content(file: FoundFile, before: Consumed, base: str, content_of: ContentOf) -> None:
    content = before.contents.get(name_mark(file.path))
    if content is None or content != content_mark(content_of(file)):
        raise read_and_changed(file.path, base)
