"""A batch as files that a script reads: the source's own files, or Parquet files in a folder of the run, written from
the rows that the spout's emitter reads. In both cases the script reads what the metadata names."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_trident.closeable import Closing
from airflow_trident.contracts.spout import Emitter, ScriptBatch
from airflow_trident.errors import spout_code
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.parquet import parquet_writer
from airflow_trident.io.private_files import create_private
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.staging.files import make_folder, storage_error
from airflow_trident.types import Json

if TYPE_CHECKING:
    import pyarrow as pa


class ScriptInputs(Closing):
    """The inputs of one run of a script; `close` removes files written for it.

    :param folder: on this machine, of the attempt alone.
    """

    def __init__(self, folder: str, progress: Callable[[str], None]) -> None:
        self._folder = folder
        self._progress = progress
        self._written: list[str] = []

    def batch(self, source: SourceNode, metadata: Json) -> ScriptBatch:
        """
        :param metadata: None: the stream has no data in this batch.
        :raises SourceChangedError, DamagedInputError: the source no longer holds what was recorded.
        """
        with spout_code(source.name):
            emitter = source.spout.emitter()
            return emitter.batch_for_script(metadata, self._folder) or self._write(source, emitter, metadata)

    def close(self) -> None:
        for folder in self._written:
            shutil.rmtree(folder, ignore_errors=True)

    def _write(self, source: SourceNode, emitter: Emitter, metadata: Json) -> ScriptBatch:
        """One file per split; the rows pass through this process in pieces."""
        folder = os.path.join(self._folder, f"{source.name}-{uuid.uuid4().hex}")
        self._written.append(folder)
        schema = arrow_schema(source.spout.schema)
        with _storage(folder):
            make_folder(folder, durably=False)
        with spout_code(source.name):
            splits = [] if metadata is None else emitter.splits(metadata)
            rows = sum(_write_file(folder, f"part-{split.index:05}", schema, emitter.read(split)) for split in splits)
        if not splits:  # Spark's readers refuse an empty list of files
            _write_file(folder, "nothing", schema, [])
        self._progress(f"{rows} rows of input {source.name} are written for the script")
        names = sorted(os.listdir(folder))
        return ScriptBatch([f"file://{folder}/{name}" for name in names], _nothing_changes, rows)


def _write_file(folder: str, name: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> int:
    """Returns the number of rows."""
    import pyarrow as pa

    path, rows = os.path.join(folder, f"{name}.parquet"), 0
    with _storage(folder), create_private(path) as file, parquet_writer(file, schema) as write:
        for batch in batches:
            rows += batch.num_rows
            write(pa.Table.from_batches([batch]))
    return rows


@contextmanager
def _storage(folder: str) -> Iterator[None]:
    """:raises StoreUnavailableError, ConfigurationError: the folder cannot be written to."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, folder, "the staging folder") from error


def _nothing_changes() -> None:
    """The written files belong to this run alone."""
