"""Deletion vectors of Delta tables: rows of a file that no longer count, though the file still has them."""

from __future__ import annotations

from typing import Any

from airflow_trident.errors import ConfigurationError

_FEATURE = "deletionVectors"
_ENABLED = "delta.enableDeletionVectors"
_CURE = (
    f"Set {_ENABLED} to false, run REORG TABLE ... APPLY (PURGE) in Spark, and run the task again; or write to "
    "another table."
)


def why_not_whole(table: Any) -> tuple[str, str] | None:
    """Why files of this version may have rows that do not count, or soon will; with the cure.

    :param table: the `deltalake.DeltaTable`.
    """
    if _has_vectors(table):
        return "it has deletion vectors, so its files have rows that are deleted", _CURE
    if (table.metadata().configuration.get(_ENABLED) or "").lower() == "true":
        return f"it may get deletion vectors ({_ENABLED}), so that its files have rows that are deleted", _CURE
    return None


def require_whole_files(table: Any) -> None:
    """For who reads or removes files of this version by themselves.

    :raises ConfigurationError: a file has rows that are deleted: they would come back, or the file would stay.
    """
    if _has_vectors(table):
        raise ConfigurationError(
            f"the Delta table {table.table_uri!r} has deletion vectors, so its files have rows that are deleted", _CURE
        )


def _has_vectors(table: Any) -> bool:
    """Only tables with the feature can have them, so that others cost nothing."""
    import pyarrow as pa

    if _FEATURE not in (table.protocol().reader_features or ()):
        return False
    return any(batch.num_rows for batch in pa.table(table.deletion_vectors()).to_batches())
