"""Exactly-once files: one per transaction; it appears in the folder whole or not at all.

Records in the folder's ``_trident``, ``<topology>-<state>.<19 digits>.json``, say what is applied; the highest one
counts. The next record is published by put-if-absent, so a committer that decided on an outdated record cannot write
its own (T3): nothing is locked, and nobody waits for a stopped committer. A record also names the file that is to
appear and the file that is to be removed; after a crash the next committer does this first. Spark, pyarrow and
`FileSpout` ignore names that begin with ``_``. The folder may be any :class:`~airflow_trident.io.place.Place`.
"""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StagedBatch, StateFactory, StateSpec, Verdict
from airflow_trident.errors import (
    ConfigurationError,
    DefinitionChangedError,
    StoreUnavailableError,
)
from airflow_trident.io.arrow import arrow_schema, table_to_rows
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.object_stores import require_place
from airflow_trident.io.parquet import write_parquet_pieces
from airflow_trident.io.paths import AnyPath, stays_inside
from airflow_trident.io.place import Place
from airflow_trident.io.places import place_at
from airflow_trident.operations.evaluate import microseconds_of
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import file_names
from airflow_trident.states.core.marker import AdmittingState, admit
from airflow_trident.types import ddl, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

META = "_trident"
"""Holds records and hidden files; the folder itself holds published files."""
_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "json": ".json"}
_FORMAT = Format(
    noun="the record",
    version=1,
    key="version",
    cure="Restore the folder from a copy. If the file is empty or cut off, on a file system without hard links, its "
    "committer died while it wrote: remove it when nobody commits.",
)
KEEP = 10
"""How many records before the last one stay, for people; older ones are removed."""
_NAMES = file_names("-", beside=len(f".{'0' * 19}.json.{'0' * 32}.tmp"))
TRIES = 100
"""A committer decides anew only if another one has committed."""


@dataclass(frozen=True)
class FileSink(StateFactory):
    """A folder with a file per transaction: ``<topology>-<state>-<txid 19 digits>-<attempt>.parquet``.

    :param path: the folder; may begin with ``~``; made if missing. All committers must share its file system, on which
        a hard link to an existing name must fail. Or ``s3://[connection@]bucket/folder`` or
        ``abfs://[connection@]container/folder`` or ``gs://[connection@]bucket/folder``, as a text or as Airflow's
        ObjectStoragePath; or ``hdfs://[connection@]/folder``.
    :param format: ``parquet``, ``csv`` (with a line of names) or ``json`` (one object per line).
    """

    path: AnyPath
    format: str = "parquet"

    conn_id: str = field(default="", init=False, repr=False, compare=False)
    """Of the path: a driver elsewhere gets this connection."""

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, appends=True)

    def __post_init__(self) -> None:
        path = require_place("FileSink", self.path)
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "conn_id", self._place().conn_id)
        if self.format not in _SUFFIXES:
            raise ConfigurationError(f"FileSink with format={self.format!r}", f"Use one of {', '.join(_SUFFIXES)}.")

    def validate(self, spec: StateSpec) -> None:
        if self.format == "csv" and any(is_nested(field.type) or field.type == "binary" for field in spec.staged):
            raise ConfigurationError(
                f"FileSink {spec.name!r} cannot write nested values and bytes as csv",
                "Use parquet, or convert the fields.",
            )
        if self.format == "json" and any("binary" in field.type for field in spec.staged):
            raise ConfigurationError(
                f"FileSink {spec.name!r} cannot write bytes as json", "Use parquet, or convert the field."
            )

    def make_state(self, spec: StateSpec) -> OpenFileSink:
        self.validate(spec)
        return OpenFileSink(self._place(), self.format, spec)

    def _place(self) -> Place:
        return place_at(str(self.path), "the folder of the sink", private=False)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return file_dataset(str(self.path))

    def describe(self) -> str:
        return f"FileSink({self.path}, {self.format})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The sink's own file. `highest`: the file of the marker's highest txid. Still to do: `publish`, a file's hidden
    and final name, and `remove`, a file to delete."""

    marker: Marker | None = None
    highest: str | None = None
    publish: tuple[str, str] | None = None
    remove: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The record in stored form. `of`: topology and state."""

    of: tuple[str, str]
    fields: str
    marker: dict[str, Any]
    highest: str | None
    publish: tuple[str, str] | None
    remove: str | None


