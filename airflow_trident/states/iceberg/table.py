"""Appends rows to an Iceberg table that everybody may read and write: staged files become files of the table.

A commit is one request to the catalog, sent once. It adds a snapshot with the batch's files and sets the marker as a
property of the table. It requires that the main branch, the schema and the partitioning are still the ones that were
read. pyiceberg's own retry is not used: it repeats the same files on top of others' commits, which would add a batch
twice. A marker without a batch gets a snapshot without files: a property alone has no requirement, and would overwrite
that of a newer committer.

Properties outlive snapshots, so others may append, compact, delete, and expire snapshots. The marker names its
snapshot. Main must descend from it; otherwise somebody rolled the table back.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.staged_batch import StagedPart
from airflow_trident.contracts.state import Capabilities, Marker, StateFactory, StateSpec
from airflow_trident.errors import CorruptRecordError, OutcomeUnknownError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.datasets import Dataset
from airflow_trident.io.extras import require_extra
from airflow_trident.io.iceberg import EXTRA, IcebergPlace
from airflow_trident.io.object_stores import StoredObject
from airflow_trident.io.parquet import write_parquet
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.core.checks import application_of
from airflow_trident.states.iceberg.committed import CommittedIceberg, identity
from airflow_trident.states.iceberg.data_files import (
    described,
    judging_each_manifest_alone,
    local_path,
    old_files,
    rows_of,
)
from airflow_trident.states.iceberg.table_rules import CHANGES, require_iceberg_columns, require_table
from airflow_trident.states.tables.appending import AppendingState, Known, Tried
from airflow_trident.states.tables.new_files import NewFile, OldFile, bring, file_name, putting
from airflow_trident.states.tables.partitions import require_partitions
from airflow_trident.states.tables.rewriting import note_of
from airflow_trident.states.tables.version_race import Overtaken

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = "schema.name-mapping.default"
_FORMAT = Format(
    noun="the marker",
    version=1,
    key="version",
    cure="Set the property to what it was: the files that the metadata log of the table names have each value.",
)


@dataclass(frozen=True)
class IcebergTable(StateFactory):
    """An Iceberg table, made if missing; rows are appended unchanged.

    :param name: with its namespace: ``sales.big_orders``.
    :param catalog: its name in the configuration of pyiceberg (``.pyiceberg.yaml``, ``PYICEBERG_CATALOG__...``).
    :param conn_id: an Airflow connection (``iceberg``): its host is the catalog's `uri`, login and password its
        `credential`, its extras are properties.
    :param properties: of the catalog, over those of the connection: ``{"type": "sql", "uri": ..., "warehouse": ...}``.
    :param partition_by: its partition columns.
    """

    name: str
    catalog: str = "default"
    conn_id: str | None = None
    properties: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    partition_by: str | Sequence[str] = field(default=(), hash=False)

    capabilities = Capabilities(durable=True, atomic=True, appends=True, by_reference=True, rewrites=True)

    def __post_init__(self) -> None:
        self.place()  # refuses an invalid name

    def place(self) -> IcebergPlace:
        return IcebergPlace(
            name=self.name, catalog=self.catalog, conn_id=self.conn_id, properties=self.properties or {}
        )

    def validate(self, spec: StateSpec) -> None:
        require_iceberg_columns(spec)
        require_partitions(spec, self.describe())

    def make_state(self, spec: StateSpec) -> OpenIcebergTable:
        """
        :raises ConfigurationError: there is no such catalog; or the table has other columns, or a feature that files
            added by reference would break.
        """
        self.validate(spec)
        return OpenIcebergTable(self.place().resolved(), spec)

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return self.place().dataset

    def describe(self) -> str:
        return f"IcebergTable({self.name}, {self.catalog})"

    def __getstate__(self) -> dict[str, Any]:
        """The receiving process may not have the Airflow connection, so send resolved settings."""
        found = self.place().resolved(required=False)
        return {**self.__dict__, "conn_id": found.conn_id, "properties": dict(found.properties)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The property. `of`: topology and state. `snapshot`: id of the snapshot of the same commit; `sequence`: its
    number."""

    of: tuple[str, str]
    marker: dict[str, Any]
    snapshot: int
    sequence: int


