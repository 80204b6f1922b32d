"""Finds the files that have not been in a batch yet: those whose names are not in the list of read files.

No time says whether a file is new: files are moved in, copied with their old times, or come late. So a name that is not
in the list is a new file, whatever its times are. Times give the order of the batches.

If the names of new objects sort behind those of older ones, a listing begins after a name: all that is not new and
sorts up to it. The user promises the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, takewhile
from operator import itemgetter

from airflow_trident.contracts.spout import TAKE_AS_IT_IS
from airflow_trident.errors import SourceChangedError, SourceGoneError
from airflow_trident.protocol.file_partitions import FILE
from airflow_trident.spouts.files.listing import FoundFile, by_place
from airflow_trident.spouts.files.read_list import (
    NAME_BYTES,
    NO_CONTENT,
    ReadList,
    ReadRecord,
    content_mark,
    identity_mark,
    name_mark,
)
from airflow_trident.spouts.files.read_options import BatchRules, ChangedFiles, GoneFiles

ContentOf = Callable[[FoundFile], str]
"""The digest of a file's content; "" if it has none."""
PAGE_FILES = 1000
"""So many objects are listed and looked up together."""


def record_of(file: FoundFile, digest: str = "") -> ReadRecord:
    return ReadRecord(*marks_of(file.path, file.size, file.etag or file.mtime_ns), content_mark(digest))


@lru_cache(maxsize=1 << 17)
def marks_of(path: str, size: int, identity: str | int) -> tuple[bytes, bytes]:
    """The marks of a file's name and identity: of an object its ETag, because its time changes when it is copied; of
    other files size and time. Each look needs those of all files that are there."""
    return name_mark(path), identity_mark(f"{size} {identity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """The next batches, in order. `touched`: the records of read files that have another identity and the same content.
    `after`: a next listing may begin there. `rest`: new files that are in no batch. `is_all`: are there no more?"""

    batches: Sequence[Sequence[FoundFile]]
    touched: Sequence[ReadRecord] = ()
    after: str = ""
    rest: Sequence[FoundFile] = ()
    is_all: bool = True

    @property
    def files(self) -> list[FoundFile]:
        return [file for batch in self.batches for file in batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSearch:
    """What a coordinator knows when it looks for new files. `base`: the folder, for error texts. `content_of`: called
    if a read file has another identity than before."""

    reader: ReadList
    rules: BatchRules
    base: str
    now_ns: int
    content_of: ContentOf

    def next_batches(self, files: Sequence[FoundFile], limit: int = 1) -> NewFiles:
        """The next batches, oldest first.

        :param files: all that are there.
        :param limit: at most this number of batches.
        :raises SourceChangedError: a file that was read has changed.
        :raises CorruptRecordError: the list is lost or damaged.
        """
        self._require_there(files)
        new, touched = self._sorted_out(files)
        new.sort(key=by_place)
        batches, rest = self._cut(new, limit)
        return NewFiles(batches=batches, rest=rest, touched=touched)

    def _require_there(self, files: Sequence[FoundFile]) -> None:
        """:raises SourceGoneError: a file is gone whose rows could not be replaced any more."""
        if not self.rules.replaces or self.rules.gone is GoneFiles.KEEP:
            return
        if count := self.reader.missing(name_mark(file.path) for file in files):
            raise SourceGoneError(
                f"{count} files in {self.base!r} that were read are gone, and the states still have their rows, by "
                f"the field {FILE!r}",
                'Put them back. An empty file of its name removes the rows of one; gone="keep" leaves them there.',
            )

    def next_in_order(self, files: Iterable[FoundFile], after: str, limit: int = 1) -> NewFiles:
        """The next batches, by name. The errors are those of :meth:`next_batches`.

        :param files: those that sort behind `after`, by name; read only as far as needed.
        """
        pages, listed = iter(files), list[FoundFile]()
        new, touched = list[FoundFile](), list[ReadRecord]()
        is_all, most_files = True, self.rules.max_files * limit
        while page := list(islice(pages, PAGE_FILES)):
            listed += page
            new_here, touched_here = self._sorted_out(page)
            new, touched = new + new_here, touched + touched_here
            if len(new) > most_files or sum(file.size for file in new) > self.rules.max_bytes * limit:
                is_all = False
                break
        batches, rest = self._cut(new, limit)
        unread = {file.path for file in rest}
        read = [file for file in listed if file.path not in unread]
        newest_ns = max((file.mtime_ns for file in read), default=0)
        before_ns = newest_ns - self.rules.lookback_ns + (self.rules.lookback_ns == 0)
        passed = list(takewhile(lambda file: file.path not in unread and file.mtime_ns < before_ns, listed))
        after = passed[-1].path if passed else after
        return NewFiles(batches=batches, rest=rest, touched=touched, after=after, is_all=is_all)

    def _sorted_out(self, files: Sequence[FoundFile]) -> tuple[list[FoundFile], list[ReadRecord]]:
        """The files that are to be read, and the records of touched ones."""
        marks = [marks_of(file.path, file.size, file.etag or file.mtime_ns) for file in files]
        read = self.reader.plain_records_of(map(itemgetter(0), marks))
        new, changed, touched = list[FoundFile](), list[FoundFile](), list[ReadRecord]()
        for file, (name, stamp) in zip(files, marks, strict=True):
            record = read.get(name)
            if record is None:
                if self.rules.takes(file):
                    new.append(file)
            elif not record.startswith(stamp, NAME_BYTES):
                before = ReadRecord.from_bytes(record)
                has_content = before.content != NO_CONTENT
                if has_content and (now := record_of(file, self.content_of(file))).content == before.content:
                    touched.append(now)
                else:
                    changed.append(file)
        if changed and self.rules.changed is ChangedFiles.ERROR:
            raise _read_and_changed([file.path for file in changed], self.base)
        return new + changed, touched

    def _cut(self, new: Sequence[FoundFile], limit: int) -> tuple[list[list[FoundFile]], list[FoundFile]]:
        """The batches, and the files that are in none."""
        batches: list[list[FoundFile]] = []
        size = 0
        for file in new:
            if not self.rules.is_old_enough(file, self.now_ns):
                continue
            size += file.size
            if not batches or len(batches[-1]) == self.rules.max_files or size > self.rules.max_bytes:
                if len(batches) == limit:
                    break
                batches.append([])
                size = file.size
            batches[-1].append(file)
        chosen = {file.path for batch in batches for file in batch}
        return batches, [file for file in new if file.path not in chosen]


def _read_and_changed(paths: Sequence[str], base: str) -> SourceChangedError:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return SourceChangedError(
        f"the file {paths[0]!r}{more} in {base!r} was consumed by an earlier transaction and changed since",
        'Write new files instead of changing old ones; put the old content back, or remove the file. `changed="read"` '
        "reads each changed file again, whole. If that transaction is not committed, it may take the file as it is "
        f"now: {TAKE_AS_IT_IS}.",
    )
