"""A spout of a Delta table: what its versions add, file by file, in the order of its log. Transactional."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Coordinator, Emitter, Split, Spout
from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.delta import DeltaPlace
from airflow_trident.io.parquet import parquet_file
from airflow_trident.protocol.outcomes import Lag
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.spouts.checks import require_at_least
from airflow_trident.spouts.delta.log import AddedFile, DeltaLog, TableVersion
from airflow_trident.spouts.files.columns import fitted, from_text
from airflow_trident.types import FieldSpec, Json, Schema, names_of, parse_declared

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_FILES = 1000
DEFAULT_MAX_BYTES = 256 << 20
_ROWS_AT_ONCE = 65_536
_QUIET_VERSIONS = 100
"""So many versions without data are passed by a transaction without rows: the log forgets them some day."""


class Start(StrEnum):
    """Where the first transaction begins, if not at a version."""

    SNAPSHOT = "snapshot"
    """With all rows of the table as it is then."""
    LATEST = "latest"
    """With what is added later."""


class OnChange(StrEnum):
    """What to do about a version that changes or deletes rows instead of adding some."""

    ERROR = "error"
    SKIP = "skip"
    """Leave out all of that version, also what it adds; its number is in the metadata as `skipped`."""


@dataclass(frozen=True, kw_only=True)
class DeltaLimits:
    """Of one batch; a single larger file is a batch by itself. Rows are those that the log tells."""

    max_files: int
    max_bytes: int
    max_rows: int | None

    def allow(self, files: int, size_bytes: int, rows: int) -> bool:
        return files <= self.max_files and size_bytes <= self.max_bytes and rows <= (self.max_rows or rows)


class DeltaSpout(Spout):
    """Reads the rows that were appended to a Delta table, each in exactly one transaction.

    :param path: of the table: a folder, or a URI such as ``s3://bucket/table``.
    :param fields: the columns with their types; one that a file lacks is null.
    :param start: ``snapshot``, ``latest``, or the number of a version: where the first transaction begins.
    :param changes: ``error`` or ``skip``, for versions that change or delete rows.
    :param max_files, max_bytes, max_rows: of one batch; a single larger file is a batch by itself.
    :param conn_id: an Airflow connection (``aws``, or one whose extras are storage options of delta-rs).
    :param storage_options: over those of the connection.
    :raises ConfigurationError: an argument is wrong.
    """

    kind = SpoutKind.TRANSACTIONAL

    def __init__(
        self,
        path: str,
        *,
        fields: FieldSpec,
        start: Start | str | int = Start.SNAPSHOT,
        changes: OnChange | str = OnChange.ERROR,
        max_files: int = DEFAULT_MAX_FILES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        max_rows: int | None = None,
        conn_id: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        require_at_least(1, "DeltaSpout", max_files=max_files, max_bytes=max_bytes, max_rows=max_rows)
        if start not in tuple(Start) and not (isinstance(start, int) and start >= 0):
            raise ConfigurationError(
                f"DeltaSpout with start={start!r}", "Use snapshot, latest, or the number of a version."
            )
        if changes not in tuple(OnChange):
            raise ConfigurationError(f"DeltaSpout with changes={changes!r}", "Use error or skip.")
        self._place = DeltaPlace(uri=path, conn_id=conn_id, options=storage_options or {})
        self._schema = parse_declared(fields, [])
        self._start: Start | int = start if isinstance(start, int) else Start(start)
        self._on_change = OnChange(changes)
        self._limits = DeltaLimits(max_files=max_files, max_bytes=max_bytes, max_rows=max_rows)

    @property
    def schema(self) -> Schema:
        return self._schema

    def coordinator(self) -> DeltaCoordinator:
        return DeltaCoordinator(self._place, self._schema, self._start, self._on_change, self._limits)

    def emitter(self) -> DeltaEmitter:
        return DeltaEmitter(self._place.resolved(), self._schema)

    def lineage_datasets(self, metadata: Json) -> tuple[Dataset, ...]:
        return (file_dataset(self._place.uri),)

    def describe(self) -> str:
        return f"DeltaSpout({self._place.uri})"

    def __getstate__(self) -> dict[str, Any]:
        """Where this is sent to, nobody may know the connection."""
        return {**self.__dict__, "_place": self._place.resolved(required=False)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Decoded metadata: files from `begin` up to `end`, each a version and a number in it; `end` is not in it.

    `snapshot`: the version that stands for all files of the table as it was then. `skipped`: versions in between that
    were left out.
    """

    table_id: str
    begin: tuple[int, int]
    end: tuple[int, int]
    snapshot: int | None = None
    skipped: tuple[int, ...] = ()

    def to_json(self) -> Json:
        return {
            "table": self.table_id,
            "from": list(self.begin),
            "to": list(self.end),
            "snapshot": self.snapshot,
            "skipped": list(self.skipped),
        }

    @classmethod
    def of(cls, metadata: Json) -> Span:
        """
        :raises SourceChangedError: it is not metadata of a DeltaSpout.
        """
        try:
            assert isinstance(metadata, dict)
            known: Any = metadata
            (first, first_file), (last, last_file) = known["from"], known["to"]
            return cls(
                table_id=str(known["table"]),
                begin=(int(first), int(first_file)),
                end=(int(last), int(last_file)),
                snapshot=known["snapshot"],
                skipped=tuple(known["skipped"]),
            )
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise SourceChangedError(
                "the recorded metadata is not that of a DeltaSpout",
                "Another spout had this stream's name: give the stream a new name.",
            ) from error


