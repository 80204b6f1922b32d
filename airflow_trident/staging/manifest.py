"""The manifest of a staged batch as JSON: versioned, because a newer package may have to read it."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

from airflow_trident.errors import StagingError
from airflow_trident.protocol.formats import Format, short
from airflow_trident.staging.base import Manifest, Slot

VERSION = 2
"""Version 1 did not name the sinks."""
_FORMAT = Format(
    noun="the manifest",
    version=VERSION,
    key="version",
    cure="Run the processing phase of this transaction again: it stages under a new attempt.",
    error=StagingError,
)


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
