"""A spout of files: text, CSV, JSON lines and Parquet, in batches, oldest first.

Transactional: the metadata of a batch names its files with size and time, so that a listing that changes between
attempts cannot change a batch. Files must appear whole (written elsewhere and moved in, or under a temporary name) and
stay as they are as long as their transaction may be replayed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.local_paths import require_local_path
from airflow_trident.protocol.spouts import Coordinator, Emitter, Split, Spout, SpoutKind, TextFiles
from airflow_trident.spouts.checks import require_simple_types
from airflow_trident.spouts.consumed import BatchLimits, LateFiles, consumed_from_json, next_batch
from airflow_trident.spouts.formats import FileFormat, Part, Reading, read_part
from airflow_trident.spouts.lines import line_start, plain_text
from airflow_trident.spouts.listing import FilePattern
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_FILES = 1000
DEFAULT_MAX_BYTES = 256 << 20
DEFAULT_SPLIT_BYTES = 32 << 20


class FileSpout(Spout):
    """Reads the files that a path means, each in exactly one transaction.

    :param path: a file, a folder (its files; with `recursive` those of its folders too), or a pattern with ``*``,
        ``?``, ``[...]``, ``**``. May begin with ``~``; relative to the working directory where it is used. Names that
        begin with ``.`` or ``_`` and files that end with ``.tmp``, ``.part``, ``._COPYING_`` are left out.
    :param format: ``text`` (one tuple per line), ``csv``, ``json`` (one object per line) or ``parquet``. Text, csv and
        json files whose names end with ``.gz`` are unpacked.
    :param fields: the columns with their types; for text one string field, by default ``"line string"``.
    :param max_files, max_bytes: of one batch; a single larger file is a batch by itself.
    :param min_age_s: leave younger files for later.
    :param late_window_s: how much older than the newest read file a new file may be and still be known as new.
    :param late_files: what to do about older ones that nobody can tell from touched ones: ``error``, ``take`` or
        ``ignore``.
    :param header: the first line of a csv file names its columns.
    :param extra_columns: columns that are not declared are an ``error``, or ``ignore`` them.
    :param split_bytes: larger text and json files are read in several parts.
    :raises ConfigurationError: an argument is wrong, or arguments do not go together.
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        path: str,
        *,
        format: str = "text",
        fields: FieldSpec | None = None,
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        min_age_s: float = 0.0,
        late_window_s: float = 3600.0,
        late_files: str = "error",
        header: bool = True,
        recursive: bool = False,
        extra_columns: str = "error",
        split_bytes: int = DEFAULT_SPLIT_BYTES,
    ) -> None:
        kind = FileFormat(_one_of("format", format, tuple(FileFormat)))
        for name, number, least in (
            ("max_files", max_files, 1),
            ("max_bytes", max_bytes, 1),
            ("split_bytes", split_bytes, 1),
            ("min_age_s", min_age_s, 0),
            ("late_window_s", late_window_s, 0),
        ):
            if number < least:
                raise ConfigurationError(f"FileSpout with {name}={number}", f"It must be at least {least}.")
        self._pattern = FilePattern(require_local_path("FileSpout", path), recursive)
        self._limits = BatchLimits(
            max_files=max_files,
            max_bytes=max_bytes,
            min_age_ns=int(min_age_s * 1e9),
            late_window_ns=int(late_window_s * 1e9),
            late_files=LateFiles(_one_of("late_files", late_files, tuple(LateFiles))),
        )
        self._reading = Reading(
            format=kind,
            schema=_declared(kind, fields),
            header=header,
            ignore_extra=_one_of("extra_columns", extra_columns, ("error", "ignore")) == "ignore",
        )
        self._split_bytes = split_bytes

    @property
    def schema(self) -> Schema:
        return self._reading.schema

    def coordinator(self) -> FileCoordinator:
        return FileCoordinator(self._pattern, self._limits)

    def emitter(self) -> FileEmitter:
        return FileEmitter(self._pattern, self._reading, self._split_bytes)

    def describe(self) -> str:
        return f"FileSpout({self._reading.format}, {self._pattern.text}{', recursive' * self._pattern.recursive})"


