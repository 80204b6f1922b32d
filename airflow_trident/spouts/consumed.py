"""Which of the files that are there have not been in a batch yet: pure, given a listing and what is known of before.

A modification time says in which order files are read, but not when they came: files are moved in, copied with their
old times, or come late. So three things are kept from transaction to transaction, beside the cursor (time and path of
the last file read):

- `seen`: names of the read files whose time is within `late_window` of the cursor. A file in the window that is not
  among them is new, however late it came.
- `settled`: every file of an older status-change time (ctime, which cannot be set back) was there when the last batch
  was chosen, so an old file with an older ctime has been read. Read files with a newer one are in `seen` too.
- `folders`: those that were there. A folder that is moved in brings files whose ctime is old.

A file that is none of these (old, but of a new ctime or in a new folder) may be new or may have been read and touched
since: nobody can tell, so a person decides (`late_files`). Nothing is read twice or lost in silence.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import takewhile
from typing import Any

from airflow_trident.errors import ConfigurationError, SourceChangedError
from airflow_trident.spouts.listing import FoundFile, Listing
from airflow_trident.types import Json

MAX_SEEN = 10_000
"""More files than this within the window make the window smaller, so that the metadata stays small."""
_SLACK_NS = 5_000_000_000
_ENTRY, _NAME, _FOLDER = 20, 16, 12


class LateFiles(StrEnum):
    """What to do about a file of which nobody can tell whether it was read."""

    ERROR = "error"
    TAKE = "take"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch has at least one file, and otherwise at most `max_files` and `max_bytes`. Files younger than
    `min_age_ns` are left for later: somebody may be writing them.
    """

    max_files: int
    max_bytes: int
    min_age_ns: int
    late_window_ns: int
    late_files: LateFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """What has been read up to a transaction. See the module's text; hashes stand for names."""

    cursor: tuple[int, str] = (-1, "")
    window_ns: int = 0
    settled_ns: int = 0
    folders: frozenset[str] = frozenset()
    seen: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            "cursor": {"mtime_ns": self.cursor[0], "path": self.cursor[1], "ctime_ns": self.settled_ns},
            "window_ns": self.window_ns,
            "folders": "".join(sorted(self.folders)),
            "seen": "".join(sorted(name + stamp for name, stamp in self.seen.items())),
        }


