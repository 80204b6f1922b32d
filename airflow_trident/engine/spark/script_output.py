"""The output of a run of a script: complete, in Parquet, with the fields that the topology declares. Imports no
Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from airflow_trident.engine.spark.widening import widens
from airflow_trident.errors import FieldError, StagingError, TridentError, UserCodeError
from airflow_trident.io.arrow import Calendar, arrow_schema, require_fit
from airflow_trident.io.parquet import calendar_of, is_within_years, parquet_file, parquet_writer
from airflow_trident.io.seekable import Seekable
from airflow_trident.io.values import UnfitValueError
from airflow_trident.staging.files import sync_folder
from airflow_trident.staging.verbs import Storage
from airflow_trident.types import Schema, ddl, names_of, parse_type

SUCCESS = "_SUCCESS"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_ONE_RUN = "Let the cluster start the driver once, as by spark.yarn.maxAppAttempts=1, and run the task again."


@dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """`path`: relative to the staging root."""

    path: str
    rows: int
    bytes: int


def written_by(
    application: str, storage: Storage, outputs: Mapping[str, tuple[Schema, str]]
) -> dict[str, list[WrittenFile]]:
    """Output -> its files, all from the same run of the application.

    :param outputs: output -> its fields, and its folder in the storage, which has a folder per run.
    :raises UserCodeError: an output is missing, incomplete, or not as declared.
    :raises StagingError: the application ran more than once, and it is unknown which run counts.
    """
    runs = {name: _runs(storage, folder) for name, (_, folder) in outputs.items()}
    whole = [run for run in set().union(*runs.values()) if all(run in found for found in runs.values())]
    finished = [run for run in sorted(whole) if all(SUCCESS in found[run] for found in runs.values())]
    if outputs and not finished:
        raise _nothing_whole(application, runs)
    if len(finished) > 1:
        raise StagingError(
            f"script {application!r} was run {len(finished)} times in one attempt ({', '.join(finished)})", _ONE_RUN
        )
    found = {}
    for name, (schema, folder) in outputs.items():
        run, files = f"{folder}/{finished[0]}", runs[name][finished[0]]
        checked = _Output(application, name, schema, storage, run)
        found[name] = [checked.file(own, files[own]) for own in sorted(files) if not own.startswith(("_", "."))]
        if storage.is_local:
            _make_durable(storage.at(run), [storage.at(one.path) for one in found[name]])
    return found


def _runs(storage: Storage, folder: str) -> dict[str, dict[str, int]]:
    """Run -> its files, with their sizes. Spark's file system for S3 leaves empty objects named like folders."""
    found: dict[str, dict[str, int]] = {}
    for name, size in storage.list(folder):
        run, _, own = name[len(folder) + 1 :].partition("/")
        if own:
            found.setdefault(run, {})[own] = size
    return found


def _nothing_whole(application: str, runs: Mapping[str, Mapping[str, Mapping[str, int]]]) -> TridentError:
    for name, found in runs.items():
        if any(SUCCESS in files for files in found.values()):
            continue
        said = "left no _SUCCESS in" if found else "wrote nothing to"
        return UserCodeError(
            f"script {application!r} ended without an error and {said} its output {name!r}",
            f'Write it once, as in frame.write.parquet(trident.output(spark, "{name}")), and switch on '
            "mapreduce.fileoutputcommitter.marksuccessfuljobs where it is off. Where the driver is on another machine, "
            "the staging folder must be one that both see; its S3A must ask the same server as this task.",
        )
    return StagingError(f"no run of script {application!r} wrote all of {', '.join(runs)}", _ONE_RUN)


