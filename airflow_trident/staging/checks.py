"""Is a staged batch what its manifest says, and what the topology has now?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_trident.errors import StagingError
from airflow_trident.staging.manifest import Manifest, StagedFile
from airflow_trident.types import Schema, ddl, names_of

if TYPE_CHECKING:
    import pyarrow.parquet as pq

AGAIN = "Run the processing phase of this transaction again: it stages under a new attempt."


def require_size(file: StagedFile, path: str, size: int) -> None:
    """:raises StagingError: it is another one."""
    if size != file.bytes:
        raise StagingError(f"the staged file {path!r} has {size} bytes instead of {file.bytes}", AGAIN)


def require_content(file: StagedFile, path: str, parquet: pq.ParquetFile, schema: Schema) -> None:
    """:raises StagingError: it has other fields, or another number of rows."""
    names = parquet.schema_arrow.names
    if sorted(names) != sorted(names_of(schema)):
        raise StagingError(
            f"the staged file {path!r} has the fields ({', '.join(names)}) instead of ({', '.join(names_of(schema))})",
            "The topology changed since it was staged. " + AGAIN,
        )
    rows = parquet.metadata.num_rows
    if rows != file.rows:
        raise StagingError(f"the staged file {path!r} has {rows} rows instead of {file.rows}", AGAIN)


def listed(manifest: Manifest) -> str:
    """Its transactions, as errors name them."""
    return shown({one.txid: one.attempt for one in manifest.members})


def shown(attempts: Mapping[int, int]) -> str:
    """Txid -> attempt, as errors name them."""
    return ", ".join(f"{txid} (attempt {attempt})" for txid, attempt in attempts.items())


def require_staged(manifest: Manifest, state: str, schema: Schema) -> None:
    """:raises StagingError: nothing was staged for this state with these fields. No rows would be a guess."""
    attempt = f"attempt {manifest.slot.attempt} of transaction {manifest.slot.txid}"
    fields = manifest.sinks.get(state)
    if fields is None:
        raise StagingError(f"{attempt} was not staged for {state!r}: the topology had no such state then", AGAIN)
    if fields != ddl(schema):
        raise StagingError(
            f"{attempt} was staged for {state!r} with the fields ({fields}) instead of ({ddl(schema)})",
            "The topology changed since it was staged. " + AGAIN,
        )