def consumed_from_json(metadata: Any) -> Consumed:
    """The inverse of `to_json`, given a whole metadata; None: nothing was read.

    :raises SourceChangedError: it is not the metadata of a FileSpout.
    """
    if metadata is None:
        return Consumed()
    try:
        cursor, folders, seen = metadata["cursor"], metadata["folders"], metadata["seen"]
        entries = [seen[at : at + _ENTRY] for at in range(0, len(seen), _ENTRY)]
        return Consumed(
            cursor=(int(cursor["mtime_ns"]), str(cursor["path"])),
            window_ns=int(metadata["window_ns"]),
            settled_ns=int(cursor["ctime_ns"]),
            folders=frozenset(folders[at : at + _FOLDER] for at in range(0, len(folders), _FOLDER)),
            seen={entry[:_NAME]: entry[_NAME:] for entry in entries},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SourceChangedError(
            "the recorded metadata is not that of a FileSpout",
            "Another spout had this stream's name: give the stream a new name.",
        ) from error


def next_batch(
    listing: Listing, before: Consumed, limits: BatchLimits, *, base: str, now_ns: int
) -> tuple[list[FoundFile], Consumed] | None:
    """The files of the next batch, oldest first, and what has been read with it; None: there is nothing new.

    :param base: the folder, for error texts.
    :raises SourceChangedError: a file that was read has changed.
    :raises ConfigurationError: a late file, and `late_files` says error.
    """
    first = before.cursor[0] < 0
    fresh: list[FoundFile] = []
    late: list[FoundFile] = []
    known: list[FoundFile] = []
    for file in listing.files:
        _require_unchanged(file, before, base)
        if _is_read(file, before):
            known.append(file)
        elif first or file.place > before.cursor or file.mtime_ns >= before.window_ns:
            fresh.append(file)
        else:
            late.append(file)
    if late and limits.late_files is LateFiles.ERROR:
        raise _late(late, base)
    offered = sorted(fresh + late if limits.late_files is LateFiles.TAKE else fresh, key=lambda file: file.place)
    # None is passed over: the cursor must not move beyond a file that is left for later.
    ready = takewhile(lambda file: _is_old_enough(file, limits, now_ns), offered)
    batch = _cut(list(ready), limits)
    if not batch:
        return None
    taken = {file.path for file in batch}
    left = [file for file in offered if file.path not in taken]
    return batch, _after(listing, before, limits, batch=batch, read=known + batch, left=left)


def _is_old_enough(file: FoundFile, limits: BatchLimits, now_ns: int) -> bool:
    """A time that lies in the future says nothing about the age."""
    return limits.min_age_ns == 0 or min(file.mtime_ns, file.ctime_ns) <= now_ns - limits.min_age_ns


def _cut(files: Sequence[FoundFile], limits: BatchLimits) -> list[FoundFile]:
    batch: list[FoundFile] = []
    size = 0
    for file in files[: limits.max_files]:
        size += file.size
        if batch and size > limits.max_bytes:
            break
        batch.append(file)
    return batch


def _after(
    listing: Listing,
    before: Consumed,
    limits: BatchLimits,
    *,
    batch: Sequence[FoundFile],
    read: Sequence[FoundFile],
    left: Sequence[FoundFile],
) -> Consumed:
    cursor = max(before.cursor, batch[-1].place)
    if any(file.place < cursor for file in left):
        # Old files are still to be read: what told them from read ones must stay as it is.
        marks = {_name(file.path): _stamp(file) for file in batch}
        return replace(before, cursor=cursor, seen={**before.seen, **marks})
    newest = max((file.ctime_ns for file in listing.files), default=0)
    settled = max(before.settled_ns, newest - listing.took_ns - _SLACK_NS)
    window = max(before.window_ns, cursor[0] - limits.late_window_ns)
    times = sorted((file.mtime_ns for file in read if file.mtime_ns >= window), reverse=True)
    if len(times) > MAX_SEEN:
        window = times[MAX_SEEN] + 1
    marked = [file for file in read if file.mtime_ns >= window or file.ctime_ns >= settled]
    return Consumed(
        cursor=cursor,
        window_ns=window,
        settled_ns=settled,
        folders=frozenset(_folder(name) for name in {file.folder for file in listing.files}),
        seen={_name(file.path): _stamp(file) for file in marked},
    )


# ---- one file --------------------------------------------------------------------------------------------------


def _is_read(file: FoundFile, before: Consumed) -> bool:
    if _name(file.path) in before.seen:
        return True
    if file.place > before.cursor or file.mtime_ns >= before.window_ns:
        return False
    return file.ctime_ns < before.settled_ns and _folder(file.folder) in before.folders


def _require_unchanged(file: FoundFile, before: Consumed, base: str) -> None:
    stamp = before.seen.get(_name(file.path))
    if stamp is not None and stamp != _stamp(file):
        raise SourceChangedError(
            f"the file {file.path!r} in {base!r} was consumed by an earlier transaction and changed since",
            "Write new files instead of changing old ones; put back the old content and time, or remove the file.",
        )


def _late(files: Sequence[FoundFile], base: str) -> ConfigurationError:
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return ConfigurationError(
        f"the file {files[0].path!r}{more} in {base!r} is older than what has been read, and came late or was touched: "
        "nobody can tell whether it was read",
        'Set late_files="take" if it is new, late_files="ignore" if it was read, or give it the present time '
        "(`touch`) if it is new.",
    )


def _name(path: str) -> str:
    return _hash(path, 12)


def _folder(path: str) -> str:
    return _hash("folder " + path, 9)


def _stamp(file: FoundFile) -> str:
    return _hash(f"{file.size} {file.mtime_ns}", 3)


def _hash(text: str, size: int) -> str:
    digest = hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=size).digest()
    return base64.urlsafe_b64encode(digest).decode()


def total_bytes(files: Iterable[FoundFile]) -> int:
    return sum(file.size for file in files)
