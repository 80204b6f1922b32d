"""Finds objects that have not been in a batch yet, if names sort in the order in which objects come. Pure.

All objects up to one name, `upto`, have been read and are not listed any more. After it, the names of read objects are
kept. So a listing costs only what came lately, not what ever came. `upto` moves on over read objects that are older
than the window: a new object must sort after those. A user who sets `ordered_names` promises that it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInOrder:
    """The read objects: all up to `upto`, and `seen`: name (as a hash) -> mark of size and ETag."""

    upto: str = ""
    seen: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {ORDERED: {"upto": self.upto, "seen": "".join(name + self.seen[name] for name in sorted(self.seen))}}

    def knows(self, files: Iterable[RecordedFile]) -> ReadInOrder:
        """The same, with these files read as they are described here."""
        behind = {name_mark(file.path): object_mark(file.size, file.etag) for file in files if file.path > self.upto}
        return replace(self, seen={**self.seen, **behind})


def read_in_order_from_json(metadata: Any) -> ReadInOrder:
    """The inverse of `to_json`, given a whole metadata; None: nothing was read.

    :raises SourceChangedError: it is not the metadata of a FileSpout with ordered names.
    """
    if metadata is None:
        return ReadInOrder()
    require_last(metadata)
    try:
        upto, seen = metadata[ORDERED]["upto"], metadata[ORDERED]["seen"]
        return ReadInOrder(upto=str(upto), seen=entries_of(str(seen)))
    except (KeyError, TypeError) as error:
        raise not_metadata_of("a FileSpout with ordered_names") from error


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
        unread = {file.path for file in self.new} - {file.path for file in self.files}
        read = [file for file in self.listed if file.path not in unread]
        window_ns = max(file.mtime_ns for file in read) - self.limits.late_window_ns
        passed = list(
            takewhile(lambda file: file.path not in unread and file.mtime_ns < window_ns, self.listed)
            if self.limits.late_window_ns
            else takewhile(lambda file: file.path not in unread, self.listed)
        )
        upto = passed[-1].path if passed else self.before.upto
        seen = {name_mark(file.path): object_mark(file.size, file.etag) for file in read if file.path > upto}
        if not self.complete:  # the listing stopped before it reached some of the names
            reached = {name_mark(file.path) for file in self.listed}
            seen.update((name, mark) for name, mark in self.before.seen.items() if name not in reached)
        if len(seen) > MAX_SEEN:
            raise ConfigurationError(
                f"{len(seen)} objects behind {upto!r} were read and may have new ones between them, and the names of "
                f"{MAX_SEEN} can be kept",
                "Give the FileSpout a smaller late_window_s: how much older than the newest object that was read a "
                "new one's neighbours by name may be.",
            )
        return ReadInOrder(upto=upto, seen=seen)


def next_in_order(
    found: Iterable[FoundFile], before: ReadInOrder, limits: BatchLimits, *, base: str, now_ns: int, most: int = 1
) -> ChosenInOrder | None:
    """The objects of the next batches, by name; None: there is nothing new.

    :param found: objects after `before.upto`, in the order of names; read only as far as needed.
    :raises SourceChangedError: an object that was read has changed.
    """
    listed: list[FoundFile] = []
    new: list[FoundFile] = []
    size, complete = 0, True
    for file in found:
        listed.append(file)
        mark = before.seen.get(name_mark(file.path))
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