class OpenFileSink(AdmittingState):
    """See :class:`FileSink`."""

    def __init__(self, files: Place, format: str, spec: StateSpec) -> None:
        self.files, self._notes = files, files.below(META)
        self._format = format
        self._spec = spec
        self._name = _NAMES.of(spec.topology, spec.name)
        self._record = re.compile(re.escape(self._name) + r"\.(\d{19})\.json\Z")
        self._unfinished = re.compile(re.escape(self._name) + r"\.(\d{19})\.json\.[^.]*\.tmp\Z")
        self._hidden = re.compile(rf"\.{re.escape(self._name)}-(\d{{19}})-[0-9a-f]{{32}}\Z")
        self._notes.check()
        self._seen_version = 0
        self._read()

    def marker(self) -> Marker | None:
        return self._read()[1].marker

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        return self.apply_staged(ticket, StagedBatch.of(self._spec.staged, batch))

    def apply_staged(self, ticket: CommitTicket, batch: StagedBatch) -> Applied:
        """Piece by piece; each try reads the batch anew."""
        for _ in range(TRIES):
            version, previous = self._read()
            self._finish(previous)
            applied = self._apply(ticket, batch, version + 1, previous)
            if applied is not None:
                return applied
        raise StoreUnavailableError(
            f"sink {self._spec.name!r} in {self.files.where!r} was written {TRIES} times by others while transaction "
            f"{ticket.txid} was to be committed",
            "Find out who commits so much, and run the task again.",
        )

    def _apply(self, ticket: CommitTicket, batch: StagedBatch, version: int, previous: _Record) -> Applied | None:
        """None: another committer has published this version of the record."""
        spec = self._spec
        marker, verdict = admit(previous.marker, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
        if verdict is Verdict.SKIP:
            record = _Record(marker=marker, highest=previous.highest)
            return Applied.ALREADY if self._publish(version, record) else None
        publish = self._prepare(ticket, batch, version) if batch.num_rows else None
        late = ticket.txid < marker.high
        record = _Record(
            marker=marker,
            highest=previous.highest if late else (publish[1] if publish else None),
            publish=publish,
            remove=previous.highest if verdict is Verdict.REPLACE else None,
        )
        return Applied.APPLIED if self._publish(version, record) else None

    # ---- files -------------------------------------------------------------------------------------------------

    def _prepare(self, ticket: CommitTicket, batch: StagedBatch, version: int) -> tuple[str, str]:
        """Write the file under a hidden name. :returns: that name, and the final one."""
        hidden = f".{self._name}-{version:019d}-{uuid.uuid4().hex}"
        self._notes.put(hidden, lambda file: self._encode(batch, file))
        self._notes.sync()
        final = f"{self._name}-{ticket.txid:019d}-{ticket.attempt}{_SUFFIXES[self._format]}"
        return hidden, final

    def _encode(self, batch: StagedBatch, file: BinaryIO) -> None:
        schema = arrow_schema(self._spec.staged)
        pieces = (piece.cast(schema) for piece in batch.pieces())
        if self._format == "parquet":
            write_parquet_pieces(pieces, schema, file)
        elif self._format == "csv":
            import pyarrow.csv as pa_csv

            with pa_csv.CSVWriter(file, schema) as writer:
                for piece in pieces:
                    writer.write_batch(piece)
        else:
            has_maps = any("map<" in field.type for field in self._spec.staged)
            for row in chain.from_iterable(piece.to_pylist(maps_as_pydicts="strict") for piece in pieces):
                record = _with_text_keys(row) if has_maps else row
                file.write(json.dumps(record, default=_plain, ensure_ascii=False).encode() + b"\n")

    def _finish(self, record: _Record) -> None:
        """Do what the record says, unless it is done."""
        if record.remove is not None:
            self.files.delete([record.remove])
        if record.publish is not None:
            hidden, final = record.publish
            self.files.show(f"{META}/{hidden}", final)
        self.files.sync()

    def _clean(self, version: int) -> None:
        """Remove leftovers of this version and earlier ones: whatever no record names is never published."""
        limits = ((self._hidden, version), (self._record, version - KEEP), (self._unfinished, version - KEEP))
        self._notes.delete(
            [
                name
                for name in self._notes.names()
                if any(
                    (match := pattern.match(name)) and int(match[1]) <= last_version for pattern, last_version in limits
                )
            ]
        )

    # ---- the record --------------------------------------------------------------------------------------------

    def _publish(self, version: int, record: _Record) -> bool:
        """The atomic step and its consequences; False: another committer was first."""
        won = self._write(version, record)
        if won:
            self._finish(record)
            self._clean(version)
        elif record.publish is not None:
            self._notes.delete([record.publish[0]])
        return won

    def _write(self, version: int, record: _Record) -> bool:
        assert record.marker is not None
        # Files are applied one by one, so there is never a group.
        marker = {name: getattr(record.marker, name) for name in Marker.__slots__ if name != "group"}
        content = {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            "fields": ddl(self._spec.staged),
            "marker": marker,
            "highest": record.highest,
            "publish": record.publish,
            "remove": record.remove,
        }
        if not self._notes.put_once(self._record_name(version), json.dumps(content).encode()):
            return False
        self._seen_version = version
        # A very late committer may succeed after this version's record was removed; it then published an outdated
        # record. That takes KEEP versions: fewer are of others who have read this one since.
        return max(self._versions(), default=0) < version + KEEP

    def _record_name(self, version: int) -> str:
        return f"{self._name}.{version:019d}.json"

    def _versions(self) -> list[int]:
        return [int(match[1]) for match in map(self._record.match, self._notes.names()) if match]

    def _read(self) -> tuple[int, _Record]:
        """The last record, and its version."""
        version = max(self._versions(), default=0)
        while version:
            name, content = self._record_name(version), None
            with suppress(FileNotFoundError):
                content = self._notes.read(name)
            # Its name may have been removed since it was seen, and a very late committer may have taken it again.
            before, version = version, max(self._versions(), default=0)
            if version != before:
                continue
            if content is not None:
                self._seen_version = version
                return version, self._decode(content, self._notes.at(name))
        if self._seen_version:
            raise StoreUnavailableError(
                f"the records of sink {self._spec.name!r} in {self._notes.where!r} are gone, and were there before",
                "Bring the folder back as it was, and run the task again.",
            )
        return 0, _Record()

    def _decode(self, data: bytes, path: str) -> _Record:
        place = f"of sink {self._spec.name!r} ({path!r})"
        content = _FORMAT.build(_Content, _FORMAT.load(data, place), place)
        record = _Record(
            marker=_FORMAT.build(Marker, content.marker, place, needed=("holes",)),
            highest=content.highest,
            publish=content.publish,
            remove=content.remove,
        )
        names = (record.highest, record.remove, *(record.publish or ()))
        if not all(name is None or (stays_inside(name) and "/" not in name) for name in names):
            raise _FORMAT.damaged(place, f"it names files elsewhere ({names})")
        if content.of != (self._spec.topology, self._spec.name):
            topology, state = content.of
            raise ConfigurationError(
                f"sink {self._spec.name!r} of topology {self._spec.topology!r} would have the files {self._name}-* in "
                f"{self.files.where!r}, and these are of sink {state!r} of topology {topology!r}",
                "Give one of them another name, or another folder.",
            )
        if content.fields != ddl(self._spec.staged):
            raise DefinitionChangedError(
                f"sink {self._spec.name!r} in {self.files.where!r} has the fields ({content.fields}), and now it "
                f"should have ({ddl(self._spec.staged)})",
                "Give it a new name, or another folder.",
            )
        return record

    # ---- reading -----------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row of each file; parquet only."""
        import pyarrow.parquet as pq

        if self._format != "parquet":
            raise ConfigurationError(f"rows of {self._format} files are not read back", "Read the files themselves.")
        for name in sorted(self.files.names()):
            if re.match(re.escape(self._name) + r"-\d{19}-\d+\.", name):
                with self.files.open(name) as opened, pq.ParquetFile(opened) as file:
                    yield from (((), row) for row in table_to_rows(file.read()))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(f"sink {self._spec.name!r} cannot be queried by key", "Use a state with keys.")


def _plain(value: Any) -> str | int:
    """In JSON, dates, times and decimals are text; an interval is its microseconds."""
    if isinstance(value, datetime.timedelta):
        return microseconds_of(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _with_text_keys(value: Any) -> Any:
    """Maps as objects, whose names are texts."""
    if isinstance(value, list):
        return [_with_text_keys(part) for part in value]
    if not isinstance(value, dict):
        return value
    plain = (str, bool, int)  # the encoder makes texts of these
    return {key if isinstance(key, plain) else str(_plain(key)): _with_text_keys(part) for key, part in value.items()}
