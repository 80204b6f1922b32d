"""The output of a run of a script: complete, in Parquet, with the fields that the topology declares. Imports no
Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_trident.engine.spark.widening import widens
from airflow_trident.errors import FieldError, StagingError, TridentError, UserCodeError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.parquet import parquet_file
from airflow_trident.staging.files import sync_folder
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


def written_by(application: str, outputs: Mapping[str, tuple[Schema, str, str]]) -> dict[str, list[WrittenFile]]:
    """Output -> its files, all from the same run of the application.

    :param outputs: output -> its fields, the staging root, and its folder, which has a folder per run.
    :raises UserCodeError: an output is missing, incomplete, or not as declared.
    :raises StagingError: the application ran more than once, and it is unknown which run counts.
    """
    runs = {name: _runs(folder) for name, (_, _, folder) in outputs.items()}
    whole = [run for run in set().union(*runs.values()) if all(run in found for found in runs.values())]
    finished = [
        run
        for run in sorted(whole)
        if all(os.path.isfile(os.path.join(folder, run, SUCCESS)) for _, _, folder in outputs.values())
    ]
    if outputs and not finished:
        raise _nothing_whole(application, outputs, runs)
    if len(finished) > 1:
        raise StagingError(
            f"script {application!r} was run {len(finished)} times in one attempt ({', '.join(finished)})", _ONE_RUN
        )
    return {
        name: [_checked(application, name, schema, root, path) for path in _files(os.path.join(folder, finished[0]))]
        for name, (schema, root, folder) in outputs.items()
    }


def _runs(folder: str) -> set[str]:
    return {entry.name for entry in os.scandir(folder) if entry.is_dir()}


def _nothing_whole(
    application: str, outputs: Mapping[str, tuple[Schema, str, str]], runs: Mapping[str, set[str]]
) -> TridentError:
    for name, (_, _, folder) in outputs.items():
        finished = [run for run in runs[name] if os.path.exists(os.path.join(folder, run, SUCCESS))]
        if finished:
            continue
        said = "left no _SUCCESS in" if runs[name] else "wrote nothing to"
        return UserCodeError(
            f"script {application!r} ended without an error and {said} its output {name!r}",
            f'Write it once, as in frame.write.parquet(trident.output(spark, "{name}")), and switch on '
            "mapreduce.fileoutputcommitter.marksuccessfuljobs where it is off. Where the driver is on another machine, "
            "the staging folder must be one that both see.",
        )
    return StagingError(f"no run of script {application!r} wrote all of {', '.join(outputs)}", _ONE_RUN)


def _files(folder: str) -> Iterator[str]:
    """The files that Spark would read, made durable before their manifest."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.name.startswith(("_", ".")):
                continue
            if not entry.is_dir():
                with open(entry.path, "rb") as file:
                    os.fsync(file.fileno())
            yield entry.path
    for written in (folder, os.path.dirname(folder)):
        sync_folder(written)


def _checked(application: str, name: str, schema: Schema, root: str, path: str) -> WrittenFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    declared = f"declared is ({ddl(schema)})"
    if os.path.isdir(path):
        raise UserCodeError(
            f"script {application!r} wrote the folder {os.path.basename(path)!r} into its output {name!r}",
            "Write without partitionBy(): the columns stay in the rows, and the table that they go to has its own "
            "folders.",
        )
    try:
        with open(path, "rb") as file:
            footer = pq.read_metadata(file)
        found = _fields(footer)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise UserCodeError(
            f"script {application!r} wrote {os.path.basename(path)!r} into its output {name!r}, which is no Parquet "
            f"file of Spark ({error})",
            f'Write it by frame.write.parquet(trident.output(spark, "{name}")).',
        ) from error
    if any(footer.schema.column(place).physical_type == "INT96" for place in range(footer.num_columns)):
        raise UserCodeError(
            f"script {application!r} wrote timestamps of its output {name!r} as INT96, of which readers make what they "
            "like",
            "Leave spark.sql.parquet.outputTimestampType at TIMESTAMP_MICROS, which it was started with.",
        )
    given = ", ".join(f"{column} {kind}" for column, kind in found)
    missing = [one for one in names_of(schema) if one not in dict(found)]
    more = [column for column, _ in found if column not in names_of(schema)]
    differ = [one for one in schema if one.name in dict(found) and dict(found)[one.name] != one.type]
    others = [one.name for one in differ if not widens(dict(found)[one.name], one.type)]
    if missing or more or others:
        said = [
            *([f"without {', '.join(missing)}"] if missing else []),
            *([f"with {', '.join(more)}, which nobody declared"] if more else []),
            *([f"with other types of {', '.join(others)}"] if others else []),
        ]
        raise UserCodeError(
            f"script {application!r} wrote its output {name!r} {' and '.join(said)}: it has ({given}), {declared}",
            "Select and cast the declared columns in the script, or declare what it writes.",
        )
    if differ:
        path = _widened(path, schema)
    return WrittenFile(path=os.path.relpath(path, root), rows=footer.num_rows, bytes=os.path.getsize(path))


def _widened(path: str, schema: Schema) -> str:
    """The rows with the declared types in a file beside it, piece by piece: tables get files as they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = arrow_schema(schema)
    made = f"{path.removesuffix('.parquet')}-widened.parquet"
    with open(path, "rb") as source, open(made, "wb") as file:
        with pq.ParquetWriter(file, wanted, compression="zstd") as writer:
            for rows in parquet_file(source).iter_batches():
                columns = [rows.column(one.name).cast(one.type) for one in wanted]
                writer.write_batch(pa.record_batch(columns, schema=wanted))
        file.flush()
        os.fsync(file.fileno())
    sync_folder(os.path.dirname(made))
    return made


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