def _make_durable(folder: str, paths: Sequence[str]) -> None:
    """The files, and their names, before their manifest."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    for written in (folder, os.path.dirname(folder)):
        sync_folder(written)


class _StoredFile(Seekable):
    """A file of the storage, read by ranges: of a large one, only its footer is needed."""

    def __init__(self, storage: Storage, name: str, size: int) -> None:
        super().__init__(size)
        self._storage, self._name = storage, name

    def read(self, size: int = -1) -> bytes:
        begin, end = self.at, self.until(size)
        if end <= begin:
            return b""
        self.at = end
        return self._storage.get(self._name, begin, end - begin)


@dataclass(frozen=True)
class _Output:
    """An output of the script: its name, its declared fields, and the folder of the run that counts."""

    application: str
    name: str
    schema: Schema
    storage: Storage
    folder: str

    def file(self, own: str, size: int) -> WrittenFile:
        """:raises UserCodeError: the file is not what the output declares."""
        if "/" in own:
            raise UserCodeError(
                f"script {self.application!r} wrote the folder {own.partition('/')[0]!r} into its output {self.name!r}",
                "Write without partitionBy(): the columns stay in the rows, and the table that they go to has its own "
                "folders.",
            )
        path = f"{self.folder}/{own}"
        footer, found = self._footer(own, path, size)
        differs = self._differs(footer, found)
        self._require_values(own, path, footer)
        if differs:
            path, size = self._widened(path)
        return WrittenFile(path=path, rows=footer.num_rows, bytes=size)

    def _footer(self, own: str, path: str, size: int) -> tuple[Any, list[tuple[str, str]]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with _StoredFile(self.storage, path, size) as file:
                footer = pq.read_metadata(file)
            return footer, _fields(footer)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise UserCodeError(
                f"script {self.application!r} wrote {own!r} into its output {self.name!r}, which is no Parquet file of "
                f"Spark ({error})",
                f'Write it by frame.write.parquet(trident.output(spark, "{self.name}")).',
            ) from error

    def _require_values(self, own: str, path: str, footer: Any) -> None:
        """Looks at days, moments and maps, if statistics do not show that they are right.

        :raises UserCodeError: one is none of its type.
        """
        import pyarrow as pa

        calendar = calendar_of(footer)
        is_shown = calendar is Calendar.GREGORIAN and is_within_years(footer, set(names_of(self.schema)))
        looked_at = [one.name for one in self.schema if "map<" in one.type or not is_shown]
        if not looked_at:
            return
        try:
            with self.storage.open(path) as source:
                for rows in parquet_file(source).iter_batches(columns=looked_at):
                    require_fit(pa.Table.from_batches([rows]), calendar)
        except UnfitValueError as error:
            raise UserCodeError(
                f"script {self.application!r} wrote {own!r} into its output {self.name!r}: {error}",
                "Let the script write values of the declared types.",
            ) from error

    def _differs(self, footer: Any, fields: list[tuple[str, str]]) -> bool:
        """Are there narrower types than the declared ones?"""
        if any(footer.schema.column(place).physical_type == "INT96" for place in range(footer.num_columns)):
            raise UserCodeError(
                f"script {self.application!r} wrote timestamps of its output {self.name!r} as INT96, of which readers "
                "make what they like",
                "Leave spark.sql.parquet.outputTimestampType at TIMESTAMP_MICROS, which it was started with.",
            )
        found, schema = dict(fields), self.schema
        missing = [one for one in names_of(schema) if one not in found]
        more = [column for column in found if column not in names_of(schema)]
        differ = [one for one in schema if one.name in found and found[one.name] != one.type]
        others = [one.name for one in differ if not widens(found[one.name], one.type)]
        if missing or more or others:
            said = [
                *([f"without {', '.join(missing)}"] if missing else []),
                *([f"with {', '.join(more)}, which nobody declared"] if more else []),
                *([f"with other types of {', '.join(others)}"] if others else []),
            ]
            given = ", ".join(f"{column} {kind}" for column, kind in fields)
            raise UserCodeError(
                f"script {self.application!r} wrote its output {self.name!r} {' and '.join(said)}: it has ({given}), "
                f"declared is ({ddl(schema)})",
                "Select and cast the declared columns in the script, or declare what it writes.",
            )
        return bool(differ)

    def _widened(self, path: str) -> tuple[str, int]:
        """The rows with the declared types in a file beside it, piece by piece: tables get files as they are.

        :returns: its name and its size in bytes.
        """
        import pyarrow as pa

        wanted = arrow_schema(self.schema)
        made = f"{path.removesuffix('.parquet')}-widened.parquet"

        def write(file: BinaryIO) -> None:
            with self.storage.open(path) as source, parquet_writer(file, wanted) as write_rows:
                for rows in parquet_file(source).iter_batches():
                    columns = [rows.column(one.name).cast(one.type) for one in wanted]
                    write_rows(pa.table(columns, schema=wanted))

        return made, self.storage.put(made, write)


# ---- the fields of a file that Spark wrote -----------------------------------------------------------------------


def _fields(footer: Any) -> list[tuple[str, str]]:
    """Column -> its type, in Spark's own metadata; other writers have none."""
    metadata = footer.metadata or {}
    if _SPARK_SCHEMA not in metadata:
        raise ValueError("it does not say Spark's types")
    return [(field["name"], _type(field["type"])) for field in json.loads(metadata[_SPARK_SCHEMA])["fields"]]


def _type(kind: Any) -> str:
    text = _text(kind)
    try:
        return parse_type(text)
    except FieldError:
        return text


def _text(kind: Any) -> str:
    """Spark's JSON of a type as DDL."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_text(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_text(kind['keyType'])},{_text(kind['valueType'])}>"
    if kind["type"] == "struct":
        members = (f"{one['name']}:{_text(one['type'])}" for one in kind["fields"])
        return f"struct<{','.join(members)}>"
    return str(kind["type"])
