"""Reads the log of a Delta table: the files that its versions added. Independent of any spout.

Which rows of a Delta table's file count, where deletion vectors say that some do not. As text: splits are JSON.

Where the columns of a Delta table are in its files, if it maps them to other names or to ids (column mapping).
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from base64 import b85decode, b85encode
from collections.abc import Container, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceChangedError,
    SourceUnavailableError,
    error_text,
)
from airflow_trident.io.connections import require_extra
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.spouts.table_log import SNAPSHOTS, AddedFile, Span, TableLog, TableVersion
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

_FEATURE = "deletionVectors"


def may_have_vectors(table: Any) -> bool:
    """Only tables with the feature can, so that others cost nothing."""
    return _FEATURE in (table.protocol().reader_features or ())


def kept_rows(table: Any, paths: Container[str]) -> dict[str, str]:
    """Path -> which rows of that file count. Without the files of which all do.

    It reads every deletion vector of this version of the table: deltalake has no way to read some.

    :param table: the `deltalake.DeltaTable`.
    :param paths: all files of this version, relative to the table.
    :raises ConfigurationError: a vector is of a file that is none of these.
    """
    import pyarrow as pa

    above, kept_by_path = table.table_uri.rstrip("/") + "/", dict[str, str]()
    for batch in pa.table(table.deletion_vectors()).to_batches():
        for uri, kept in zip(batch.column("filepath"), batch.column("selection_vector"), strict=True):
            path = unquote(uri.as_py().removeprefix(above))
            if path not in paths:
                raise ConfigurationError(
                    f"the Delta table {table.table_uri!r} has a deletion vector of {path!r}, which is no file of it",
                    "Purge the vectors (REORG TABLE ... APPLY (PURGE)).",
                )
            kept_by_path[path] = _as_text(kept.values)
    return kept_by_path


def of_batch(text: str, batch: pa.RecordBatch, at: int) -> pa.RecordBatch:
    """The rows of a batch that count.

    :param text: which rows of the file count; a row behind its end does.
    :param at: the place of the batch's first row in the file.
    """
    import pyarrow as pa

    size, _, bits = text.partition(":")
    kept = pa.BooleanArray.from_buffers(
        pa.bool_(), int(size), [None, pa.py_buffer(zlib.decompress(b85decode(bits)))]
    ).slice(at, batch.num_rows)
    rest = pa.array([True] * (batch.num_rows - len(kept)), pa.bool_())
    return batch.filter(pa.concat_arrays([kept, rest]))


def _as_text(kept: pa.BooleanArray) -> str:
    import pyarrow as pa

    whole = pa.concat_arrays([kept])  # begins at its buffer's first bit
    return f"{len(whole)}:{b85encode(zlib.compress(whole.buffers()[1].to_pybytes())).decode()}"


_MODE = "delta.columnMapping.mode"
_NAME = "delta.columnMapping.physicalName"
_ID = "delta.columnMapping.id"
_FIELD_ID = b"PARQUET:field_id"

Places = Mapping[str, str | int]
"""Column of the table -> its name, or its field id, in the files; empty: they have the table's names."""


def places_of(table: Any) -> dict[str, str | int]:
    """As Delta's protocol says for readers: by name in mode `name`, by field id in mode `id`.

    :param table: the `deltalake.DeltaTable`.
    :raises DamagedInputError: it has a mode, but not the place of each column.
    """
    mode = table.metadata().configuration.get(_MODE, "none")
    if mode == "none":
        return {}
    key = _ID if mode == "id" else _NAME
    fields = json.loads(table.schema().to_json())["fields"]
    if lacking := [field["name"] for field in fields if key not in field["metadata"]]:
        raise DamagedInputError(
            f"the Delta table {table.table_uri!r} has {_MODE} = {mode}, but its column {lacking[0]!r} has no {key}",
            "Mend that in the program that wrote it, or use another table.",
        )
    return {field["name"]: field["metadata"][key] for field in fields}


def names_in_log(table: Any) -> dict[str, str]:
    """Name of a column in the log (values of partitions) -> in the table."""
    fields = json.loads(table.schema().to_json())["fields"]
    return {field["metadata"].get(_NAME, field["name"]): field["name"] for field in fields}


def names_in_file(places: Places, schema: Any) -> dict[str, str]:
    """Column of the table -> name in this file, without those that the file lacks.

    :param schema: the `pyarrow.Schema` of the file.
    """
    by_id = {int((field.metadata or {}).get(_FIELD_ID, -1)): field.name for field in schema}
    places_in_file = {name: by_id.get(place) if isinstance(place, int) else place for name, place in places.items()}
    return {name: place for name, place in places_in_file.items() if place is not None and place in schema.names}


_ELSEWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|/|\.\./")
"""The beginning of a URI, of an absolute path, or of one that leaves the table."""
_GONE = "not found"
"""In what delta-rs says of a file that is not there, in folders and in stores."""


