"""FileSpout in a topology that is bound to partitions: the path says which files are those of a partition.

``/in/day={partition}/*.json`` has the key in its place, ``/in/{partition:%Y/%m/%d}/*.json`` the local time at which the
partition begins. A transaction reads all files that the path means now; nothing is remembered of what was read before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from airflow_trident.contracts.bound_spout import KeyedCoordinator, key_and_split, splits_of_key
from airflow_trident.contracts.spout import (
    BatchFrame,
    Emitter,
    PartitionChange,
    Split,
    Spout,
    TextFiles,
    not_metadata_of,
)
from airflow_trident.errors import (
    DamagedInputError,
    IncompletePartitionError,
    PlanError,
    SourceChangedError,
    SourceUnavailableError,
)
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.protocol.partitions import Partition, Partitions, PartitionStep
from airflow_trident.spouts.files.contents import MENDED, RecordedFile, recorded_files
from airflow_trident.spouts.files.emitter import FileEmitter
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import FoundFile, plain_parts
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_PLACE = re.compile(r"\{partition(?::([^{}]*))?\}")
_LEAP_YEAR = datetime(2024, 1, 1)
_SPANS = {
    PartitionStep.HOUR: [(timedelta(hours=1), 24 * 60), (timedelta(hours=5), 24 * 150)],
    PartitionStep.DAY: [(timedelta(days=1), 800)],
    PartitionStep.WEEK: [(timedelta(days=7), 530)],
    PartitionStep.MONTH: [(timedelta(days=32), 240)],
}
"""Steps from a Monday in a leap year, and how many: what is apart in these is apart in all years but for centuries."""


def has_partition(path: str) -> bool:
    """Does a path say where the files of a partition are?"""
    return _PLACE.search(path) is not None


@dataclass(frozen=True)
class PartitionPath:
    """`text`: the path with ``{partition}``."""

    text: str
    partitions: Partitions

    def __post_init__(self) -> None:
        if not has_partition(self.text):
            raise PlanError(
                f"FileSpout({self.text!r}) in a bound topology: the path does not say which files are those of a "
                f"{self.partitions.step}",
                "Put {partition} in its place, as in /data/day={partition}/*.csv, or {partition:%Y/%m/%d}.",
            )
        if not self._tells_apart():
            raise PlanError(
                f"FileSpout({self.text!r}): several {self.partitions.step}s have the same path",
                "Write the whole time into it, as in {partition:%Y/%m/%d}, or {partition}.",
            )

    def _tells_apart(self) -> bool:
        """Has each partition a path of its own, also in other months and years?"""
        if any(not place[1] for place in _PLACE.finditer(self.text)):
            return True  # the key
        step = self.partitions.step
        begins = {
            _LEAP_YEAR + number * length for length, count in _SPANS[PartitionStep(step)] for number in range(count)
        }
        if step == PartitionStep.MONTH:
            begins = {begin.replace(day=1) for begin in begins}
        return len({self._text_at(begin, "") for begin in begins}) == len(begins)

    def of(self, partition: Partition) -> str:
        """The path of a partition's files."""
        begin = partition.start.astimezone(ZoneInfo(self.partitions.timezone))
        return self._text_at(begin, partition.key)

    def _text_at(self, begin: datetime, key: str) -> str:
        return _PLACE.sub(lambda place: begin.strftime(place[1]) if place[1] else key, self.text)

    @property
    def above(self) -> str:
        """The folder above all partitions, as far as it is known; with a wildcard in it, empty."""
        above = self.text[: self.text.index("{partition")].rpartition("/")[0]
        return "" if plain_parts(above.split("/")) < len(above.split("/")) else above


