"""A batch as whole files, for a script that reads them by Spark's own readers."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_trident.contracts.spout import ScriptBatch
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.private_files import create_private
from airflow_trident.spouts.files.contents import RecordedFile, require_same
from airflow_trident.spouts.files.formats import FileFormat, ReadOptions
from airflow_trident.spouts.files.spark_names import is_hidden
from airflow_trident.types import names_of

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
        if found := _PATTERN.search(path):
            raise ConfigurationError(
                f"the file {path!r} has {found[0]!r} in its name, which Spark takes for a pattern",
                "Let the files for a script have plain names.",
            )
        if is_hidden(path):
            raise ConfigurationError(
                f"the file {path!r} has a name that Spark's readers pass over",
                "Let the names of files for a script begin with neither '_' nor '.', and not end in '._COPYING_'.",
            )
    return ScriptBatch([f"file://{path}" for path in paths], SameFiles(tuple(paths), tuple(files)))


def write_nothing(reading: ReadOptions, folder: str) -> str:
    """Writes a file without rows and returns its path, because Spark's readers refuse an empty list of files."""
    path = os.path.join(folder, f"nothing-{uuid.uuid4().hex}.{reading.format}")
    with create_private(path) as file:
        if reading.format is FileFormat.PARQUET:
            import pyarrow.parquet as pq

            pq.write_table(arrow_schema(reading.schema).empty_table(), file)
        elif reading.format is FileFormat.CSV and reading.header:
            file.write(f"{','.join(names_of(reading.schema))}\n".encode())
    return path
