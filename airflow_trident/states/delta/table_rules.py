"""Checks of a Delta table before rows are added by reference: Delta itself does not check such files."""

from __future__ import annotations

from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.delta import EXTRA
from airflow_trident.io.extras import require_extra
from airflow_trident.states.core.checks import require_columns
from airflow_trident.states.delta.deletion_vectors import why_not_whole
from airflow_trident.states.tables.partitions import not_partitioned_so
from airflow_trident.states.tables.rewriting import why_not_owned
from airflow_trident.types import INTERVAL, has_times

_OF_COLUMNS = ("delta.invariants", "delta.generationExpression", "delta.identity")
_ON = "true"
_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    }
)
"""Writer features of a table that files added by reference cannot break, or for which there is a check here."""
_IDENTITY_VERSION = 6
"""The writer version that has identity columns without naming them as a feature; deltalake does not write it."""


def require_delta_columns(spec: StateSpec, taken: tuple[str, ...] = ()) -> None:
    """:param taken: names of other columns of the table.
    :raises ConfigurationError: the fields cannot be columns of one Delta table.
    """
    for each in (*spec.keys, *spec.values):
        if has_times(each.type) or INTERVAL in each.type:
            raise ConfigurationError(
                f"state {spec.name!r} has the field {each.name!r} of type {each.type}; Delta tables have neither times "
                "nor intervals",
                "Keep a long of microseconds, or a text.",
            )
    require_columns(spec, taken, "a Delta table cannot tell from another column")


def require_table(table: Any, spec: StateSpec, where: str) -> None:
    """:raises ConfigurationError: files with the fields of `spec` cannot be added without a rewrite."""
    why = _why_not(table, spec)
    if why:
        raise ConfigurationError(
            f"sink {spec.name!r} cannot write to the Delta table {where!r}: {why[0]}",
            why[1],
        )


def _why_not(table: Any, spec: StateSpec) -> tuple[str, str] | None:
    metadata = table.metadata()
    settings = {name: value for name, value in metadata.configuration.items() if value is not None}
    another = "Append to another table."
    if why := not_partitioned_so(metadata.partition_columns, spec):
        return why
    if why := why_not_owned(metadata.description, spec):
        return why
    replaces = spec.overwrites or bool(spec.keys)
    if replaces and (why := why_not_whole(table)):
        return why
    if replaces and settings.get("delta.appendOnly", "").lower() == _ON:
        return "it is append-only, and rows of it would be replaced", another
    for name, value in sorted(settings.items()):
        if name.startswith("delta.constraints."):
            return f"it has the constraint {name.removeprefix('delta.constraints.')} ({value})", another
        if name == "delta.columnMapping.mode" and value != "none":
            return "it maps names of columns", another
        if name == "delta.enableRowTracking" and value.lower() == _ON:
            return "it tracks rows", another
        if name == "delta.setTransactionRetentionDuration":
            return f"{name} is set, so that it forgets what was applied", "Unset it."
    return _why_not_columns(table.schema(), spec) or _why_not_features(table.protocol())


def _why_not_features(protocol: Any) -> tuple[str, str] | None:
    cure = "Drop what it does not need (ALTER TABLE ... DROP FEATURE in Spark), or write to another table."
    if others := sorted(set(protocol.writer_features or ()) - _FEATURES):
        return f"it has features that are not written here: {', '.join(others)}", cure
    if protocol.min_writer_version == _IDENTITY_VERSION:
        return f"its writer version is {_IDENTITY_VERSION}, that of identity columns", cure
    return None


def _why_not_columns(schema: Any, spec: StateSpec) -> tuple[str, str] | None:
    module: Any = require_extra("deltalake", EXTRA)
    wanted = {one.name: one.type for one in module.Schema.from_arrow(arrow_schema(spec.staged)).fields}
    found = {one.name: one for one in schema.fields}
    for one in schema.fields:
        rule = next((name for name in one.metadata if name.startswith(_OF_COLUMNS)), None)
        if rule is not None:
            return f"its column {one.name} has {rule}", "Append to another table."
        if one.name not in wanted and not one.nullable:
            return f"its column {one.name} takes no nulls, and the stream has no such field", "Add the field."
    for name, kind in wanted.items():
        if name not in found:
            return f"it has no column {name}", f"Add it to the table, or leave it out of the stream ({_of(schema)})."
        if json_of(found[name].type) != json_of(kind):
            return (
                f"its column {name} is {json_of(found[name].type)}, and the field {json_of(kind)}",
                "Convert the field before.",
            )
    return None


def json_of(kind: Any) -> str:
    """A type in the words of the table's log."""
    return str(kind.to_json()).replace('"', "")


def _of(schema: Any) -> str:
    return "it has " + ", ".join(one.name for one in schema.fields)