@dataclass(frozen=True)
class _Snapshot:
    """`kept_rows`: see :meth:`DeltaLog.kept_rows`."""

    version: TableVersion
    kept_rows: Mapping[str, str]


class DeltaLog(TableLog):
    """The log of the table at `place`, opened once; `head` is the newest version at that time.

    :param row_schema: the columns that will be read.
    :raises ConfigurationError: they cannot be.
    """

    def __init__(self, place: DeltaPlace, row_schema: Schema) -> None:
        self.place = place
        self.what = f"the Delta table {place.where!r}"
        errors: Any = require_extra("deltalake.exceptions", EXTRA)
        with place.errors(SourceUnavailableError):
            try:
                self.table: Any = place.table()
            except errors.TableNotFoundError as error:
                raise SourceUnavailableError(
                    f"there is no Delta table at {place.where!r}", "Make it, or correct the spout's path."
                ) from error
            self._files: pafs.FileSystem = place.files()
            self.head = int(self.table.version())
            self.table_id = str(self.table.metadata().id)
            self.places = places_of(self.table)
            """Where its columns are in its files."""
            self._require_readable(row_schema)
        self._opened = {self.head: self.table}
        self._marks = dict[int, str]()

    def _require_readable(self, row_schema: Schema) -> None:
        if odd := [field.name for field in row_schema if self.places and "struct<" in field.type]:
            raise ConfigurationError(
                f"{self.what} maps its columns to other names, and in those of type struct its members too "
                f"({odd[0]!r}), which is not read here",
                "Leave the column out of the spout's fields, or copy it into a table without column mapping.",
            )
        # Its log has texts, and writers do not agree on the text of bytes.
        wanted = set(self.table.metadata().partition_columns) & set(names_of(row_schema))
        types = {column.name: getattr(column.type, "type", "") for column in self.table.schema().fields}
        if odd := sorted(name for name in wanted if types.get(name) == "binary"):
            raise ConfigurationError(
                f"{self.what} is partitioned by {odd[0]!r}: values of type binary are not read there",
                "Leave the column out of the spout's fields, or partition the table by texts.",
            )

    def columns(self) -> set[str]:
        with self.place.errors(SourceUnavailableError):
            return set(_paths(self.table.schema()))

    def numbers(self, first: int) -> Iterator[tuple[int, int | None]]:
        return ((number, None) for number in range(first, self.head + 1))

    def change(self, number: int, version_id: int | None) -> TableVersion:
        try:
            actions = [json.loads(line) for line in self._content(number).splitlines() if line.strip()]
            return self._version(number, actions)
        except FileNotFoundError as error:
            raise SourceChangedError(
                f"the log of the Delta table {self.place.where!r} no longer has version {number}",
                "Keep it longer (delta.logRetentionDuration), or give the stream a new name and begin anew.",
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedInputError(
                f"version {number} in the log of the Delta table {self.place.where!r} cannot be read "
                f"({error_text(error)})",
                "Restore it from a copy.",
            ) from error

    def _version(self, number: int, actions: list[Any]) -> TableVersion:
        adds = [action["add"] for action in actions if action.get("add") and action["add"]["dataChange"]]
        removes = any(action["remove"]["dataChange"] for action in actions if action.get("remove"))
        removes = removes or any(add.get("deletionVector") for add in adds)
        operation = next(
            (action["commitInfo"].get("operation", "") for action in actions if action.get("commitInfo")), ""
        )
        # It may only add files: of an older version, whose rows were read then.
        removes = removes or (operation == "RESTORE" and bool(adds))
        return TableVersion(
            number=number, added=tuple(self._added(add) for add in adds), removes=removes, operation=str(operation)
        )

    def _content(self, number: int) -> bytes:
        name = f"_delta_log/{number:020}.json"
        with self.place.errors(SourceUnavailableError, may_miss=True), self._files.open_input_file(name) as file:
            content: bytes = file.read()
        if content.lstrip().startswith(b"{"):  # else something answers that is not the table's storage
            self._marks[number] = hashlib.blake2b(content, digest_size=8).hexdigest()
        return content

    def mark_of(self, number: int) -> str | None:
        """Of the content of its commit, which names its time and its files."""
        if number not in self._marks:
            with suppress(FileNotFoundError):  # cleaned up, or none was written yet
                self._content(number)
        return self._marks.get(number)

    def whole(self, number: int, version_id: int | None) -> TableVersion:
        return self._snapshot(number).version

    def _snapshot(self, number: int) -> _Snapshot:
        """:raises SourceChangedError: that version can no longer be put together, or a deletion vector is gone."""
        names = tuple(sorted(self._names_in_log.items()))
        key = self.what, self.table_id, number, self.mark_of(number), names
        snapshot: _Snapshot = SNAPSHOTS.get(key, partial(self._put_together, number))
        return snapshot

    def _put_together(self, number: int) -> _Snapshot:
        import pyarrow as pa

        with self.place.errors(SourceUnavailableError):
            table = self._at(number)
            rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
            then = {name: old_name for old_name, name in names_in_log(table).items()}
        added = [
            AddedFile(
                path=self._inside(row["path"]),
                bytes=int(row["size_bytes"]),
                rows=row.get("num_records"),
                partition={
                    self._now(then[name.removeprefix("partition.")]): value
                    for name, value in row.items()
                    if name.startswith("partition.")
                },
            )
            for row in rows
        ]
        files = tuple(sorted(added, key=lambda file: file.path))
        version = TableVersion(number=number, added=files, removes=False, operation="snapshot")
        return _Snapshot(version, self._kept_rows(number, table, {file.path for file in files}))

    def partition_value(self, file: AddedFile, column: str) -> str | None:
        value = file.partition[column]
        return None if value is None else str(value)

    def kept_rows(self, span: Span) -> Mapping[str, str]:
        """Path -> which rows of that file count, of files of the snapshot in which others are deleted.

        Other versions that add files with deletion vectors change rows, and are no part of a batch.

        :raises SourceChangedError: that version can no longer be put together, or a vector is gone.
        """
        number = span.snapshot
        return {} if number is None or span.begin[0] != number else self._snapshot(number).kept_rows

    def _kept_rows(self, number: int, table: Any, paths: AbstractSet[str]) -> dict[str, str]:
        with self.place.errors(SourceUnavailableError):
            if not may_have_vectors(table):
                return {}
            try:
                return kept_rows(table, paths)
            except Exception as error:
                if _GONE not in str(error).lower() or self.place.refusal(error):
                    raise
                raise SourceChangedError(
                    f"a deletion vector of {self.what} as of version {number} is gone ({error})",
                    "It was vacuumed too early: keep removed files as long as transactions may be replayed.",
                ) from error

    def _at(self, number: int) -> Any:
        """:raises SourceChangedError: that version can no longer be put together."""
        try:
            if number not in self._opened:
                self._opened[number] = self.place.table(number)
            return self._opened[number]
        except Exception as error:
            if number > self.head or self.place.refusal(error) or not _is_cleaned_up(error):
                raise
            raise SourceChangedError(
                f"the Delta table {self.place.where!r} as of version {number} cannot be put together any more",
                "Keep its log longer (delta.logRetentionDuration), or give the stream a new name and begin anew.",
            ) from error

    def _added(self, add: dict[str, Any]) -> AddedFile:
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
        if rows is not None:
            rows = int(rows)
        values = add.get("partitionValues") or {}
        partition = {self._now(name): value for name, value in values.items()}
        return AddedFile(path=self._inside(add["path"]), bytes=int(add["size"]), rows=rows, partition=partition)

    def _inside(self, path: str) -> str:
        """:raises ConfigurationError: the file is not below the table."""
        if _ELSEWHERE.match(path):
            raise ConfigurationError(
                f"the Delta table {self.place.where!r} has files elsewhere (a shallow clone), such as {path!r}, which "
                "are not read here",
                "Read the table that was cloned.",
            )
        return unquote(path)

    def _now(self, name_in_log: str) -> str:
        """The name that a column has now; a column that was dropped has none any more."""
        return self._names_in_log.get(name_in_log, name_in_log)

    @cached_property
    def _names_in_log(self) -> dict[str, str]:
        with self.place.errors(SourceUnavailableError):
            return names_in_log(self.table)

    def require_same(self, span: Span) -> None:
        if self.table_id != span.table_id:
            raise SourceChangedError(
                f"{self.what} was made anew since the transaction was recorded",
                "Restore the old one, or give the stream a new name and begin anew.",
            )
        restored = "It was restored from an old copy: give the stream a new name and begin anew."
        if span.last > self.head:
            raise SourceChangedError(
                f"{self.what} ends at version {self.head}, before what the transaction recorded", restored
            )
        now = None if span.mark is None else self.mark_of(span.last)
        if now not in (None, span.mark):
            raise SourceChangedError(f"{self.what} has another version {span.last} than the recorded one", restored)


def _is_cleaned_up(error: Exception) -> bool:
    """Does it mean that the log lacks a version? Not if the storage did not answer."""
    if isinstance(error, FileNotFoundError) or _GONE in str(error).lower():
        return True
    return not isinstance(error, OSError) and "rror performing" not in str(error)


def _paths(kind: Any) -> Iterator[str]:
    """The parts of a type of delta-rs, as :func:`airflow_trident.types.paths_of` calls them."""
    parts = {field.name: field.type for field in getattr(kind, "fields", ())}
    parts |= {
        name: getattr(kind, f"{name}_type") for name in ("element", "key", "value") if hasattr(kind, f"{name}_type")
    }
    for name, part in parts.items():
        yield name
        yield from (f"{name}.{path}" for path in _paths(part))
