"""Spouts over tables to which streams write: the same table object gives the place."""

from __future__ import annotations

from typing import Any

from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.delta import DeltaPlace
from airflow_trident.io.iceberg import IcebergPlace
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.spouts.iceberg.spout import IcebergSpout
from airflow_trident.types import FieldSpec


def TableSpout(table: StateFactory, *, fields: FieldSpec, **options: Any) -> Spout:  # noqa: N802 - as what it gives
    """Reads the rows that are appended to a table, each in exactly one transaction.

    :param table: as for `persist_table`: ``DeltaTable("/lake/orders")``, ``IcebergTable("sales.orders")``.
    :param fields: the columns with their types; a column that a file lacks is null.
    :param options: `start` is ``snapshot``, ``latest``, or the number of a version: the first transaction begins there.
        `changes` is ``error`` or ``skip``, for versions that change or delete rows. `max_files`, `max_bytes` and
        `max_rows` limit one batch. `column`, in a topology that is bound to partitions, is the table's partition
        column.
    :raises ConfigurationError: not a table, or a wrong option.
    """
    place = getattr(table, "place", lambda: None)()
    match place:
        case DeltaPlace():
            return DeltaSpout(
                place.uri, fields=fields, conn_id=place.conn_id, storage_options=place.options or None, **options
            )
        case IcebergPlace():
            return IcebergSpout(
                place.name,
                fields=fields,
                catalog=place.catalog,
                conn_id=place.conn_id,
                properties=place.properties or None,
                **options,
            )
    raise ConfigurationError(
        f"TableSpout got {table.describe() if isinstance(table, StateFactory) else repr(table)}",
        "Give a DeltaTable or an IcebergTable.",
    )
