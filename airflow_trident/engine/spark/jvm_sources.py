"""Sources that the JVM reads, if no Python node needs their rows. With a local master Spark sees the same files as this
process; in a cluster it reads only what has the same address on each machine.

Text files that the JVM reads itself, if no Python node needs their lines.

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

from airflow_trident.contracts.spout import BatchFrame, Emitter, TextFiles
from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark.jvm_nodes import Columns, stays_in_jvm
from airflow_trident.engine.spark.sessions.session import Attached, is_connect, is_of_session
from airflow_trident.errors import DamagedInputError, FieldError
from airflow_trident.plan.graph import Grouping
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.plan.stages import Stage
from airflow_trident.types import Json, names_of, parse_type

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


class JvmSources:
    """The JVM sources of one run."""

    def __init__(self, attached: Attached, job: Job, columns: Columns) -> None:
        self._attached = attached
        self._plan = job.plan
        self._columns = columns
        self._read: list[TextFiles | BatchFrame] = []

    def read(self, stage: Stage, source: SourceNode, emitter: Emitter, metadata: Json) -> DataFrame | None:
        """The rows read by the JVM; None: Python must read them."""
        hinted = stage.partitions is not None or stage.at_most is not None
        if hinted or not _all_in_jvm(stage) or is_connect(self._attached.session):
            return None
        here = self._attached.local
        forks = any(planned.forks for planned in self._plan.stages)
        if here and not forks and (files := emitter.text_files(metadata)) is not None:
            self._read.append(files)
            return read_text(self._attached.session, self._columns, files, stage.before[0].name)
        if not self._goes_on_in_jvm(stage) or not (here or emitter.is_everywhere(metadata)):
            return None
        batch = emitter.data_frame(self._attached.session, metadata)
        if batch is None:
            return None
        data = self._as_declared(source, batch)
        self._read.append(batch)
        return data

    def require_same(self) -> None:
        for batch in self._read:
            batch.require_same()

    def rows(self) -> int | None:
        """How many rows were read; None: unknown."""
        rows = [batch.rows for batch in self._read]
        return None if None in rows else sum(count for count in rows if count is not None)

    def _goes_on_in_jvm(self, stage: Stage) -> bool:
        """Do rows move, or go to a transform, before Python gets them? Python needs fixed partitions, and Spark splits
        files as it likes."""
        readers = [reader for reader in self._plan.stages if stage.index in reader.upstreams]
        return not stage.sinks and all(map(self._takes_them_in_jvm, readers))

    def _takes_them_in_jvm(self, stage: Stage) -> bool:
        if stage.transform is not None:
            return True
        if stage.exchange is not None:
            return stage.exchange.grouping not in (Grouping.COLOCATED, Grouping.CUSTOM)
        return _all_in_jvm(stage) and self._goes_on_in_jvm(stage)

    def _as_declared(self, source: SourceNode, batch: BatchFrame) -> DataFrame:
        """:raises DamagedInputError: the columns are not those that the spout declares."""
        from pyspark.sql import DataFrame

        frame: Any = batch.frame
        if not isinstance(frame, DataFrame) or frame.isStreaming or not is_of_session(frame, self._attached.session):
            raise _wrong(source, "is no DataFrame of the session that it was given")
        types = {field.name: _type_of(field.dataType) for field in frame.schema.fields}
        wanted = {field.name: field.type for field in source.schema}
        if len(types) != len(frame.columns) or types.keys() not in (wanted.keys(), set(names_of(source.spout.schema))):
            raise _wrong(source, f"has the columns ({', '.join(frame.columns)})")
        for name, kind in wanted.items():
            if types[name] != kind:
                raise _wrong(source, f"has {name} as {types[name]}")
        return frame.select(*map(self._columns.named, wanted))


def _all_in_jvm(stage: Stage) -> bool:
    return all(stays_in_jvm(node, native=True) for node in stage.nodes)


def _type_of(spark_type: Any) -> str:
    text = str(spark_type.simpleString())
    try:
        return parse_type(text)
    except FieldError:
        return text


def _wrong(source: SourceNode, problem: str) -> DamagedInputError:
    return DamagedInputError(
        f"stream {source.name!r}: what the spout gave as a DataFrame {problem}; the spout declares "
        f"({', '.join(map(str, source.spout.schema))})",
        "Mend data_frame() of the spout's emitter, or the spout's schema.",
    )