@dataclass(frozen=True)
class BoundFiles(Spout):
    """`source_at`: the place of the files of a path. `done`: the name of the file that says that a partition is
    complete, or ""."""

    path: PartitionPath
    source_at: Callable[[str], FileSource]
    reader: FileEmitter
    fields: Schema
    done: str
    min_age_s: float
    digest_bytes: int

    def __post_init__(self) -> None:
        if self.done and not has_partition(_folder(self.path.text)):
            raise PlanError(
                f"FileSpout({self.path.text!r}) with done={self.done!r}: several partitions have one folder",
                "Give each partition a folder, as in /data/day={partition}/*.csv, or leave done out.",
            )

    @property
    def schema(self) -> Schema:
        return self.fields

    def coordinator(self) -> BoundFilesCoordinator:
        return BoundFilesCoordinator(self)

    def emitter(self) -> BoundFilesEmitter:
        return BoundFilesEmitter(self.path, self.source_at, self.reader)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (file_dataset(self.path.text),)

    @property
    def adapts(self) -> str:
        return "FileSpout"

    def describe(self) -> str:
        return f"FileSpout({self.reader.reading.format}, {self.path.text})"


@dataclass(frozen=True)
class BoundFilesCoordinator(KeyedCoordinator):
    """Metadata: ``partition``, and ``files`` as those of a FileSpout, in the order of their paths."""

    spout: BoundFiles

    def partition(self, partition: Partition, before: Json = None) -> Json:
        """
        :raises IncompletePartitionError: the file `done` is missing.
        :raises SourceUnavailableError: a file is being written, or is younger than `min_age_s`.
        """
        spout = self.spout
        path = spout.path.of(partition)
        source = spout.source_at(path)
        marker = self._marker(partition, path)
        files = self._listed(source, path)
        # A delivery that began meanwhile has taken the marker away: what was listed may be a part of it.
        if self._marker(partition, path) != marker:
            raise SourceUnavailableError(
                f"the files of {path!r} were delivered while they were listed: {spout.done!r} is another one",
                "Ask for the partition again.",
            )
        if not files:
            return None
        self._require_old(path, files)
        recorded = {} if before is None else _entries(before)
        new = [file for file in files if not _is_as_recorded(file, recorded.get(file.path))]
        if new:
            recorded |= {file.path: file.to_json() for file in source.claimed(source.base(), new, spout.digest_bytes)}
        return {"partition": partition.key, "files": [recorded[file.path] for file in files]}

    def _marker(self, partition: Partition, path: str) -> FoundFile | None:
        """The file that says that the partition is complete; None: none does.

        :raises IncompletePartitionError: it is missing.
        """
        done = self.spout.done
        if not done:
            return None
        found = self._listed(self.spout.source_at(_done_path(path, done)), path)
        if not found:
            raise IncompletePartitionError(
                f"the partition {partition.key} is not complete: {_folder(path)!r} has no {done!r}",
                "Nothing was begun: write it when all files of the partition are delivered.",
            )
        return found[0]

    def _listed(self, source: FileSource, path: str) -> list[FoundFile]:
        """No files, if the folder of the partition is missing in a folder that is there."""
        try:
            return sorted(source.list().files, key=lambda file: file.path)
        except SourceUnavailableError:
            above = self.spout.path.above
            if not above or self._has_folder(_folder(path)) or not self._has_folder(above):
                raise
            return []

    def _has_folder(self, folder: str) -> bool:
        try:
            self.spout.source_at(f"{folder}/*").list()
        except SourceUnavailableError:
            return False
        return True

    def _require_old(self, path: str, files: Sequence[FoundFile]) -> None:
        newest = max(files, key=lambda file: file.mtime_ns)
        if time.time_ns() - newest.mtime_ns < self.spout.min_age_s * 1e9:
            raise SourceUnavailableError(
                f"the file {newest.path!r} of {path!r} is younger than min_age_s={self.spout.min_age_s}",
                "Ask for the partition later.",
            )

    def compared(self, before: Json, now: Json) -> PartitionChange:
        """By name, size and content: a touched file is the same."""
        former, present = ({file.path: file for file in _files(metadata)} for metadata in (before, now))
        both = former.keys() & present.keys()
        return PartitionChange(
            new=tuple(sorted(present.keys() - former.keys())),
            gone=tuple(sorted(former.keys() - present.keys())),
            other=tuple(sorted(path for path in both if _content(former[path]) != _content(present[path]))),
        )

    def size_bytes(self, metadata: Json) -> int:
        return sum(file.size for file in _files(metadata))


