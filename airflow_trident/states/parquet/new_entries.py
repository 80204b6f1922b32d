"""Entries of a Parquet table's version: for new files, and for what is applied."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import Any

from airflow_trident.contracts.state import Marker
from airflow_trident.io.parquet import null_counts
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.staging.parquet_versions import TableFile
from airflow_trident.states.tables.new_files import NewFile


def entry_of(path: str, footer: Any, size: int, values: PartitionValues) -> NewFile:
    """:param footer: `pyarrow.parquet.FileMetaData`."""
    entry = TableFile(path=path, rows=footer.num_rows, bytes=size, partition=tuple(map(_json, values)))
    return NewFile(path=path, bytes=size, values=values, nulls=null_counts(footer), entry=entry)


def _json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime.date) else value


def marker_content(marker: Marker) -> dict[str, Any]:
    """Rows of a sink are applied one transaction at a time, so there is never a group."""
    return {name: value for name, value in asdict(marker).items() if name != "group"}
