"""Reads the files that a transaction of a FileSpout recorded.

A batch as whole files, for a script that reads them by Spark's own readers.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from airflow_trident.contracts.spout import BatchFrame, Emitter, ScriptBatch, Split, TextFiles
from airflow_trident.errors import ConfigurationError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.hadoop import is_hidden
from airflow_trident.io.private_files import create_private
from airflow_trident.spouts.files.by_spark import objects_in_spark, united
from airflow_trident.spouts.files.contents import RecordedFile, recorded_files, require_same
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.formats import read_part
from airflow_trident.spouts.files.lines import line_start, plain_text
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.packing import named_packing, packing_at
from airflow_trident.spouts.files.parquet_in_spark import rows_for_spark
from airflow_trident.spouts.files.path_fields import PathFields, PathValues
from airflow_trident.spouts.files.read_options import FileFormat, FilePart, ReadOptions
from airflow_trident.types import Json, Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

_PATTERN = re.compile(r"[*?\[\]{}\\]")


@dataclass(frozen=True)
class SameFiles:
    """Raises SourceChangedError if a file is not as it was recorded."""

    paths: tuple[str, ...]
    files: tuple[RecordedFile, ...]

    def __call__(self) -> None:
        for path, file in zip(self.paths, self.files, strict=False):
            require_same(path, file)


def whole_files(paths: Sequence[str], files: Sequence[RecordedFile]) -> ScriptBatch:
    """
    :param files: the record of the file at each path; none for a file of :func:`write_nothing`.
    :raises ConfigurationError: Spark takes a name for a pattern, or would leave out the file.
    """
    for path in paths:
        if match := _PATTERN.search(path):
            raise ConfigurationError(
                f"the file {path!r} has {match[0]!r} in its name, which Spark takes for a pattern",
                "Let the files for a script have plain names.",
            )
        if is_hidden(path):
            raise ConfigurationError(
                f"the file {path!r} has a name that Spark's readers pass over",
                "Let the names of files for a script begin with neither '_' nor '.', and not end in '._COPYING_'.",
            )
        _require_named_packing(path)
    return ScriptBatch([f"file://{path}" for path in paths], SameFiles(tuple(paths), tuple(files)))


def _require_named_packing(path: str) -> None:
    """Spark's readers know by the name whether a file is packed.

    :raises ConfigurationError: the name says it wrongly.
    """
    try:
        with open(path, "rb") as file:
            packing = packing_at(file)
    except OSError:
        return  # the reader will raise the error
    ending = "" if packing is None else packing.hadoop_ending
    packing_by_name = named_packing(path)
    if packing is None and (packing_by_name is None or not packing_by_name.hadoop_ending):
        return
    if packing is None or not ending or not path.endswith(ending):
        how = "not packed" if packing is None else f"packed by {packing.name}"
        raise ConfigurationError(
            f"the file {path!r} is {how}, and Spark's readers take it by its name for something else",
            f"Give files that a script reads the ending {ending!r}."
            if ending
            else "Give files that a script reads "
            "the ending of what they are (.gz, .zst, .bz2, or another one if they are not packed).",
        )


def write_nothing(reading: ReadOptions, folder: str) -> str:
    """Writes a file without rows and returns its path, because Spark's readers refuse an empty list of files."""
    path = os.path.join(folder, f"nothing-{uuid.uuid4().hex}.{reading.format}")
    with create_private(path) as file:
        if reading.format is FileFormat.PARQUET:
            import pyarrow.parquet as pq

            pq.write_table(arrow_schema(reading.schema).empty_table(), file)
        elif reading.format is FileFormat.CSV and reading.header:
            file.write(f"{reading.dialect.delimiter.join(names_of(reading.schema))}\n".encode())
    return path


