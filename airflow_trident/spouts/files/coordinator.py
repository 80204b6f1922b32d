"""Decides the batches of a FileSpout by the list of read files."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import CorruptRecordError, SourceChangedError, SourceUnavailableError, TridentError
from airflow_trident.io.place import Place
from airflow_trident.protocol.file_partitions import REPLACES, FilePartitions
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.spouts.files.contents import RecordedFile, recorded_files
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import FoundFile, Listing
from airflow_trident.spouts.files.new_files import FileSearch, NewFiles, record_of
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.read_list import (
    UPTO,
    ReadList,
    ReadPosition,
    ReadRecord,
    inner_of,
    position_in,
    sweep,
)
from airflow_trident.spouts.files.read_options import BatchRules
from airflow_trident.types import Json

LARGE_FOLDER_FILES = 100
LISTING_AGE = 20
SHORT_LISTING_AGE, SHORT_LISTING_S = 100, 5.0
"""A listing that took milliseconds is kept longer, up to SHORT_LISTING_S seconds: otherwise listing would take a
twentieth of the time, half of what a drain may add to a small transaction. A long listing is not kept that long: files
that come late would be noticed too late."""


class Listings:
    """The last listing of a large folder, for a drain. It is used again while it still gives a batch and is not too
    old, so listing takes only a small part of the time."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self._last: tuple[Listing, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Listings, (self._source,)

    def remembered(self) -> Listing | None:
        if self._last is None:
            return None
        listing, taken_ns = self._last
        return listing if time.monotonic_ns() - taken_ns <= kept_ns(listing.took_ns) else None

    def new(self) -> Listing:
        listing = self._source.list()
        self._last = (listing, time.monotonic_ns()) if len(listing.files) >= LARGE_FOLDER_FILES else None
        return listing


def kept_ns(took_ns: int) -> int:
    """The greatest age of a listing that took `took_ns`."""
    return max(LISTING_AGE * took_ns, min(SHORT_LISTING_AGE * took_ns, int(SHORT_LISTING_S * 1e9)))