@dataclass(frozen=True)
class FileCoordinator(Coordinator):
    """Metadata: ``files`` as [path below the base, size in bytes, mtime in ns], oldest first, and what has been read
    with them (:class:`airflow_trident.spouts.consumed.Consumed`)."""

    pattern: FilePattern
    limits: BatchLimits

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: a file that was read has changed.
        :raises ConfigurationError: a file came too late, and `late_files` is "error".
        """
        before = consumed_from_json(previous)
        listing = self.pattern.list()
        base, _ = self.pattern.resolve()
        chosen = next_batch(listing, before, self.limits, base=base, now_ns=time.time_ns())
        if chosen is None:
            return None
        files, after = chosen
        return {"files": [[file.path, file.size, file.mtime_ns] for file in files], **after.to_json()}


@dataclass(frozen=True)
class FileEmitter(Emitter):
    """One split per file, several for large files whose lines can be told apart without reading from the start."""

    pattern: FilePattern
    reading: Reading
    split_bytes: int

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        """Of Parquet files only these columns are read; of others every column is checked, so it must be."""
        if self.reading.format is not FileFormat.PARQUET:
            return self
        return replace(self, reading=replace(self.reading, columns=fields))

    def push_filters(self, filters: tuple[Any, ...]) -> Emitter:
        """Row groups of Parquet files are passed over that cannot hold a row for them."""
        return replace(self, reading=replace(self.reading, filters=filters))

    def splits(self, metadata: Json) -> list[Split]:
        base, _ = self._base()
        bodies: list[tuple[Json, int]] = []
        for path, size, mtime_ns in _files(metadata):
            file: dict[str, Json] = {"path": os.path.join(base, path), "size": size, "mtime_ns": mtime_ns}
            if self.reading.format.has_lines and not path.endswith(".gz") and size > self.split_bytes:
                begins = range(0, size, self.split_bytes)
                parts = [(at, min(at + self.split_bytes, size)) for at in begins]
                bodies.extend(({**file, "begin": begin, "end": end}, end - begin) for begin, end in parts)
            else:
                bodies.append((file, size))
        return [Split(index, body, size_bytes) for index, (body, size_bytes) in enumerate(bodies)]

    def text_files(self, metadata: Json) -> TextFiles | None:
        """Unpacked files under names that mean nothing else to Spark, and none whose bytes it takes in another way."""
        if self.reading.format is not FileFormat.TEXT:
            return None
        base, _ = self._base()
        files = [(os.path.join(base, path), size, mtime_ns) for path, size, mtime_ns in _files(metadata)]

        def require_same() -> None:
            for path, size, mtime_ns in files:
                _require_same(path, {"size": size, "mtime_ns": mtime_ns})

        require_same()
        found = []
        for path, _, _ in files:
            text = plain_text(path)
            if text is None:
                return None
            found.append(text)
        return TextFiles(
            paths=tuple(path for path, _, _ in files),
            rows=sum(text.lines for text in found),
            returns=any(text.returns for text in found),
            require_same=require_same,
        )

    def _base(self) -> tuple[str, tuple[str, ...]]:
        try:
            return self.pattern.resolve()
        except SourceUnavailableError as error:
            # A path without pattern is a single file, and it was there when the batch was recorded.
            raise SourceChangedError(
                f"{error.message}, which the transaction recorded", "Put it back as it was and replay."
            ) from error

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        body = split.body
        assert isinstance(body, dict)
        path = str(body["path"])
        _require_same(path, body)
        try:
            yield from read_part(self.reading, _part(path, body))
        except DamagedInputError:
            _require_same(path, body)
            raise
        except OSError as error:
            _require_same(path, body)
            raise SourceUnavailableError(
                f"the file {path!r} cannot be read ({error.strerror or error})",
                "Let this user read it, or mend its file system, and run the task again.",
            ) from error
        # Again, because it may have been changed while it was read.
        _require_same(path, body)


def _part(path: str, body: dict[str, Json]) -> Part:
    """Cuts fall anywhere; a line belongs to the part in which it begins."""
    begin, end, size = body.get("begin"), body.get("end"), body["size"]
    if not isinstance(begin, int) or not isinstance(end, int) or not isinstance(size, int):
        return Part(path=path)
    with open(path, "rb") as file:
        return Part(path=path, begin=line_start(file, begin, size), end=line_start(file, end, size))


def _require_same(path: str, body: dict[str, Json]) -> None:
    recorded = (body["size"], body["mtime_ns"])
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SourceChangedError(
            f"the file {path!r}, which the transaction recorded, is gone", "Put it back as it was and replay."
        ) from error
    except OSError as error:
        raise SourceUnavailableError(
            f"the file {path!r} cannot be looked at ({error.strerror})", "Let this user read it."
        ) from error
    if (status.st_size, status.st_mtime_ns) != recorded:
        raise SourceChangedError(
            f"the file {path!r} changed since the transaction recorded it: {recorded[0]} bytes then, {status.st_size} "
            "now, or another time",
            "Put it back as it was (content and time) and replay. Move files in whole, or set min_age_s, and never "
            "change them afterwards.",
        )


def _files(metadata: Json) -> list[tuple[str, int, int]]:
    try:
        assert isinstance(metadata, dict)
        files: Any = metadata["files"]
        return [(str(path), int(size), int(mtime_ns)) for path, size, mtime_ns in files]
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise SourceChangedError(
            "the recorded metadata is not that of a FileSpout",
            "Another spout had this stream's name: give the stream a new name.",
        ) from error


def _declared(kind: FileFormat, fields: FieldSpec | None) -> Schema:
    if fields is None:
        if kind is not FileFormat.TEXT:
            raise ConfigurationError(
                f"FileSpout of {kind} files does not know their columns",
                'Declare them, as in FileSpout(path, format="csv", fields="id long, name string").',
            )
        return parse_declared("line string")
    schema = parse_declared(fields, ["string"] if kind is FileFormat.TEXT else [])
    if kind is FileFormat.TEXT and [field.type for field in schema] != ["string"]:
        raise ConfigurationError(
            f"FileSpout of text files has one string field, not ({', '.join(map(str, schema))})",
            "Name one field, and take lines apart with each().",
        )
    if kind is FileFormat.CSV:
        require_simple_types("csv files", schema)
    return schema


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigurationError(f"FileSpout with {name}={value!r}", f"Use one of {', '.join(allowed)}.")
    return value
