"""Rules for partition columns: a file by reference has one value of each, which every reader must write alike."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.partitioned import PartitionValues
from airflow_trident.types import WHOLE_TYPES

_TYPES = ("string", *WHOLE_TYPES, "boolean", "date")


def require_partitions(spec: StateSpec, table: str) -> None:
    """:raises ConfigurationError: the fields cannot be partition columns."""
    types = {one.name: one.type for one in spec.staged}
    for name in spec.partition_by:
        if name not in types:
            raise ConfigurationError(
                f"{table} is to be partitioned by {name!r}, and sink {spec.name!r} has no such field",
                f"Name one of {', '.join(types)}.",
            )
        if types[name] not in _TYPES:
            raise ConfigurationError(
                f"{table} is to be partitioned by {name!r}, which is {types[name]}",
                f"Partition by a field that is {', '.join(_TYPES[:-1])} or {_TYPES[-1]}; make one of it with each().",
            )


def not_partitioned_so(found: Sequence[str], spec: StateSpec) -> tuple[str, str] | None:
    """The error and its cure, if a table's partition columns are not those of `spec`."""
    if tuple(found) == spec.partition_by:
        return None
    wanted = f"by {', '.join(spec.partition_by)}" if spec.partition_by else "not"
    return (
        f"it is partitioned by {', '.join(found) or 'nothing'}, and should be so {wanted}",
        f"Say partition_by={list(found)}, as the table is." if found else "Append to another table.",
    )


def require_no_empty_text(table: str, names: Sequence[str], values: PartitionValues) -> None:
    """:raises ConfigurationError: a value is an empty text, which readers would take for a null."""
    for name, value in zip(names, values, strict=True):
        if value == "":
            raise ConfigurationError(
                f"the batch has an empty text in {name!r}, a partition column of {table}, which makes it a null",
                "Give it another text before, or a null.",
            )
