"""Text files that the JVM reads itself: where no Python runs on the lines, they need not pass through it.

The lines are those of `spouts.files.lines`, which defines them. Only with a local master: there the files that this
process has looked at are those that Spark reads.
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


def read_text(session: SparkSession, columns: Columns, files: TextFiles, field: str) -> DataFrame:
    """The lines, as one column of this name."""
    raw = session.read.option("lineSep", "\n").text([f"file://{path}" for path in files.paths])
    return raw.select(_line(columns, field, returns=files.returns))


def _line(columns: Columns, field: str, *, returns: bool) -> Any:
    """A column of Spark's reader as the line that it is."""
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
    """A folder with a part for each transaction of a group, as Spark has partitions of tables, and in it links to its
    files: so whose a line is costs nothing for each line, and a file that comes twice is read twice.

    :param paths: number of a transaction -> its files; of all under one number, if nobody asks whose a line is.
    :raises OSError: the folder for temporary files takes no links, or its name would mean something else to Spark.
    """
    from pyspark import SparkFiles

    # removed with the application, whatever becomes of this process
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
    :param tag: the column that gets the number of the transaction; None: nobody asks.
    """
    reader = session.read.option("lineSep", "\n").option("basePath", folder).schema(f"value string, {_PART} int")
    raw = reader.text(f"file://{folder}")
    tags = () if tag is None else (columns.known(("tag", tag), lambda: columns.named(_PART).alias(tag)),)
    return raw.select(_line(columns, field, returns=returns), *tags)
