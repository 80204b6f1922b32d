"""Chooses the batches of a FileSpout: from a listing, and from what was read before."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import TridentError
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.spouts.files.batch_limits import BatchLimits
from airflow_trident.spouts.files.consumed import (
    ORDERED,
    UPTO,
    ChosenFiles,
    Consumed,
    consumed_from_json,
    inner_of,
    next_batch,
)
from airflow_trident.spouts.files.contents import recorded_files
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import Listing
from airflow_trident.spouts.files.marks import name_mark, object_mark
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.ordered import (
    ChosenInOrder,
    ReadInOrder,
    next_in_order,
    read_in_order_from_json,
)
from airflow_trident.types import Json

_log = logging.getLogger(__name__)
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
        age_ns = time.monotonic_ns() - taken_ns
        return listing.taken_ago(age_ns) if age_ns <= kept_ns(listing.took_ns) else None

    def new(self) -> Listing:
        listing = self._source.list()
        self._last = (listing, time.monotonic_ns()) if len(listing.files) >= LARGE_FOLDER_FILES else None
        return listing


def kept_ns(took_ns: int) -> int:
    """The greatest age of a listing that took `took_ns`."""
    return max(LISTING_AGE * took_ns, min(SHORT_LISTING_AGE * took_ns, int(SHORT_LISTING_S * 1e9)))


@dataclass(frozen=True)
class FileCoordinator(Coordinator):
    """Metadata: ``files`` as [path below the base, size in bytes, mtime in ns, digest], oldest first, and what has been
    read with them (:class:`airflow_trident.spouts.files.consumed.Consumed`). For objects the digest is the ETag, and
    the version follows if the bucket keeps versions."""

    source: FileSource
    limits: BatchLimits
    listings: Listings
    digest_bytes: int

    def is_ready(self, previous: Json) -> bool:
        return self._look(previous, self.source.base()) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: a file that was read has changed.
        :raises SourceUnavailableError: a file is still being written.
        :raises ConfigurationError: a file came too late, and `late_files` is "error".
        """
        return next(iter(self.next_batches(txid, previous, 1)), None)

    def next_batches(self, txid: int, previous: Json, most: int) -> list[Json]:
        """All from one listing. The metadata of the last batch has what was read with all of them, and an error is
        about the last one."""
        base = self.source.base()
        choice = self._remembered(previous, base, most) or self._look(previous, base, most)
        if choice is None:
            return []
        if isinstance(choice, ChosenFiles) and choice.nameless:
            _log.warning(
                "FileSpout(%r): %d files that were read went away or were written anew since the last batch. So many "
                "changes at once cannot be told apart: a file that was written anew is read again.",
                self.source.text,
                choice.nameless,
            )
        claimed = {file.path: file for file in self.source.claimed(base, choice.files, self.digest_bytes)}
        after = choice.after({path: file.digest for path, file in claimed.items()})
        upto = txid + len(choice.batches) - 1
        found: list[Json] = []
        for batch in choice.batches:
            said: dict[str, Json] = after.to_json() if txid + len(found) == upto else {UPTO: upto}
            found.append({"files": [claimed[file.path].to_json() for file in batch], **said})
        return found

    def size_bytes(self, metadata: Json) -> int:
        return sum(file.size for file in recorded_files(metadata, ""))

    def accept_source(self, metadata: Json) -> Json:
        base = self.source.base()
        files = self.source.as_they_are(base, recorded_files(metadata, base), self.digest_bytes)
        after = inner_of(metadata) or _position(metadata).knows(files).to_json()
        return {"files": [file.to_json() for file in files], **after}

    def follow_source(self, later: Json, accepted: Json) -> Json:
        assert isinstance(later, dict)
        if inner_of(later):
            return later
        known = _position(later).knows(recorded_files(accepted, self.source.base()))
        return {**later, **known.to_json()}

    def lag(self, position: Json) -> Lag | None:
        """Files that are too young (`min_age_s`) do not count."""
        unlimited = replace(self, limits=replace(self.limits, max_files=sys.maxsize, max_bytes=sys.maxsize))
        listing = self.listings.remembered() or self.listings.new()
        rest = unlimited._choose(listing, position, self.source.base())
        files = [] if rest is None else rest.files
        return {"files": len(files), "bytes": sum(file.size for file in files)}

    def _remembered(self, previous: Json, base: str, most: int) -> ChosenFiles | None:
        """The choice from the last listing, if the files of the batches are still as listed."""
        listing = self.listings.remembered()
        if listing is None:
            return None
        with suppress(TridentError):  # a new listing decides whether something is wrong
            choice = self._choose(listing, previous, base, most)
            if choice is not None and all(self.source.is_as_listed(base, file) for file in choice.files):
                return choice
        return None

    def _look(self, previous: Json, base: str, most: int = 1) -> ChosenFiles | ChosenInOrder | None:
        return self._choose(self.listings.new(), previous, base, most)

    def _choose(self, listing: Listing, previous: Json, base: str, most: int = 1) -> ChosenFiles | None:
        return next_batch(
            listing,
            consumed_from_json(previous),
            self.limits,
            base=base,
            now_ns=time.time_ns(),
            content_of=lambda file: self.source.content_of(base, file),
            most=most,
        )


class OrderedCoordinator(FileCoordinator):
    """Metadata: ``files`` as of a FileCoordinator, by name, and what has been read with them
    (:class:`airflow_trident.spouts.files.ordered.ReadInOrder`)."""

    def lag(self, position: Json) -> Lag | None:
        """None: there are more files than one listing for a batch shows."""
        choice = self._look(position, self.source.base())
        if choice is None:
            return {"files": 0, "bytes": 0}
        return {"files": len(choice.new), "bytes": sum(file.size for file in choice.new)} if choice.complete else None

    def _remembered(self, previous: Json, base: str, most: int) -> None:
        """Never: a new listing is short."""

    def _look(self, previous: Json, base: str, most: int = 1) -> ChosenInOrder | None:
        before = self._before(previous, base)
        assert isinstance(self.source, ObjectFiles)
        found = self.source.behind(before.upto)
        return next_in_order(found, before, self.limits, base=base, now_ns=time.time_ns(), most=most)

    def _before(self, previous: Json, base: str) -> ReadInOrder:
        """If `ordered_names` was set only now, one listing of everything shows what was read before."""
        if not isinstance(previous, dict) or ORDERED in previous or "cursor" not in previous:
            return read_in_order_from_json(previous)
        every = replace(self.limits, max_files=sys.maxsize, max_bytes=sys.maxsize, min_age_ns=0)
        listing = self.source.list()
        choice = replace(self, limits=every)._choose(listing, previous, base)
        new = {file.path for file in choice.files} if choice else set()
        read = [file for file in listing.files if file.path not in new]
        seen = {name_mark(file.path): object_mark(file.size, file.etag) for file in read}
        return ReadInOrder(seen=seen, last=max((file.path for file in read), default=""))


def _position(metadata: Json) -> Consumed | ReadInOrder:
    ordered = isinstance(metadata, dict) and ORDERED in metadata
    return read_in_order_from_json(metadata) if ordered else consumed_from_json(metadata)