@dataclass(frozen=True)
class DeltaCoordinator(Coordinator):
    """Metadata: see :class:`Span`."""

    place: DeltaPlace
    row_schema: Schema
    start: Start | int
    on_change: OnChange
    limits: DeltaLimits

    def is_ready(self, previous: Json) -> bool:
        return self.initialize_transaction(0, previous) is not None

    def initialize_transaction(self, txid: int, previous: Json) -> Json:
        """
        :raises SourceChangedError: the table was made anew, its log was cleaned up too early, or rows were changed.
        """
        before = None if previous is None else Span.of(previous)
        log = _open(self.place)
        if missing := [name for name in names_of(self.row_schema) if name not in log.columns()]:
            raise ConfigurationError(
                f"the Delta table {self.place.where!r} has no column {missing[0]!r}", "Correct the spout's fields."
            )
        if before is None:
            begin, snapshot = self._first(log)
        else:
            _require_same(log, before)
            begin, snapshot = before.end, before.snapshot
        span, files = self._next(log, begin, snapshot)
        quiet = span.end[0] - begin[0] >= _QUIET_VERSIONS
        pins = before is None and self.start is Start.LATEST
        return span.to_json() if files or quiet or pins else None

    def lag(self, position: Json) -> Lag | None:
        if position is None:
            return None
        before, unlimited = Span.of(position), DeltaLimits(max_files=sys.maxsize, max_bytes=sys.maxsize, max_rows=None)
        _, files = replace(self, limits=unlimited)._next(_open(self.place), before.end, before.snapshot)
        return {"files": files}

    def _first(self, log: DeltaLog) -> tuple[tuple[int, int], int | None]:
        if isinstance(self.start, int):
            return (self.start, 0), None
        return ((log.head, 0), log.head) if self.start is Start.SNAPSHOT else ((log.head + 1, 0), None)

    def _next(self, log: DeltaLog, begin: tuple[int, int], snapshot: int | None) -> tuple[Span, int]:
        """As many files as one batch may have, and how many those are."""
        files, size_bytes, rows = 0, 0, 0
        end, skipped = begin, list[int]()
        for version in log.versions(begin[0], snapshot):
            if self._skips(version):
                skipped.append(version.number)
                end = (version.number + 1, 0)
                continue
            first = begin[1] if version.number == begin[0] else 0
            for number, file in enumerate(version.added[first:], first):
                size_bytes, rows = size_bytes + file.bytes, rows + (file.rows or 0)
                if files and not self.limits.allow(files + 1, size_bytes, rows):
                    return self._span(log, begin, (version.number, number), snapshot, skipped), files
                files += 1
            end = (version.number + 1, 0)
        return self._span(log, begin, end, snapshot, skipped), files

    def _span(
        self, log: DeltaLog, begin: tuple[int, int], end: tuple[int, int], snapshot: int | None, skipped: list[int]
    ) -> Span:
        return Span(table_id=log.table_id, begin=begin, end=end, snapshot=snapshot, skipped=tuple(skipped))

    def _skips(self, version: TableVersion) -> bool:
        if version.removes and self.on_change is OnChange.ERROR:
            raise SourceChangedError(
                f"version {version.number} of the Delta table {self.place.where!r} ({version.operation}) changes or "
                "deletes rows, which were read or will be",
                'Nothing was begun. changes="skip" leaves such versions out.',
            )
        return version.removes


