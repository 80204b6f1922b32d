"""Where the columns of a Delta table are in its files, if it maps them to other names or to ids (column mapping)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_trident.errors import DamagedInputError

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
    found = {name: by_id.get(place) if isinstance(place, int) else place for name, place in places.items()}
    return {name: place for name, place in found.items() if place is not None and place in schema.names}
