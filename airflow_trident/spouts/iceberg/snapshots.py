"""Reads the snapshots of an Iceberg table's main branch: the files that they added. The number of a version is the
snapshot's sequence number, which grows with each commit; after a rollback there are gaps."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA, IcebergPlace, read_whole
from airflow_trident.spouts.table_log import SNAPSHOTS, AddedFile, Span, TableLog, TableVersion

_VERSION = 2
_DAMAGE = (ValueError, TypeError, LookupError, EOFError, AssertionError, OverflowError, zlib.error)
"""What pyiceberg raises for a damaged manifest."""
_ANEW = "Give the stream a new name and begin anew."


class IcebergLog(TableLog):
    """The table at `place`, opened once.

    :param tip: id of the snapshot to take as the newest one; None: the newest of main.
    """

    has_ids = True

    def __init__(self, place: IcebergPlace, tip: int | None = None) -> None:
        self.what = f"the Iceberg table {place.name!r}"
        self._place = place
        self.table = _load(place, self.what)
        self._metadata = self.table.metadata
        self.table_id = str(self._metadata.table_uuid)
        if self._metadata.format_version != _VERSION:
            raise ConfigurationError(
                f"{self.what} has format version {self._metadata.format_version}, and version {_VERSION} is read here",
                "Upgrade it (property format-version)." if self._metadata.format_version < _VERSION else "Copy it.",
            )
        self._tip = tip
        self._chain = self._ancestors(tip)
        self.head = self._chain[-1].sequence_number if self._chain else 0
        self.head_id = self._chain[-1].snapshot_id if self._chain else None

    def columns(self) -> set[str]:
        return set(self._metadata.schema().column_names)

    def snapshot_at(self) -> int:
        self._require_only_one(self.head)
        return self.head

    def _require_only_one(self, number: int) -> None:
        """:raises ConfigurationError: several snapshots have the number, so it does not say which one is meant."""
        if sum(one.sequence_number == number for one in self._chain) > 1:
            raise ConfigurationError(
                f"several snapshots of {self.what} have the sequence number {number}: those from before it was "
                "upgraded from format version 1",
                "Make one commit after the upgrade, and begin at that snapshot or a later one.",
            )

    def start_at(self, start: int) -> tuple[int, int | None]:
        for snapshot in self._chain:
            if snapshot.snapshot_id == start:
                self._require_only_one(snapshot.sequence_number)
                return snapshot.sequence_number, snapshot.parent_snapshot_id
        raise ConfigurationError(
            f"the main branch of {self.what} has no snapshot {start}", "Begin at another one, or at snapshot or latest."
        )

    def numbers(self, first: int) -> Iterator[tuple[int, int | None]]:
        return ((one.sequence_number, one.snapshot_id) for one in self._chain if one.sequence_number >= first)

    def change(self, number: int, version_id: int | None) -> TableVersion:
        return self._change(self._metadata.snapshot_by_id(version_id))

    def whole(self, number: int, version_id: int | None) -> TableVersion:
        snapshot = self._metadata.snapshot_by_id(version_id)
        version: TableVersion = SNAPSHOTS.get((self.what, self.table_id, version_id), partial(self._whole, snapshot))
        return version

    def require_same(self, span: Span) -> None:
        """The main branch must come from the snapshot that was read last, with all snapshots after it."""
        if self.table_id != span.table_id:
            raise SourceChangedError(f"{self.what} was made anew since the transaction was recorded", _ANEW)
        assert span.ids is not None
        before, at = span.ids
        if self._tip is None:  # for the next batch
            self._require_unbroken(at, span.end)
        else:  # for a recorded batch
            self._require_unbroken(before, span.begin)

    def _require_unbroken(self, before: int | None, at: tuple[int, int]) -> None:
        """:raises SourceChangedError: a snapshot from `at` on is missing, or the one before them is not `before`."""
        number, in_its_middle = at[0], at[1] > 0
        if before is None:
            if (not self._chain and self._tip is None) or any(one.sequence_number == number for one in self._chain):
                return
        elif any(one.snapshot_id == before for one in self._chain):
            return
        elif self._chain and not in_its_middle and self._follows(self._chain[0], before, number):
            return  # `before` was expired, but no snapshot after it
        if before is not None and (not self._chain or self._chain[0].sequence_number < number):
            raise SourceChangedError(
                f"{self.what} was rolled back or replaced: its main branch does not come from snapshot {before}, up to "
                "which it was read",
                f"Set main to that snapshot or to one that comes from it; or rows may be there twice: {_ANEW.lower()}",
            )
        raise SourceChangedError(
            f"snapshots of {self.what} that are to be read were expired",
            "Keep them longer (history.expire.max-snapshot-age-ms), and files as long as transactions may be replayed. "
            f"What they added cannot be told any more. {_ANEW}",
        )

    def _follows(self, oldest: Any, before: int, number: int) -> bool:
        """Was `before` the parent of `oldest`? When a snapshot expires, some tools remove it as parent, too; then the
        sequence number decides."""
        return oldest.parent_snapshot_id == before or (
            oldest.parent_snapshot_id is None and oldest.sequence_number == number
        )

    def _ancestors(self, tip: int | None) -> list[Any]:
        """The snapshots from the oldest that is kept to `tip`."""
        at = self._metadata.current_snapshot() if tip is None else self._metadata.snapshot_by_id(tip)
        if at is None and tip is not None:
            raise SourceChangedError(
                f"{self.what} has no snapshot {tip} any more, which the transaction recorded",
                "Keep snapshots as long as transactions may be replayed (history.expire.max-snapshot-age-ms).",
            )
        found = []
        while at is not None:
            found.append(at)
            at = None if at.parent_snapshot_id is None else self._metadata.snapshot_by_id(at.parent_snapshot_id)
        return found[::-1]

    def _change(self, snapshot: Any) -> TableVersion:
        manifest: Any = require_extra("pyiceberg.manifest", EXTRA)
        statuses, contents = manifest.ManifestEntryStatus, manifest.ManifestContent
        added, removes = list[AddedFile](), False
        operation = str(snapshot.summary.operation.value) if snapshot.summary is not None else ""
        with self._place.errors(SourceUnavailableError), _kept(self.what):
            for each in snapshot.manifests(self.table.io):
                if each.added_snapshot_id != snapshot.snapshot_id or operation == "replace":
                    continue
                for entry in each.fetch_manifest_entry(self.table.io, discard_deleted=False):
                    if entry.snapshot_id != snapshot.snapshot_id or entry.status == statuses.EXISTING:
                        continue
                    if entry.status == statuses.ADDED and each.content == contents.DATA:
                        added.append(self._added(entry.data_file))
                    else:
                        removes = True
        return TableVersion(
            number=snapshot.sequence_number,
            added=tuple(sorted(added, key=lambda file: file.path)),
            removes=removes,
            operation=operation,
            id=snapshot.snapshot_id,
        )

    def _whole(self, snapshot: Any) -> TableVersion:
        """All files that the table had at a snapshot."""
        with self._place.errors(SourceUnavailableError), _kept(self.what), read_whole(self.what):
            tasks = list(self.table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
        if any(task.delete_files for task in tasks):
            raise ConfigurationError(
                f"{self.what} has deleted rows in files of their own, which are not read here",
                "Rewrite its data files (rewrite_data_files of Spark), or begin with start='latest'.",
            )
        return TableVersion(
            number=snapshot.sequence_number,
            added=tuple(sorted((self._added(task.file) for task in tasks), key=lambda file: file.path)),
            removes=False,
            operation="snapshot",
            id=snapshot.snapshot_id,
        )

    def _added(self, file: Any) -> AddedFile:
        if str(file.file_format.value) != "PARQUET":
            raise ConfigurationError(
                f"{self.what} has files of format {file.file_format.value}, and Parquet is read here",
                "Rewrite them as Parquet (write.format.default).",
            )
        return AddedFile(
            path=file.file_path,
            bytes=file.file_size_in_bytes,
            rows=file.record_count,
            partition={"spec": file.spec_id, "values": self._values(file)},
        )

    def _values(self, file: Any) -> list[Any]:
        """Partition values of a file: a column that all rows of a file share may be missing in the file."""
        transforms: Any = require_extra("pyiceberg.transforms", EXTRA)
        values = []
        for field, value in zip(self._metadata.specs()[file.spec_id].fields, file.partition._data, strict=True):
            same = isinstance(field.transform, transforms.IdentityTransform)
            if same and not isinstance(value, str | int | float | bool | None):
                raise ConfigurationError(
                    f"{self.what} is partitioned by {field.name}: values of type {type(value).__name__} are not read",
                    "Partition it by texts, whole numbers, booleans, dates or times.",
                )
            values.append(value if same else None)
        return values


@contextmanager
def _kept(what: str) -> Iterator[None]:
    """
    :raises SourceChangedError: a manifest is gone.
    :raises DamagedInputError: a manifest cannot be read.
    """
    with _sound(f"a manifest of {what}", _DAMAGE):
        try:
            yield
        except FileNotFoundError as error:
            raise SourceChangedError(
                f"a manifest of {what} is gone ({error})",
                "Files of snapshots that are to be read were removed: restore them from a copy. " + _ANEW,
            ) from error


@contextmanager
def _sound(what: str, damage: tuple[type[Exception], ...]) -> Iterator[None]:
    """:raises DamagedInputError: pyiceberg cannot make sense of a file of the table, and raises one of `damage`."""
    try:
        yield
    except damage as error:
        reason = (str(error).splitlines() or [""])[0]
        raise DamagedInputError(
            f"{what} cannot be read ({type(error).__name__}: {reason})", "Restore it from a copy."
        ) from error


def _load(place: IcebergPlace, what: str) -> Any:
    known: Any = require_extra("pyiceberg.exceptions", EXTRA)
    catalog, damage = place.open_catalog(), (UnicodeError, known.ValidationError)
    try:
        with place.errors(SourceUnavailableError), _sound(f"the metadata file of {what}", damage):
            return catalog.load_table(place.name)
    except SourceUnavailableError as error:
        if isinstance(error.__context__, known.NoSuchTableError):
            raise SourceUnavailableError(f"there is no {what[4:]}", "Make it, or correct the spout's name.") from None
        raise
    finally:
        place.close(catalog)
