"""Checks of an Iceberg table before rows are added by reference: such files find their columns by name."""

from __future__ import annotations

import re
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.states.core.checks import require_columns
from airflow_trident.states.tables.partitions import not_partitioned_so
from airflow_trident.states.tables.rewriting import why_not_owned
from airflow_trident.types import INTERVAL

_SMALL = re.compile(r"(?<!\w)(?:byte|short)(?=[,>]|\Z)")
_VERSION = 2
_SIMPLE = {
    "StringType": "string",
    "LongType": "long",
    "IntegerType": "int",
    "DoubleType": "double",
    "FloatType": "float",
    "BooleanType": "boolean",
    "BinaryType": "binary",
    "DateType": "date",
    "TimeType": "time",
    "TimestamptzType": "timestamp",
}
CHANGES = "airflow-trident.changes"
"""The table property that names the keys of its changes, and their writer."""
_ANOTHER = "Append to another table."


def require_iceberg_columns(spec: StateSpec) -> None:
    """:raises ConfigurationError: the fields cannot be columns of one Iceberg table."""
    for each in spec.staged:
        if INTERVAL in each.type:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {each.name!r} of type {each.type}, which no Iceberg table has",
                "Keep a long of microseconds, or a text.",
            )
    require_columns(spec, (), "many readers of an Iceberg table cannot tell from another column")


def require_table(metadata: Any, spec: StateSpec, name: str) -> None:
    """:param metadata: `pyiceberg.table.metadata.TableMetadata`.
    :raises ConfigurationError: files with the fields of `spec` cannot be added without a rewrite.
    """
    why = _why_not(metadata, spec)
    if why:
        raise ConfigurationError(f"sink {spec.name!r} cannot append to the Iceberg table {name!r}: {why[0]}", why[1])


def _why_not(metadata: Any, spec: StateSpec) -> tuple[str, str] | None:
    if metadata.format_version != _VERSION:
        return (
            f"it has format version {metadata.format_version}",
            "Upgrade it to version 2 (property format-version)." if metadata.format_version < _VERSION else _ANOTHER,
        )
    schema = metadata.schema()
    partitions = metadata.spec().fields
    for one in partitions:
        if str(one.transform) != "identity":
            of = schema.find_column_name(one.source_id)
            return f"it is partitioned by {one.transform} of {of}, and files have one value of a column", _ANOTHER
    if why := not_partitioned_so([schema.find_column_name(one.source_id) for one in partitions], spec):
        return why
    if why := why_not_owned(metadata.properties.get(CHANGES), spec):
        return why
    wanted = {one.name: _SMALL.sub("int", one.type) for one in spec.staged}
    found = {one.name: one for one in schema.fields}
    for one in schema.fields:
        if one.name not in wanted and one.required:
            return f"its column {one.name} takes no nulls, and the stream has no such field", "Add the field."
    for name, kind in wanted.items():
        if name not in found:
            columns = ", ".join(found)
            return f"it has no column {name}", f"Add it to the table, or leave it out of the stream (it has {columns})."
        if (there := ddl_of(found[name].field_type)) != kind:
            return f"its column {name} is {there}, and the field {kind}", "Convert the field before."
    return _why_not_by_name(metadata, found, wanted)


def _why_not_by_name(metadata: Any, found: dict[str, Any], wanted: dict[str, str]) -> tuple[str, str] | None:
    """Staged files have no column ids: readers find columns by the table's mapping of names to ids."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return None
    ids = {name: one.field_id for one in mapping.root for name in one.names}
    for name in wanted:
        if ids.get(name) != found[name].field_id:
            return f"its schema.name-mapping.default maps the name {name} to another column, or to none", "Mend that."
    return None


def ddl_of(kind: Any) -> str:
    """An Iceberg type as a field type, or in Iceberg's words if no field can have it."""
    name = type(kind).__name__
    if name == "DecimalType":
        return f"decimal({kind.precision},{kind.scale})"
    if name == "ListType":
        return f"array<{_part(kind.element_type, kind.element_required)}>"
    if name == "MapType":
        return f"map<{ddl_of(kind.key_type)},{_part(kind.value_type, kind.value_required)}>"
    if name == "StructType":
        return f"struct<{','.join(f'{one.name}:{_part(one.field_type, one.required)}' for one in kind.fields)}>"
    return _SIMPLE.get(name, str(kind))


def _part(kind: Any, required: bool) -> str:
    return f"{ddl_of(kind)}{' without nulls' if required else ''}"
