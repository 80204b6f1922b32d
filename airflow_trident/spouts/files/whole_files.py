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
from airflow_trident.spouts.files.packing import named_packing, packing_at
from airflow_trident.spouts.files.reading import FileFormat, ReadOptions
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
    said = named_packing(path)
    if packing is None and (said is None or not said.hadoop_ending):
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
