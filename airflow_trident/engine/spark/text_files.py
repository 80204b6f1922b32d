"""Text files that the JVM reads itself, if no Python node needs their lines.

`spouts.files.lines` defines the lines. Only with a local master: there Spark reads the same files that this process has
checked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import TextFiles
from airflow_trident.engine.spark.jvm_nodes import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PART = "part"
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./+@-]*")
_OPTIONS = {"lineSep": "\n", "ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
"""With other settings of the session Spark might leave out lines."""


def read_text(session: SparkSession, columns: Columns, files: TextFiles, field: str) -> DataFrame:
    """The lines, as one column of this name."""
    raw = session.read.options(**_OPTIONS).text([f"file://{path}" for path in files.paths])
    return raw.select(_line(columns, field, returns=files.returns))


def _line(columns: Columns, field: str, *, returns: bool) -> Any:
    """A column of Spark's reader as the line it stands for."""
    f = columns.functions

    def line() -> Any:
        value = f.col("value")
        if returns:
            ends = value.endswith("\r")
            value = f.when(ends, value.substr(f.lit(1), f.length(value) - 1)).otherwise(value)
        return value.alias(field)

    return columns.known(("line", field, returns), line)


@contextmanager
def linked(paths: Mapping[int, Sequence[str]]) -> Iterator[str]:
    """A folder with a partition folder for each transaction of a group, with links to its files. So Spark gets a line's
    transaction at no cost per line, and reads a repeated file twice.

    :param paths: number of a transaction -> its files; all under one number, if lines need no transaction.
    :raises OSError: the folder for temporary files has no links, or its name has a special meaning in Spark.
    """
    from pyspark import SparkFiles

    # removed with the application, even if this process is killed
    below = SparkFiles.getRootDirectory()
    if not _PLAIN_PATH.fullmatch(below):
        raise OSError(below)
    with TemporaryDirectory(prefix="airflow-trident-group-", dir=below, ignore_cleanup_errors=True) as folder:
        for member, files in paths.items():
            part = os.path.join(folder, f"{_PART}={member}")
            os.mkdir(part)
            for number, path in enumerate(files):
                os.symlink(path, os.path.join(part, f"{number}.txt"))
        yield folder


def read_linked(
    session: SparkSession, columns: Columns, folder: str, field: str, tag: str | None, *, returns: bool
) -> DataFrame:
    """The lines of a group.

    :param folder: of :func:`linked`.
    :param tag: the column for the number of the transaction; None: not needed.
    """
    reader = session.read.options(**_OPTIONS, basePath=folder).schema(f"value string, {_PART} int")
    raw = reader.text(f"file://{folder}")
    tags = () if tag is None else (columns.known(("tag", tag), lambda: columns.named(_PART).alias(tag)),)
    return raw.select(_line(columns, field, returns=returns), *tags)
