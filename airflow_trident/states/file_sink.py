"""Exactly-once files: one per transaction, which appears in the folder whole or not at all.

What is applied is in ``_trident/<topology>-<state>.json`` of the folder, replaced in one step under a lock. It also
names the file that is to appear and the one that is to go, so that whoever comes after a crash finishes that first.
Names that begin with ``_`` are no data for Spark, pyarrow and `FileSpout`.
"""

from __future__ import annotations

import datetime
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_trident.arrow import arrow_schema, table_to_rows
from airflow_trident.errors import ConfigurationError, CorruptRecordError, DefinitionChangedError
from airflow_trident.local_paths import require_local_path
from airflow_trident.operations.conversions import microseconds_of
from airflow_trident.plan.states import Applied, Capabilities, Marker, State, StateFactory, StateSpec, Verdict
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.staging.files import make_folder, storage_error, sync_folder, write_durably
from airflow_trident.states.marker import admit
from airflow_trident.types import ddl, is_nested

if TYPE_CHECKING:
    import pyarrow as pa

META = "_trident"
_SUFFIXES = {"parquet": ".parquet", "csv": ".csv", "json": ".json"}
_VERSION = 1


@dataclass(frozen=True)
class FileSink(StateFactory):
    """A folder with a file per transaction: ``<topology>-<state>-<txid 19 digits>-<attempt>.parquet``.

    :param path: the folder; may begin with ``~``; made if missing. On a file system with working locks that all
        committers share.
    :param format: ``parquet``, ``csv`` (with a line of names) or ``json`` (one object per line).
    """

    path: str
    format: str = "parquet"

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, appends=True)

    def __post_init__(self) -> None:
        require_local_path("FileSink", self.path)
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
        return OpenFileSink(os.path.abspath(os.path.expanduser(self.path)), self.format, spec)

    def describe(self) -> str:
        return f"FileSink({self.path}, {self.format})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The content of the sink's own file. `highest`: the file of the marker's highest txid. To be finished: `publish`,
    the hidden and the final name of a file that appears, and `remove`, a file that goes."""

    marker: Marker | None = None
    highest: str | None = None
    publish: tuple[str, str] | None = None
    remove: str | None = None


class OpenFileSink(State):
    """See :class:`FileSink`."""

    def __init__(self, folder: str, format: str, spec: StateSpec) -> None:
        self.folder = folder
        self._format = format
        self._spec = spec
        self._name = f"{spec.topology}-{spec.name}"
        self._meta = os.path.join(folder, META)
        self._record_path = os.path.join(self._meta, f"{self._name}.json")
        self._hidden = f".{self._name}-"
        with self._errors():
            make_folder(self._meta)
        self._read()

    def marker(self) -> Marker | None:
        return self._read().marker

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        spec = self._spec
        with self._errors(), self._lock():
            known = self._read()
            self._finish(known)
            self._clean()
            marker, verdict = admit(known.marker, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is Verdict.SKIP:
                self._write(_Record(marker=marker, highest=known.highest))
                return Applied.ALREADY
            publish = self._prepare(ticket, batch) if batch.num_rows else None
            late = ticket.txid < marker.high
            record = _Record(
                marker=marker,
                highest=known.highest if late else (publish[1] if publish else None),
                publish=publish,
                remove=known.highest if verdict is Verdict.REPLACE else None,
            )
            self._write(record)
            self._finish(record)
        return Applied.APPLIED

    # ---- files -------------------------------------------------------------------------------------------------

    def _prepare(self, ticket: CommitTicket, batch: pa.Table) -> tuple[str, str]:
        """Write the file under a hidden name. :returns: that, and the name under which it will appear."""
        hidden = f"{self._hidden}{uuid.uuid4().hex}"
        write_durably(os.path.join(self._meta, hidden), lambda file: self._encode(batch, file))
        final = f"{self._name}-{ticket.txid:019d}-{ticket.attempt}{_SUFFIXES[self._format]}"
        return hidden, final

    def _encode(self, batch: pa.Table, file: BinaryIO) -> None:
        table = batch.cast(arrow_schema(self._spec.staged))
        if self._format == "parquet":
            import pyarrow.parquet as pq

            pq.write_table(table, file, compression="zstd")
        elif self._format == "csv":
            import pyarrow.csv as pa_csv

            pa_csv.write_csv(table, file)
        else:
            has_maps = any("map<" in field.type for field in self._spec.staged)
            for row in table.to_pylist(maps_as_pydicts="strict"):
                record = _with_text_keys(row) if has_maps else row
                file.write(json.dumps(record, default=_plain, ensure_ascii=False).encode() + b"\n")

    def _finish(self, record: _Record) -> None:
        """Do what the record says, unless it is done."""
        if record.remove is not None:
            _unlink(os.path.join(self.folder, record.remove))
        if record.publish is not None:
            hidden, final = record.publish
            with suppress(FileNotFoundError):  # then it is done
                os.replace(os.path.join(self._meta, hidden), os.path.join(self.folder, final))
        sync_folder(self.folder)

    def _clean(self) -> None:
        """Under the lock nobody else writes: unfinished files are of committers that died."""
        for name in os.listdir(self._meta):
            if name.startswith(self._hidden) or (name.startswith(f"{self._name}.json.") and name.endswith(".tmp")):
                _unlink(os.path.join(self._meta, name))

    # ---- the record --------------------------------------------------------------------------------------------

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """One committer at a time; the system lets go of the lock of a process that dies."""
        import fcntl

        with open(os.path.join(self._meta, f"{self._name}.lock"), "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _read(self) -> _Record:
        try:
            with self._errors(), open(self._record_path, encoding="utf-8") as file:
                content = json.load(file)
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']}")
            marker = content["marker"]
            marker["holes"] = tuple((int(first), int(last)) for first, last in marker["holes"])
            publish = content["publish"]
            record = _Record(
                marker=Marker(**marker),
                highest=content["highest"],
                publish=(str(publish[0]), str(publish[1])) if publish else None,
                remove=content["remove"],
            )
        except FileNotFoundError:
            return _Record()
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptRecordError(
                f"the record of sink {self._spec.name!r} cannot be read ({self._record_path!r}: {error})",
                "Restore the folder from a copy.",
            ) from error
        if content["fields"] != ddl(self._spec.staged):
            raise DefinitionChangedError(
                f"sink {self._spec.name!r} in {self.folder!r} has the fields ({content['fields']}), and now it should "
                f"have ({ddl(self._spec.staged)})",
                "Give it a new name, or another folder.",
            )
        return record

    def _write(self, record: _Record) -> None:
        assert record.marker is not None
        marker = {name: getattr(record.marker, name) for name in Marker.__slots__}
        content = {
            "version": _VERSION,
            "fields": ddl(self._spec.staged),
            "marker": marker,
            "highest": record.highest,
            "publish": record.publish,
            "remove": record.remove,
        }
        written = f"{self._record_path}.{uuid.uuid4().hex}.tmp"
        write_durably(written, lambda file: _write_all(file, json.dumps(content).encode()))
        os.replace(written, self._record_path)
        sync_folder(self._meta)

    # ---- reading -----------------------------------------------------------------------------------------------

    def items(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """((), row) for each row of each file; parquet only."""
        import pyarrow.parquet as pq

        if self._format != "parquet":
            raise ConfigurationError(f"rows of {self._format} files are not read back", "Read the files themselves.")
        for name in sorted(os.listdir(self.folder)):
            if name.startswith(f"{self._name}-"):
                with pq.ParquetFile(os.path.join(self.folder, name)) as file:
                    yield from (((), row) for row in table_to_rows(file.read()))

    def get_many(self, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | None]:
        """:raises ConfigurationError: rows of a sink have no keys."""
        raise ConfigurationError(f"sink {self._spec.name!r} cannot be queried by key", "Use a state with keys.")

    def close(self) -> None:
        """Nothing is held open."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, self.folder, "the folder of the sink") from error


def _plain(value: Any) -> str | int:
    """In JSON dates, times and decimals are text; an interval is its microseconds."""
    if isinstance(value, datetime.timedelta):
        return microseconds_of(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _with_text_keys(value: Any) -> Any:
    """Maps as objects, whose names are texts."""
    if isinstance(value, list):
        return [_with_text_keys(part) for part in value]
    if not isinstance(value, dict):
        return value
    plain = (str, bool, int)  # which the encoder makes texts of
    return {key if isinstance(key, plain) else str(_plain(key)): _with_text_keys(part) for key, part in value.items()}


def _write_all(file: BinaryIO, content: bytes) -> None:
    file.write(content)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
