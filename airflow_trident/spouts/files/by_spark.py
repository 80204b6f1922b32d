"""Parquet objects of a store that Spark reads itself, if they are what the transaction recorded.

Spark asks a store for the object that is there now, whatever its version. So each one is looked at before and after:
its ETag tells whether it has the recorded content. If it has another, or Spark cannot go there, Python reads, which
asks for the recorded version and raises the errors.

Files of tables that Spark reads itself, if it gives the same rows as the reader of the table's spout.

The footers of the files tell that, as for the files of a FileSpout. A column that a file lacks is null for both. In
doubt there is no frame: then the spout's reader is used, which also raises the errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import BatchFrame, ScriptBatch, Split
from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.parquet import parquet_file
from airflow_trident.io.values import UnfitValueError
from airflow_trident.spouts.files.columns import from_text
from airflow_trident.spouts.files.contents import RecordedFile
from airflow_trident.spouts.files.files_for_spark import HERE, FilesForSpark, in_place
from airflow_trident.spouts.files.formats import opened_parquet
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.parquet_in_spark import is_read_alike, spark_reads
from airflow_trident.spouts.files.read_options import ReadOptions
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SameObjects:
    """Raises SourceUnavailableError if an object was replaced or removed since it was looked at."""

    source: ObjectFiles
    files: tuple[RecordedFile, ...]
    storage: FilesForSpark

    def __call__(self) -> None:
        for file, same in zip(self.files, self.storage.each(self.source.is_as_recorded, self.files), strict=True):
            if not same:
                raise SourceUnavailableError(
                    f"the object {self.source.base()}/{file.path} was replaced or removed while Spark read it",
                    "A retry reads the version that the transaction recorded, or says what is gone.",
                )


def objects_in_spark(
    session: Any,
    source: ObjectFiles,
    reading: ReadOptions,
    files: Sequence[RecordedFile],
    schema: Schema,
    values_of: Callable[[RecordedFile], LiteralColumns],
) -> BatchFrame | None:
    """The rows of a transaction's Parquet objects; None: Spark might give others, or cannot go there, which the log
    says.

    :param schema: the fields of the rows.
    :param values_of: those of them that are the same in all rows of a file.
    :raises SourceUnavailableError: the store does not answer.
    """
    if not files or not all(file.digest for file in files):
        return None
    storage, path_of = in_place(session, source.place)
    if storage is None:
        return None

    def rows_of(file: RecordedFile) -> int | None:
        if not storage.is_plain(path_of(file.path)) or not source.is_as_recorded(file):
            return None
        path = f"{source.base()}/{file.path}"
        try:
            with source.opened(path, file) as opened, opened_parquet(reading, path, opened) as parquet:
                return int(parquet.metadata.num_rows) if is_read_alike(parquet, reading.read_schema) else None
        except (DamagedInputError, SourceChangedError):
            return None  # the reader will raise the error

    rows = 0
    for count in storage.each(rows_of, files):
        if count is None:
            return None
        rows += count
    located = [(values_of(file), path_of(file.path)) for file in files]
    try:
        frame = united(session, schema, located, storage)
    except Exception as error:
        if not storage.is_open_error(error):
            raise
        return None
    same = SameObjects(source, tuple(files), storage)
    return None if frame is None else BatchFrame(frame=frame, rows=rows, require_same=same)


MOST_PARTITIONS = 32
"""Files of more partitions, whose values are not in the files, are left to Python: each is a part of Spark's plan."""
_GONE = ("PATH_NOT_FOUND", "Path does not exist")
"""What Spark says of a file that was removed since its footer was read."""
_BY_TEXT = ("string", "boolean", "byte", "short", "int", "long", "float", "double")
_BY_NUMBER = {"date": "date_from_unix_date", "timestamp": "timestamp_micros"}
_BY_NUMBER_OF = {"date": "int", "timestamp": "long"}

LiteralColumns = tuple[tuple[str, str | None], ...]


class LastSplits:
    """The splits of the batch of which an emitter was asked last: a frame of it needs no other look at the table. They
    are not pickled."""

    def __init__(self) -> None:
        self._known: tuple[Json, list[Split]] | None = None

    def keep(self, metadata: Json, splits: list[Split]) -> list[Split]:
        self._known = metadata, splits
        return splits

    def of(self, metadata: Json) -> list[Split] | None:
        return self._known[1] if self._known is not None and self._known[0] == metadata else None

    def __reduce__(self) -> tuple[type[LastSplits], tuple[()]]:
        return LastSplits, ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOfTable:
    """`path`: as :class:`FilesForSpark` has it. `rows`: as the table has it; None: it does not say. `partition`: the
    values, as text, of columns that count instead of the file's own; an empty one is null."""

    path: str
    rows: int | None
    partition: Mapping[str, str | None]


def frame_of(
    session: Any,
    schema: Schema,
    files: Sequence[FileOfTable],
    is_like: Callable[[int, pa.Schema], bool] | None = None,
    storage: FilesForSpark = HERE,
) -> BatchFrame | None:
    """The rows of the files; None: Spark might give others, or a file is gone or damaged.

    :param is_like: are the columns of a file, which is told by its place, the table's columns of the same names? None:
        names alone count.
    """

    def looked_at(place: int) -> tuple[tuple[int, int], int | None]:
        file = files[place]
        read_fields = tuple(field for field in schema if field.name not in file.partition)
        identity = storage.identity(file.path)
        rows = (
            _table_rows(storage, file, read_fields, None if is_like is None else partial(is_like, place))
            if read_fields
            else None
        )
        return identity, rows

    seen, rows = list[tuple[str, tuple[int, int]]](), 0
    try:
        for file, (identity, count) in zip(files, storage.each(looked_at, range(len(files))), strict=True):
            if count is None:
                return None
            seen.append((file.path, identity))
            rows += count
    except OSError:
        return None

    def values_of(file: FileOfTable) -> LiteralColumns:
        return tuple(
            (field.name, file.partition[field.name] or None) for field in schema if field.name in file.partition
        )

    try:
        frame = united(session, schema, [(values_of(file), file.path) for file in files], storage)
    except Exception as error:
        if not any(phrase in str(error) for phrase in _GONE) and not storage.is_open_error(error):
            raise
        return None
    same = SameTableFiles(tuple(seen), storage)
    return None if frame is None else BatchFrame(frame=frame, rows=rows, require_same=same)