def _files(metadata: Json) -> list[RecordedFile]:
    return recorded_files(metadata, "")


def _entries(metadata: Any) -> dict[str, Any]:
    """By path, what the metadata say of each file, as it is: a day may have very many."""
    try:
        return {entry[0]: entry for entry in metadata["files"]}
    except (KeyError, IndexError, TypeError) as error:
        raise not_metadata_of("a FileSpout of a partition", metadata) from error


def _is_as_recorded(file: FoundFile, recorded: Any) -> bool:
    """By size and time, or its store's mark: then its content need not be read.

    :param recorded: as `RecordedFile.to_json`; None: it is none of the files.
    """
    if recorded is None or [file.size, file.mtime_ns] != recorded[1:3]:
        return False
    return not file.etag or [file.etag] == recorded[3:4]


def _content(file: RecordedFile) -> tuple[int, str | int]:
    return file.size, file.digest or file.mtime_ns


def _folder(path: str) -> str:
    """Of a path that may be a pattern: the folder before the first wildcard."""
    parts = path.rstrip("/").split("/")
    return "/".join(parts[: plain_parts(parts)])


def _done_path(path: str, name: str) -> str:
    """As a pattern: a path without one is a folder in object stores."""
    return f"{_folder(path)}/{name[:-1]}[{name[-1]}]"


@dataclass(frozen=True)
class BoundFilesEmitter(Emitter):
    """`reader`: of the files of any path. A split has the key, as the metadata do: it says where the files are."""

    path: PartitionPath
    source_at: Callable[[str], FileSource]
    reader: FileEmitter

    is_fitted = True

    def _at(self, key: str) -> FileEmitter:
        return replace(self.reader, source=self.source_at(self.path.of(self.path.partitions.parse(key))))

    def _of(self, metadata: Json) -> FileEmitter:
        if isinstance(metadata, dict) and isinstance(key := metadata.get("partition"), str):
            return self._at(key)
        raise not_metadata_of("a FileSpout of a partition", metadata)

    def splits(self, metadata: Json) -> list[Split]:
        emitter = self._of(metadata)
        assert isinstance(metadata, dict)
        try:
            splits = emitter.splits(metadata)
        except SourceUnavailableError as error:
            raise SourceChangedError(error.message, "Ask for the partition again.") from error
        return splits_of_key(str(metadata["partition"]), splits)

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """
        :raises DamagedInputError: with the cure of a bound topology: it reads the file again whenever it is asked.
        """
        key, inner = key_and_split(split)
        try:
            yield from self._at(key).read(inner)
        except DamagedInputError as error:
            again = (
                "Correct the file, or move it away, and do the partition again: "
                f"`airflow trident backfill TOPOLOGY --partition {key}`."
            )
            raise type(error)(error.message, error.cure.replace(MENDED, again)) from error

    def name_of(self, split: Split) -> str:
        return self.reader.name_of(key_and_split(split)[1])

    def text_files(self, metadata: Json) -> TextFiles | None:
        return self._of(metadata).text_files(metadata)

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        return self._of(metadata).data_frame(session, metadata)

    def is_everywhere(self, metadata: Json) -> bool:
        return self._of(metadata).is_everywhere(metadata)

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        return self._with(self.reader.prune(fields))

    def push_filters(self, filters: tuple[Any, ...]) -> Emitter:
        return self._with(self.reader.push_filters(filters))

    def _with(self, reader: Emitter) -> Emitter:
        assert isinstance(reader, FileEmitter)
        return self if reader is self.reader else replace(self, reader=reader)
