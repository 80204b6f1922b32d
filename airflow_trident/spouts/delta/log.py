"""Reads the log of a Delta table: the files that its versions added. Independent of any spout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_trident.errors import ConfigurationError, DamagedInputError, SourceChangedError, SourceUnavailableError
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.spouts.table_log import AddedFile, Span, TableLog, TableVersion

if TYPE_CHECKING:
    import pyarrow.fs as pafs


class DeltaLog(TableLog):
    """The log of the table at `place`, opened once; `head` is the newest version at that time."""

    def __init__(self, place: DeltaPlace) -> None:
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
        self._require_readable()

    def _require_readable(self) -> None:
        settings = self.table.metadata().configuration
        if settings.get("delta.columnMapping.mode", "none") != "none":
            raise ConfigurationError(
                f"the Delta table {self.place.where!r} maps its columns to other names, which is not read here",
                "Copy it into a table without column mapping.",
            )

    def columns(self) -> set[str]:
        return {each.name for each in self.table.schema().fields}

    def version(self, number: int) -> TableVersion:
        """
        :raises SourceChangedError: the log of that version was cleaned up.
        """
        with self.place.errors(SourceUnavailableError):
            try:
                with self._files.open_input_file(f"_delta_log/{number:020}.json") as file:
                    lines = [json.loads(line) for line in file.read().splitlines() if line.strip()]
            except FileNotFoundError as error:
                raise SourceChangedError(
                    f"the log of the Delta table {self.place.where!r} no longer has version {number}",
                    "Keep it longer (delta.logRetentionDuration), or give the stream a new name and begin anew.",
                ) from error
            except ValueError as error:
                raise DamagedInputError(
                    f"version {number} in the log of the Delta table {self.place.where!r} cannot be read ({error})",
                    "Restore it from a copy.",
                ) from error
        adds = [line["add"] for line in lines if "add" in line and line["add"]["dataChange"]]
        removes = any(line["remove"]["dataChange"] for line in lines if "remove" in line)
        operation = next((line["commitInfo"].get("operation", "") for line in lines if "commitInfo" in line), "")
        return TableVersion(
            number=number, added=tuple(self._added(add) for add in adds), removes=removes, operation=str(operation)
        )

    def snapshot(self, number: int) -> TableVersion:
        """All files that the table had at a version, as if that version had added them.

        :raises SourceChangedError: that version can no longer be put together.
        """
        import pyarrow as pa

        with self.place.errors(SourceUnavailableError):
            try:
                table = self.table if number == self.head else self.place.table(number)
            except Exception as error:
                if number > self.head:
                    raise
                raise SourceChangedError(
                    f"the Delta table {self.place.where!r} as of version {number} cannot be put together any more",
                    "Keep its log longer (delta.logRetentionDuration), or give the stream a new name and begin anew.",
                ) from error
            if any(batch.num_rows for batch in pa.table(table.deletion_vectors()).to_batches()):
                raise self._deletion_vectors()
            rows = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        added = [
            AddedFile(
                path=unquote(row["path"]),
                bytes=int(row["size_bytes"]),
                rows=row.get("num_records"),
                partition={
                    name.removeprefix("partition."): value
                    for name, value in row.items()
                    if name.startswith("partition.")
                },
            )
            for row in rows
        ]
        return TableVersion(
            number=number, added=tuple(sorted(added, key=lambda file: file.path)), removes=False, operation="snapshot"
        )

    def _added(self, add: dict[str, Any]) -> AddedFile:
        if add.get("deletionVector"):
            raise self._deletion_vectors()
        if "://" in add["path"]:
            raise ConfigurationError(
                f"the Delta table {self.place.where!r} has files elsewhere (a shallow clone), which are not read here",
                "Read the table that was cloned.",
            )
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
        return AddedFile(
            path=unquote(add["path"]), bytes=int(add["size"]), rows=rows, partition=add.get("partitionValues") or {}
        )

    def _deletion_vectors(self) -> ConfigurationError:
        return ConfigurationError(
            f"the Delta table {self.place.where!r} has deletion vectors, which are not read here",
            "Purge them (REORG TABLE ... APPLY (PURGE)), or turn them off.",
        )

    def require_same(self, span: Span) -> None:
        if self.table_id != span.table_id:
            raise SourceChangedError(
                f"{self.what} was made anew since the transaction was recorded",
                "Restore the old one, or give the stream a new name and begin anew.",
            )
        if span.end[0] > self.head + 1:
            raise SourceChangedError(
                f"{self.what} ends at version {self.head}, before what the transaction recorded",
                "It was restored from an old copy: give the stream a new name and begin anew.",
            )

    def versions(self, first: int, snapshot: int | None) -> Iterator[TableVersion]:
        for number in range(first, self.head + 1):
            yield self.snapshot(number) if number == snapshot else self.version(number)
