"""A version of a Parquet table, for readers."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.upkeep import ViewDialect
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.staging.hdfs_storage import HdfsStorage
from airflow_trident.staging.parquet_versions import ParquetVersion, TableFile
from airflow_trident.staging.storage import ObjectStorage
from airflow_trident.staging.verbs import Storage
from airflow_trident.states.tables.latest_view import parquet_relation, require_few
from airflow_trident.states.tables.new_files import OldFile

if TYPE_CHECKING:
    import pyarrow.dataset as ds


def uri_of(storage: Storage, path: str) -> str:
    """Absolute path; without the connection ``s3://bucket/...`` of an object, ``hdfs://nameservice/...`` in an HDFS."""
    if isinstance(storage, HdfsStorage):
        return storage.uri(path)
    if not isinstance(storage, ObjectStorage):
        return storage.at(path)
    place = storage.place
    return "/".join(part for part in (place.root, place.prefix, path) if part)


def dataset_of(storage: Storage, version: ParquetVersion, files: Sequence[TableFile]) -> ds.Dataset:
    """The dataset of these files, with the columns of the version."""
    import pyarrow.dataset as ds

    schema, form = arrow_schema(version.schema), ds.ParquetFileFormat()
    system, path_of = _arrow_files(storage)
    fragments = []
    for one in files:
        only = ds.scalar(True)
        for name, value in zip(version.partition_by, values_of(version, one), strict=True):
            column = ds.field(name)
            only = only & (column.is_null() if value is None else column == value)
        fragments.append(form.make_fragment(path_of(one.path), system, partition_expression=only))
    return ds.FileSystemDataset(fragments, schema, form, system)


def _arrow_files(storage: Storage) -> tuple[Any, Callable[[str], str]]:
    """For pyarrow, and how it calls a file there."""
    import pyarrow.fs as pafs

    if isinstance(storage, ObjectStorage):
        from airflow_trident.io.object_arrow import arrow_files

        return arrow_files(storage.place), storage.place.key
    if isinstance(storage, HdfsStorage):
        from airflow_trident.io.arrow_handler import ReadOnlyFiles

        return pafs.PyFileSystem(ReadOnlyFiles(storage.place.scheme, storage, storage.open_parts)), str
    return pafs.LocalFileSystem(), storage.at


def relation_of(
    what: str, storage: Storage, version: ParquetVersion, files: Sequence[OldFile], dialect: ViewDialect
) -> str:
    """The rows of these files of the version, as a query names them.

    :raises ConfigurationError: the engine cannot read them so.
    """
    require_few(what, len(files))
    found = [
        (uri_of(storage, one.path), one, fragment.physical_schema.names)
        for one, fragment in zip(
            files, dataset_of(storage, version, [one.entry for one in files]).get_fragments(), strict=True
        )
    ]
    return parquet_relation(what, found, version.schema, version.partition_by, dialect)


def values_of(version: ParquetVersion, file: TableFile) -> PartitionValues:
    types = {one.name: one.type for one in version.schema}
    return tuple(_value(value, types[name]) for name, value in zip(version.partition_by, file.partition, strict=True))


def _value(value: Any, type_text: str) -> Any:
    return datetime.date.fromisoformat(value) if type_text == "date" and value is not None else value