@dataclass(frozen=True)
class DeltaEmitter(Emitter):
    """One split per file."""

    place: DeltaPlace
    row_schema: Schema

    def splits(self, metadata: Json) -> list[Split]:
        span = Span.of(metadata)
        if span.begin == span.end:
            return []
        log = _open(self.place)
        _require_same(log, span)
        bodies: list[Json] = []
        for version in log.versions(span.begin[0], span.snapshot):
            if version.number > span.end[0] or (version.number, 0) == span.end:
                break
            if version.number in span.skipped:
                continue
            first = span.begin[1] if version.number == span.begin[0] else 0
            last = span.end[1] if version.number == span.end[0] else len(version.added)
            bodies.extend(_body(file) for file in version.added[first:last])
        return [Split(index, body) for index, body in enumerate(bodies)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        body: Any = split.body
        path, rows = body["path"], 0
        with self.place.errors(SourceUnavailableError):
            try:
                with self.place.files().open_input_file(path) as file:
                    parquet = parquet_file(file)
                    columns = [name for name in names_of(self.row_schema) if name in parquet.schema_arrow.names]
                    for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=columns):
                        rows += batch.num_rows
                        yield self._rows(batch, body["partition"])
            except FileNotFoundError as error:
                raise SourceChangedError(
                    f"the file {path!r} of the Delta table {self.place.where!r}, which the transaction recorded, is "
                    "gone",
                    "It was vacuumed too early: keep removed files as long as transactions may be replayed.",
                ) from error
            except pa.ArrowException as error:
                raise DamagedInputError(
                    f"the file {path!r} of the Delta table {self.place.where!r} cannot be read as "
                    f"({', '.join(map(str, self.row_schema))}): {error}",
                    "Correct the spout's fields, or restore the file.",
                ) from error
        if body["rows"] not in (None, rows):
            raise DamagedInputError(
                f"the file {path!r} of the Delta table {self.place.where!r} has {rows} rows and should have "
                f"{body['rows']}",
                "Restore it from a copy.",
            )

    def _rows(self, batch: pa.RecordBatch, partition: Mapping[str, Any]) -> pa.RecordBatch:
        import pyarrow as pa

        schema, columns = arrow_schema(self.row_schema), []
        for field in schema:
            if field.name in partition:
                value = partition[field.name]
                # Text in the log; an empty one is null.
                texts = pa.array([value or None] * batch.num_rows, pa.string())
                columns.append(pa.chunked_array([from_text(texts, field.type)]))
            elif field.name in batch.schema.names:
                columns.append(fitted(pa.chunked_array([batch.column(field.name)]), field.type))
            else:
                columns.append(pa.chunked_array([pa.nulls(batch.num_rows, field.type)]))
        arrays = [column.combine_chunks() for column in columns]
        arrays = [each.chunk(0) if isinstance(each, pa.ChunkedArray) else each for each in arrays]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _body(file: AddedFile) -> Json:
    partition: dict[str, Json] = {
        name: None if value is None else _as_text(value) for name, value in file.partition.items()
    }
    return {"path": file.path, "rows": file.rows, "partition": partition}


def _as_text(value: Any) -> str:
    """As the log writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _open(place: DeltaPlace) -> DeltaLog:
    return DeltaLog(place.resolved())


def _require_same(log: DeltaLog, span: Span) -> None:
    if log.table_id != span.table_id:
        raise SourceChangedError(
            f"the Delta table {log.place.where!r} was made anew since the transaction was recorded",
            "Restore the old one, or give the stream a new name and begin anew.",
        )
    if span.end[0] > log.head + 1:
        raise SourceChangedError(
            f"the Delta table {log.place.where!r} ends at version {log.head}, before what the transaction recorded",
            "It was restored from an old copy: give the stream a new name and begin anew.",
        )