@dataclass(frozen=True)
class FileEmitter(Emitter):
    """One split for each file; several for a large file that can be cut at line ends without reading it from the
    start."""

    is_fitted: ClassVar[bool] = True
    source: FileSource
    reading: ReadOptions
    split_bytes: int
    path_fields: PathFields
    pruned: tuple[str, ...] | None = None

    def prune(self, fields: tuple[str, ...]) -> Emitter:
        """Of Parquet files only these columns are read. Of other files every column is checked, so every one is
        read."""
        if self.reading.format is not FileFormat.PARQUET:
            return self
        content = names_of(self.reading.schema)
        columns = tuple(name for name in fields if name in content) or content[:1]  # one of them counts the rows
        return replace(self, reading=replace(self.reading, columns=columns), pruned=fields)

    @property
    def _fields(self) -> Schema:
        """Of the rows that it gives."""
        every = (*self.reading.schema, *self.path_fields.schema)
        return every if self.pruned is None else select(every, self.pruned, "FileSpout")

    def push_filters(self, filters: tuple[Any, ...]) -> Emitter:
        """Skips row groups of Parquet files that cannot have a row for these filters."""
        return replace(self, reading=replace(self.reading, filters=filters))

    def splits(self, metadata: Json) -> list[Split]:
        base = self._base()
        bodies: list[tuple[Json, int]] = []
        for recorded in recorded_files(metadata, base):
            size, address = recorded.size, os.path.join(base, recorded.path)
            self.path_fields.texts(address, recorded.path)
            now = self.source.looked_at(address, recorded)
            file: dict[str, Json] = {"file": now.to_json(), "path": address}
            if self.reading.format.has_lines and size > self.split_bytes and self._is_plain(address, now):
                begins = range(0, size, self.split_bytes)
                parts = [(at, min(at + self.split_bytes, size)) for at in begins]
                bodies.extend(({**file, "begin": begin, "end": end}, end - begin) for begin, end in parts)
            else:
                bodies.append((file, size))
        return [Split(index, body, size_bytes) for index, (body, size_bytes) in enumerate(bodies)]

    def _is_plain(self, address: str, file: RecordedFile) -> bool:
        """Is the file not packed? If it cannot be opened, the reader will raise the error."""
        try:
            with self.source.opened(address, file) as stream:
                return packing_at(stream) is None
        except (SourceChangedError, SourceUnavailableError):
            return True

    def text_files(self, metadata: Json) -> TextFiles | None:
        """Only for files that are not packed and have names and bytes that Spark reads in the same way; None
        otherwise."""
        if self.reading.format is not FileFormat.TEXT or not self.source.is_local or self.path_fields.schema:
            return None
        files = self._whole(metadata)
        texts = []
        for path in files.paths:
            text = plain_text(path)
            if text is None:
                return None
            texts.append(text)
        return TextFiles(
            paths=files.paths,
            rows=sum(text.lines for text in texts),
            returns=any(text.returns for text in texts),
            require_same=files,
        )

    def data_frame(self, session: Any, metadata: Json) -> BatchFrame | None:
        """Only for Parquet files whose columns have the declared types. For CSV and JSON, Spark's readers accept other
        values than this package's reader, and are slower."""
        if self.reading.format is not FileFormat.PARQUET:
            return None
        base = self._base()
        values_of = partial(self._path_values, base)
        if isinstance(self.source, ObjectFiles):
            files = recorded_files(metadata, base)
            return objects_in_spark(session, self.source, self.reading, files, self._fields, values_of)
        if not self.source.is_local:
            return None
        whole = self._whole(metadata)
        rows = rows_for_spark(self.reading, whole.paths)
        if rows is None:
            return None
        parts = [(values_of(file), path) for path, file in zip(whole.paths, whole.files, strict=True)]
        frame = united(session, self._fields, parts)
        return None if frame is None else BatchFrame(frame=frame, rows=rows, require_same=whole)

    def _path_values(self, base: str, file: RecordedFile) -> PathValues:
        return self.path_fields.texts(os.path.join(base, file.path), file.path)

    def is_everywhere(self, metadata: Json) -> bool:
        return isinstance(self.source, ObjectFiles)

    def batch_for_script(self, metadata: Json, folder: str) -> ScriptBatch | None:
        if not self.source.is_local or self.path_fields.schema:
            return None
        if metadata is None:
            return whole_files([write_nothing(self.reading, folder)], [])
        base = self._base()
        files = recorded_files(metadata, base)
        return whole_files([os.path.join(base, file.path) for file in files], files)

    def _whole(self, metadata: Json) -> SameFiles:
        """The files with their present times.

        :raises SourceChangedError: they are not the recorded files.
        """
        base = self._base()
        files = recorded_files(metadata, base)
        paths = tuple(os.path.join(base, file.path) for file in files)
        return SameFiles(paths, tuple(map(require_same, paths, files)))

    def _base(self) -> str:
        try:
            return self.source.base()
        except SourceUnavailableError as error:
            # A path without a pattern is a single file, which existed when the batch was recorded.
            raise SourceChangedError(
                f"{error.message}, which the transaction recorded", "Put it back as it was and replay."
            ) from error

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        body = split.body
        assert isinstance(body, dict)
        path = str(body["path"])
        file = recorded_files({"files": [body["file"]]}, "")[0]
        with self.source.opened(path, file) as opened:
            rows = read_part(self.reading, _part(path, file.size, body, opened), opened)
            yield from self._with_path_fields(rows, path, file) if self.path_fields.schema else rows

    def _with_path_fields(
        self, rows: Iterator[pa.RecordBatch], path: str, file: RecordedFile
    ) -> Iterator[pa.RecordBatch]:
        scalars = self.path_fields.scalars(path, self.path_fields.texts(path, file.path))
        for batch in rows:
            every = self.path_fields.added(batch, scalars)
            yield every if self.pruned is None else every.select(list(self.pruned))


def _part(path: str, size: int, body: dict[str, Json], file: BinaryIO) -> FilePart:
    """Cuts may fall anywhere: a line belongs to the part in which it begins. Looks for the end first: then the file
    stands near the begin, which is read next."""
    begin, end = body.get("begin"), body.get("end")
    if not isinstance(begin, int) or not isinstance(end, int):
        return FilePart(path=path)
    part_end = line_start(file, end, size)
    return FilePart(path=path, begin=line_start(file, begin, size), end=part_end)
