"""The manifest of a staged batch as JSON: versioned, because a newer package may have to read it."""

from __future__ import annotations

import json
from typing import Any

from airflow_trident.errors import NewerRecordError, StagingError
from airflow_trident.staging.base import Manifest, Slot, StagedFile

VERSION = 2
"""Version 1 did not name the sinks."""


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
    try:
        record = json.loads(content)
        version = record["version"]
        if isinstance(version, int) and version > VERSION:
            raise NewerRecordError(
                f"the manifest {where!r} has version {version} and this package reads up to {VERSION}",
                "Install the version of airflow-trident that wrote it, or a newer one.",
            )
        return _manifest(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StagingError(
            f"the manifest {where!r} cannot be read ({type(error).__name__}: {error})",
            "Run the processing phase of this transaction again: it stages under a new attempt.",
        ) from error


def _manifest(record: dict[str, Any]) -> Manifest:
    version = _typed(record, "version", int)
    if not 1 <= version <= VERSION:
        raise ValueError(f"unknown version {version!r}")
    slot = Slot(
        topology=_typed(record, "topology", str),
        incarnation=_typed(record, "incarnation", str),
        txid=_typed(record, "txid", int),
        attempt=_typed(record, "attempt", int),
    )
    files = tuple(
        StagedFile(
            state=_typed(file, "state", str),
            path=_typed(file, "path", str),
            rows=_typed(file, "rows", int),
            bytes=_typed(file, "bytes", int),
        )
        for file in _typed(record, "files", list)
    )
    return Manifest(
        slot=slot,
        files=files,
        rows_read=_typed(record, "rows_read", int),
        sinks=_sinks(record) if version > 1 else None,
    )


def _sinks(record: dict[str, Any]) -> dict[str, str]:
    sinks = _typed(record, "sinks", dict)
    return {name: _typed(sinks, name, str) for name in sinks}


def _typed(record: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = record[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}")
    return value