class OpenIcebergTable(AppendingState):
    """See :class:`IcebergTable`. Not for several threads at the same time."""

    def __init__(self, place: IcebergPlace, spec: StateSpec) -> None:
        super().__init__(spec)
        self.place = place
        self._app = application_of(spec)
        self._catalog = place.open_catalog()
        try:
            self._table = place.twice(self._open)
            self._known_now()
        except BaseException:
            self.place.close(self._catalog)
            raise

    @property
    def _what(self) -> str:
        return f"the Iceberg table {self.place.name!r}"

    def _open(self) -> Any:
        known: Any = require_extra("pyiceberg.exceptions", EXTRA)
        with contextlib.suppress(known.NoSuchTableError):
            return self._catalog.load_table(self.place.name)
        self._catalog.create_namespace_if_not_exists(self.place.name.rpartition(".")[0])
        with contextlib.suppress(known.TableAlreadyExistsError, known.CommitFailedException):  # another was first
            self._create()
        return self._catalog.load_table(self.place.name)

    def _create(self) -> None:
        schema, changes = arrow_schema(self._spec.staged), note_of(self._spec)
        properties = {} if changes is None else {CHANGES: changes}
        made = self._catalog.create_table_transaction(self.place.name, schema=schema, properties=properties)
        with made, made.update_spec() as partitions:
            for name in self._spec.partition_by:
                partitions.add_identity(name)

    # ---- what is known -----------------------------------------------------------------------------------------

    def _known(self) -> Known:
        with self.place.errors():
            self._table = self._catalog.load_table(self.place.name)
        return self._known_now()

    def _known_now(self) -> Known:
        """From the table as it was last loaded."""
        metadata = self._table.metadata
        require_table(metadata, self._spec, self.place.name)
        text = metadata.properties.get(self._app)
        if text is None:
            self._require_new()
            return Known()
        where = f"{self._app!r} of {self._what}"
        content = _FORMAT.build(_Content, _FORMAT.load(text, where), where)
        if tuple(content.of) != (self._spec.topology, self._spec.name):
            raise _FORMAT.damaged(where, f"it is of {content.of}")
        self._require_ancestor(content, where)
        marker = _FORMAT.build(Marker, content.marker, where, needed=("holes", "position"))
        return Known(marker=marker, commit=content.snapshot)

    def _require_new(self) -> None:
        if any((one.summary or {}).get(self._app) for one in self._table.metadata.snapshots):
            raise CorruptRecordError(
                f"{self._what} has no property {self._app!r}, with what is applied of state {self._spec.name!r}",
                _FORMAT.cure,
            )

    def _require_ancestor(self, content: _Content, where: str) -> None:
        """Does main descend from the marker's snapshot? If that is expired, its remaining children are checked."""
        metadata = self._table.metadata
        at = metadata.current_snapshot()
        while at is not None and at.snapshot_id != content.snapshot and at.sequence_number > content.sequence:
            if (at.summary or {}).get(self._app):
                raise _FORMAT.damaged(where, f"snapshot {at.snapshot_id} came with a later one")
            parent = at.parent_snapshot_id
            above = None if parent is None else metadata.snapshot_by_id(parent)
            if above is None and (parent is not None or metadata.snapshot_by_id(content.snapshot) is None):
                return  # expired: some tools forget the parent, too
            at = above
        if at is None or at.snapshot_id != content.snapshot:
            raise CorruptRecordError(
                f"{self._what} was rolled back or replaced: its main branch does not come from snapshot "
                f"{content.snapshot}, with which came what state {self._spec.name!r} of topology "
                f"{self._spec.topology!r} appended last",
                "Set main to that snapshot or to one that comes from it; or give the topology another table, and "
                "replay into that.",
            )

    # ---- applying ----------------------------------------------------------------------------------------------

    def _bring(self, ticket: CommitTicket, staged: StagedPart, footer: Any, values: PartitionValues) -> NewFile:
        with self.place.errors():
            location = self._table.location_provider().new_data_location(file_name(ticket))
            output = self._table.io.new_output(location)
            # Its name is unique: nobody has to ask, for each file, whether it is there.
            put = putting(partial(output.create, overwrite=True), self.place.errors)
            size = bring(staged, self._target(location), put, partial(_size, output))
            return described(self._table.metadata, footer, location, size, values)

    def _target(self, location: str) -> str | StoredObject | None:
        return local_path(location) or self.place.stored(location)

    def _write(self, name: str, table: pa.Table, values: PartitionValues) -> NewFile:
        import pyarrow.parquet as pq

        with self.place.errors():
            location = self._table.location_provider().new_data_location(name)
            with self._table.io.new_output(location).create(overwrite=True) as file:
                write_parquet(table, file)
            written = self._table.io.new_input(location)
            with written.open() as file:
                return described(self._table.metadata, pq.read_metadata(file), location, len(written), values)

    def _required(self) -> set[str]:
        return {one.name for one in self._table.schema().fields if one.required}

    def _files_of(self, known: Known) -> list[OldFile]:
        with self.place.errors():
            return old_files(self._table)

    def _committed(self, known: Known) -> CommittedIceberg:
        with self.place.errors():
            return CommittedIceberg.of(self._table, self._spec.key_names)

    def _version_of(self, known: Known) -> str:
        return identity(self._table.metadata)

    def _read(self, known: Known, file: OldFile, columns: Sequence[str] | None = None) -> pa.Table:
        with self.place.errors():
            return rows_of(self._table, file, columns)

    def _commit(
        self, known: Known, marker: Marker, new: Sequence[NewFile], gone: Sequence[OldFile], tried: Tried
    ) -> None:
        errors: Any = require_extra("pyiceberg.exceptions", EXTRA)
        with self.place.errors():
            transaction = self._table.transaction()
            if self._table.metadata.name_mapping() is None:
                transaction.set_properties({_NAMES: self._table.schema().name_mapping.model_dump_json()})
            update = transaction.update_snapshot()
            append = judging_each_manifest_alone(update.overwrite()) if gone else update.fast_append()
            for file in gone:
                append.delete_data_file(file.entry.file)
            content = {**self._content(marker), "snapshot": append.snapshot_id}
            append.snapshot_properties = {self._app: json.dumps(_without_position(content))}
            for one in new:
                append.append_data_file(one.entry)
            append.commit()  # writes manifests; nothing refers to them yet
            transaction.set_properties({self._app: json.dumps(content)})
        tried[append.snapshot_id] = append._clean_all_uncommitted
        try:
            self._send(transaction)
        except errors.CommitFailedException as error:
            raise Overtaken from error
        except Exception as error:  # noqa: BLE001 - clients of catalogs have errors of their own for a lost answer
            if refusal := self.place.refusal(error):
                raise refusal from None
            raise OutcomeUnknownError(
                f"the commit to {self._what} ended without an answer ({self.place.conceal(str(error))})",
                "Run the task again: the table knows what is applied.",
            ) from None
        del tried[append.snapshot_id]

    def _content(self, marker: Marker) -> dict[str, Any]:
        return {
            "version": _FORMAT.version,
            "of": [self._spec.topology, self._spec.name],
            # Rows of a sink are applied one transaction at a time, so there is never a group.
            "marker": {name: value for name, value in asdict(marker).items() if name != "group"},
            "sequence": self._table.metadata.next_sequence_number(),
        }

    def _send(self, transaction: Any) -> None:
        """Sends once: `Transaction.commit_transaction` would send again, on top of others' commits."""
        update: Any = require_extra("pyiceberg.table.update", EXTRA)
        metadata = self._table.metadata
        requirements = (
            *transaction._requirements,  # main has not moved
            update.AssertTableUUID(uuid=metadata.table_uuid),
            update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
            update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
        )
        self._catalog.commit_table(self._table, requirements, transaction._updates)

    def _has_any(self, tried: Tried, new: Sequence[NewFile]) -> bool:
        with self.place.errors():
            self._table = self._catalog.load_table(self.place.name)
        return any(one.snapshot_id in tried for one in self._table.metadata.snapshots)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(OSError):
            self._table.io.delete(path)

    def close(self) -> None:
        self.place.close(self._catalog)


def _without_position(content: Mapping[str, Any]) -> dict[str, Any]:
    """For the summary of a snapshot: each commit writes the summaries of all snapshots anew, and a spout's position may
    be large. Only that the summary is there is ever asked; its content is for people."""
    marker = {name: value for name, value in content["marker"].items() if name != "position"}
    return {**content, "marker": marker}


def _size(file: Any) -> int | None:
    """Of a file of pyiceberg, in bytes; None: there is none."""
    with contextlib.suppress(FileNotFoundError):
        return len(file)
    return None