def files_for_script(
    schema: Schema, files: Sequence[FileOfTable], is_like: Callable[[int, pa.Schema], bool] | None = None
) -> ScriptBatch | None:
    """The files themselves, of this machine, for a script that reads them; None: it would get other columns or types
    than the table's spout declares, or a file is gone or damaged.

    :param is_like: as for :func:`frame_of`.
    """
    if not files or any(field.name in file.partition for file in files for field in schema):
        return None

    def is_it(place: int, file_schema: pa.Schema) -> bool:
        """Nothing tells the script's reader of columns and types."""
        declared = arrow_schema(schema)
        if file_schema.names != declared.names or (is_like is not None and not is_like(place, file_schema)):
            return False
        return all(
            actual_type == of
            for of, actual_type in zip(declared.types, file_schema.types, strict=True)
            if "timestamp" in str(of)
        )

    seen, rows = list[tuple[str, tuple[int, int]]](), 0
    try:
        for place, file in enumerate(files):
            identity, count = HERE.identity(file.path), _table_rows(HERE, file, schema, partial(is_it, place))
            if count is None:
                return None
            seen.append((file.path, identity))
            rows += count
    except OSError:
        return None
    return ScriptBatch([HERE.url(file.path) for file in files], SameTableFiles(tuple(seen), HERE), rows)


@dataclass(frozen=True)
class SameTableFiles:
    """Raises SourceChangedError if a file has another content than when its footer was read. One that is gone was read
    before, or Spark has failed and the spout's reader says what is gone."""

    files: tuple[tuple[str, tuple[int, int]], ...]
    storage: FilesForSpark

    def __call__(self) -> None:
        identities = self.storage.each(self._identity, [path for path, _ in self.files])
        for (path, identity), now in zip(self.files, identities, strict=True):
            if now not in (identity, None):
                raise SourceChangedError(
                    f"the file {path!r} of a table was replaced while it was read",
                    "Files of tables are never written again: see who did that, and run the task again.",
                )

    def _identity(self, path: str) -> tuple[int, int] | None:
        try:
            return self.storage.identity(path)
        except OSError:
            return None


def _table_rows(
    storage: FilesForSpark, file: FileOfTable, read_fields: Schema, is_like: Callable[[pa.Schema], bool] | None
) -> int | None:
    import pyarrow as pa

    if not storage.is_plain(file.path):
        return None
    try:
        with storage.open(file.path) as opened, parquet_file(opened) as parquet:
            count = int(parquet.metadata.num_rows)
            alike = is_read_alike(parquet, read_fields, may_lack=True) and (
                is_like is None or is_like(parquet.schema_arrow)
            )
    except pa.ArrowException:
        return None
    return count if alike and file.rows in (None, count) else None


def united(
    session: Any, schema: Schema, files: Iterable[tuple[LiteralColumns, str]], storage: FilesForSpark = HERE
) -> Any:
    """One frame of all files, with the columns in the order of the schema. None: a value has no literal, or Spark would
    have too many parts, or no column to read.

    :param files: the values of columns that count instead of the file's own, and the path of each file.
    """
    parts: dict[LiteralColumns, list[str]] = {}
    for values, path in files:
        parts.setdefault(values, []).append(path)
    if not parts or len(parts) > MOST_PARTITIONS:
        return None
    frames = []
    for values, paths in parts.items():
        read_fields = tuple(field for field in schema if field.name not in dict(values))
        if not read_fields:
            return None
        frame = spark_reads(session, read_fields, [*map(storage.url, paths)], storage.options(paths))
        if values:
            try:
                frame = frame.selectExpr("*", *_literals(schema, dict(values)))
            except (UnfitValueError, _NoLiteral):
                return None
            frame = frame.select(*(f"`{field.name}`" for field in schema))
        frames.append(frame)
    first, *others = frames
    for other in others:
        first = first.union(other)
    return first


class _NoLiteral(Exception):
    """A value of this type is made by Python only."""


def _literals(schema: Schema, values: Mapping[str, str | None]) -> Iterator[str]:
    """The columns of a partition, in Spark's SQL.

    :raises UnfitValueError: a text is no value of its type.
    """
    import pyarrow as pa

    for field in schema:
        if field.name in values:
            text = values[field.name]
            texts = pa.array([text], pa.string())
            value = None if text is None else from_text(texts, field.type)[0]
            yield f"{_literal(field.type, value)} AS `{field.name}`"


def _literal(kind: str, value: Any) -> str:
    """
    :param value: an Arrow scalar; None: a null.
    """
    if value is None:
        return f"CAST(NULL AS {kind})"
    if kind in _BY_NUMBER:
        return f"{_BY_NUMBER[kind]}(CAST('{value.value}' AS {_BY_NUMBER_OF[kind]}))"
    if kind not in _BY_TEXT and not kind.startswith("decimal"):
        raise _NoLiteral
    text = f"CAST(X'{str(value.as_py()).encode().hex()}' AS string)"  # nothing of it is syntax
    return f"CAST({text} AS {kind})"
