"""Staged batches: the durable result of a processing phase, under (topology, incarnation, txid, attempt).

Layout below the staging root, which every task must see (a shared folder where there are several workers)::

    <topology>/<incarnation>/<txid 19 digits>/<attempt>/<state>-<uuid>.parquet
    <topology>/<incarnation>/<txid 19 digits>/<attempt>/manifest.json

Files are written under names that nobody else uses; the manifest is published last, by put-if-absent, and names exactly
the files that count: what a killed or duplicated worker left beside them is never read. Overwriting a folder instead
mixes a zombie's rows with the new ones, appending doubles them.

The manifest is versioned JSON, because a newer package may have to read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from airflow_trident.errors import StagingError
from airflow_trident.protocol.durable_format import Format, short

VERSION = 2
"""Version 1 did not name the sinks."""
_FORMAT = Format(
    noun="the manifest",
    version=VERSION,
    key="version",
    cure="Run the processing phase of this transaction again: it stages under a new attempt.",
    error=StagingError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Whose staged batch."""

    topology: str
    incarnation: str
    txid: int
    attempt: int

    @property
    def path(self) -> str:
        """Relative to the staging root."""
        return f"{self.topology}/{self.incarnation}/{self.txid:019d}/{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFile:
    """`path` is relative to the staging root."""

    state: str
    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one attempt staged. `rows_read`: rows that came out of the spouts, -1 if the engine did not count them.

    `sinks`: all that was staged for, name -> fields as DDL, those without any rows too: what is not among them was not
    staged, which is another thing than no rows. None: a manifest of version 1, which did not say.
    """

    slot: Slot
    files: tuple[StagedFile, ...]
    rows_read: int
    sinks: dict[str, str] | None = None


def encode(manifest: Manifest) -> bytes:
    """Canonical: equal manifests have equal bytes."""
    slot = manifest.slot
    record: dict[str, Any] = {
        "version": 1 if manifest.sinks is None else VERSION,
        "topology": slot.topology,
        "incarnation": slot.incarnation,
        "txid": slot.txid,
        "attempt": slot.attempt,
        "rows_read": manifest.rows_read,
        "files": [
            {"state": file.state, "path": file.path, "rows": file.rows, "bytes": file.bytes}
            for file in sorted(manifest.files, key=lambda file: (file.state, file.path))
        ],
    }
    if manifest.sinks is not None:
        record["sinks"] = dict(sorted(manifest.sinks.items()))
    return (json.dumps(record, indent=1) + "\n").encode()


def decode(content: bytes, where: str) -> Manifest:
    """
    :param where: its path, for the error text.
    :raises NewerRecordError: a newer version of the package wrote it.
    :raises StagingError: it cannot be decoded.
    """
    place = repr(where)
    version, body = _FORMAT.load(content, place)
    body["slot"] = {one.name: body[one.name] for one in fields(Slot) if one.name in body}
    manifest = _FORMAT.build(Manifest, body, place)
    if (manifest.sinks is None) != (version == 1):
        raise _FORMAT.damaged(place, f"the field 'sinks' is {short(manifest.sinks)} in version {version}")
    return manifest
