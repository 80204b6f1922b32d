"""Parquet objects of a store that Spark reads itself, if they are what the transaction recorded.

Spark asks a store for the object that is there now, whatever its version. So each one is looked at before and after:
its ETag tells whether it has the recorded content. If it has another, or Spark cannot go there, Python reads, which
asks for the recorded version and raises the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_trident.contracts.spout import BatchFrame
from airflow_trident.errors import DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.files.contents import RecordedFile
from airflow_trident.spouts.files.files_for_spark import FilesForSpark, in_place
from airflow_trident.spouts.files.formats import opened_parquet
from airflow_trident.spouts.files.object_files import ObjectFiles
from airflow_trident.spouts.files.parquet_in_spark import is_read_alike, spark_reads
from airflow_trident.spouts.files.reading import ReadOptions


@dataclass(frozen=True)
class SameObjects:
    """Raises SourceUnavailableError if an object was replaced or removed since it was looked at."""

    source: ObjectFiles
    files: tuple[RecordedFile, ...]
    where: FilesForSpark

    def __call__(self) -> None:
        for file, same in zip(self.files, self.where.each(self.source.is_as_recorded, self.files), strict=True):
            if not same:
                raise SourceUnavailableError(
                    f"the object {self.source.base()}/{file.path} was replaced or removed while Spark read it",
                    "A retry reads the version that the transaction recorded, or says what is gone.",
                )


def objects_in_spark(
    session: Any, source: ObjectFiles, reading: ReadOptions, files: Sequence[RecordedFile]
) -> BatchFrame | None:
    """The rows of a transaction's Parquet objects; None: Spark might give others, or cannot go there, which the log
    says.

    :raises SourceUnavailableError: the store does not answer.
    """
    if not files or not all(file.digest for file in files):
        return None
    where, path_of = in_place(session, source.place)
    if where is None:
        return None

    def rows_of(file: RecordedFile) -> int | None:
        if not where.is_plain(path_of(file.path)) or not source.is_as_recorded(file):
            return None
        path = f"{source.base()}/{file.path}"
        try:
            with source.opened(path, file) as opened, opened_parquet(reading, path, opened) as parquet:
                return int(parquet.metadata.num_rows) if is_read_alike(parquet, reading.read_schema) else None
        except (DamagedInputError, SourceChangedError):
            return None  # the reader will raise the error

    rows = 0
    for count in where.each(rows_of, files):
        if count is None:
            return None
        rows += count
    paths = [path_of(file.path) for file in files]
    try:
        frame = spark_reads(session, reading.read_schema, [where.url(path) for path in paths], where.options(paths))
    except Exception as error:
        if not where.is_open_error(error):
            raise
        return None
    return BatchFrame(frame=frame, rows=rows, require_same=SameObjects(source, tuple(files), where))
