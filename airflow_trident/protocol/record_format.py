"""The format of the ledger's records: which version is written, and which features are known. Pure."""

from __future__ import annotations

from airflow_trident.protocol.durable_format import Format

VERSION = 1
SHARED_METADATA = "shared-metadata"
"""The feature of a record whose metadata is a patch of another record's: a version that cannot read it must stop."""
RECORDS = Format(
    noun="the ledger record",
    version=VERSION,
    cure="Nothing is guessed: restore the ledger from a back-up, or mend this record by hand.",
    features=frozenset({SHARED_METADATA}),
)


def require(holds: bool, path: str, otherwise: str) -> None:
    """:raises CorruptRecordError: unless `holds`: the record at `path` is damaged, as `otherwise` says."""
    if not holds:
        raise RECORDS.damaged(path, otherwise)