@dataclass
class FileCoordinator(Coordinator):
    """Metadata: ``files`` as [path below the base, size in bytes, mtime in ns, digest], oldest first, and what has been
    read with them (:class:`airflow_trident.spouts.files.read_list.ReadPosition`). For objects the digest is the ETag,
    and the version follows if the bucket keeps versions."""

    source: FileSource
    rules: BatchRules
    listings: Listings
    digest_bytes: int
    _reader: ReadList = field(default_factory=ReadList)

    def keep_notes_in(self, place: Place) -> None:
        self._reader = ReadList(place)

    def is_ready(self, previous: Json) -> bool:
        return bool(self._look(previous).batches)

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: a file that was read has changed.
        :raises SourceUnavailableError: a file is still being written.
        :raises CorruptRecordError: the list of read files is lost or damaged.
        """
        return next(iter(self.next_batches(txid, previous, 1)), None)

    def next_batches(self, txid: int, previous: Json, most: int) -> list[Json]:
        """All from one listing. The metadata of the last batch has what was read with all of them."""
        chosen = self._remembered(previous, most) or self._look(previous, most)
        if not chosen.batches:
            return []
        base, last_txid = self.source.base(), txid + len(chosen.batches) - 1
        claimed = {file.path: file for file in self.source.claimed(base, chosen.files, self.digest_bytes)}
        self._reader.position = ReadPosition.from_json(previous)
        read = self._reader.add(last_txid, [*chosen.touched, *map(_record_of, claimed.values())])
        after = {**read.to_json(), **self._more(chosen)}
        answers: list[Json] = []
        for number, batch in enumerate(chosen.batches, txid):
            more: Mapping[str, Json] = after if number == last_txid else {UPTO: last_txid}
            answers.append({**self._kind, "files": [claimed[file.path].to_json() for file in batch], **more})
        return answers

    def size_bytes(self, metadata: Json) -> int:
        return sum(file.size for file in recorded_files(metadata, ""))

    def accept_source(self, metadata: Json) -> Json:
        base = self.source.base()
        before = recorded_files(metadata, base)
        assert isinstance(metadata, dict)
        files = self.source.as_they_are(base, before, self.digest_bytes)
        return {**metadata, "files": [file.to_json() for file in files], **_with(metadata, files, before)}

    def follow_source(self, later: Json, accepted: Json) -> Json:
        assert isinstance(later, dict)
        return {**later, **_with(later, recorded_files(accepted, self.source.base()))}

    def sweep_notes(self, kept: Sequence[Json], upto: int) -> None:
        if self._reader.place is not None:
            sweep(self._reader.place, filter(None, map(position_in, kept)), upto)

    def mark_read(self, txid: int, previous: Json, before_ns: int | None) -> tuple[Json, int]:
        """The metadata of a transaction without files, after which all files that are there count as read, as they are
        now; and the number of those that did not. If the list of read files is damaged, a new one begins.

        :param before_ns: only older files.
        """
        files = [file for file in self.listings.new().files if before_ns is None or file.mtime_ns < before_ns]
        try:
            self._reader.position = ReadPosition.from_json(previous)
            self._reader.require_whole()
        except (CorruptRecordError, SourceChangedError):
            self._reader.position = ReadPosition()
        read = self._reader.records_of(record_of(file).name for file in files)
        new = [file for file in files if (now := record_of(file)).name not in read or read[now.name].stamp != now.stamp]
        claimed = self.source.claimed(self.source.base(), new, self.digest_bytes) if new else ()
        position = self._reader.add(txid, map(_record_of, claimed)).to_json()
        after = {"after": previous["after"]} if isinstance(previous, dict) and "after" in previous else {}
        return {**self._kind, "files": [], **position, **after}, len(new)

    def lag(self, position: Json) -> Lag | None:
        """Files that are too young (`min_age_s`) do not count."""
        unlimited = replace(self.rules, max_files=sys.maxsize, max_bytes=sys.maxsize)
        return _amount(self._choose(self.listings.remembered() or self.listings.new(), position, 1, unlimited).files)

    @property
    def _kind(self) -> Mapping[str, Json]:
        return {REPLACES: FilePartitions.step} if self.rules.replaces else {}

    def _more(self, chosen: NewFiles) -> Mapping[str, Json]:
        """What the metadata has beside files and position."""
        return {}

    def _look(self, previous: Json, limit: int = 1) -> NewFiles:
        return self._choose(self.listings.new(), previous, limit, self.rules)

    def _remembered(self, previous: Json, limit: int) -> NewFiles | None:
        """The choice from the last listing, if the files of the batches are still as listed."""
        listing, base = self.listings.remembered(), self.source.base()
        if listing is None:
            return None
        with suppress(TridentError):  # a new listing decides whether something is wrong
            chosen = self._choose(listing, previous, limit, self.rules)
            if chosen.batches and all(self.source.is_as_listed(base, file) for file in chosen.files):
                return chosen
        return None

    def _choose(self, listing: Listing, previous: Json, limit: int, rules: BatchRules) -> NewFiles:
        return self._looking(previous, rules).next_batches(listing.files, limit)

    def _looking(self, previous: Json, rules: BatchRules) -> FileSearch:
        base = self.source.base()
        self._reader.position = ReadPosition.from_json(previous)
        content_of = partial(_content_of, self.source, base)
        return FileSearch(reader=self._reader, rules=rules, base=base, now_ns=time.time_ns(), content_of=content_of)


class OrderedCoordinator(FileCoordinator):
    """Metadata: as of a FileCoordinator, in the order of names; ``after``: the name behind which a listing begins."""

    def lag(self, position: Json) -> Lag | None:
        """None: there are more files than one listing for a batch shows."""
        chosen = self._look(position)
        return _amount([*chosen.files, *chosen.rest]) if chosen.is_all else None

    def _more(self, chosen: NewFiles) -> Mapping[str, Json]:
        return {"after": chosen.after}

    def _remembered(self, previous: Json, limit: int) -> None:
        """Never: a new listing is short."""

    def _look(self, previous: Json, limit: int = 1) -> NewFiles:
        """If `ordered_names` was set only now, one listing begins at the first name."""
        assert isinstance(self.source, ObjectFiles)
        after = str(previous.get("after", "")) if isinstance(previous, dict) else ""
        return self._looking(previous, self.rules).next_in_order(self.source.behind(after), after, limit)


def _record_of(file: RecordedFile) -> ReadRecord:
    return record_of(FoundFile(file.path, file.size, file.mtime_ns, 0, file.etag), file.digest)


def _with(metadata: Json, files: Iterable[RecordedFile], before: Iterable[RecordedFile] = ()) -> dict[str, Json]:
    """The position in the metadata, if it has one, with these files as they are described here.

    :param before: as they are described in it.
    """
    if inner_of(metadata):
        return {}
    changed = set(map(_record_of, files)).difference(map(_record_of, before))
    return ReadPosition.from_json(metadata).with_newer(sorted(changed, key=ReadRecord.to_bytes)).to_json()


def _content_of(source: FileSource, base: str, file: FoundFile) -> str:
    try:
        return source.content_of(base, file)
    except OSError as error:
        raise SourceUnavailableError(
            f"the file {file.path!r} in {base!r} cannot be read ({error.strerror or error})", "Let this user read it."
        ) from error


def _amount(files: Sequence[FoundFile]) -> Lag:
    return {"files": len(files), "bytes": sum(file.size for file in files)}
