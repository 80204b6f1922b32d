"""A staged batch in the answer of a submitted application's driver. A small one travels whole, without any file."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from airflow_trident.errors import StagingError
from airflow_trident.staging.area import StagingArea, as_chunk
from airflow_trident.staging.manifest import Manifest, decode, encode, unpack

_PACKED, _MANIFEST = "packed", "manifest"
_CURE = "Run the task again; if it stays so, see the driver's log."


def as_answer(area: StagingArea, manifest: Manifest, chunk_bytes: int) -> dict[str, str]:
    """The files of a batch that is not small are written now, if the executors gave any of them to the driver.

    :param chunk_bytes: a batch of at most this many bytes is small; 0: none is.
    :raises StoreUnavailableError, ConfigurationError: a file cannot be written.
    """
    small = as_chunk(manifest, chunk_bytes)
    if small is not None:
        return {_PACKED: base64.b64encode(small.content).decode()}
    area.write_kept(manifest)
    return {_MANIFEST: encode(manifest).decode()}


def answered(answer: Mapping[str, Any], answer_path: str) -> Manifest | None:
    """The batch that :func:`as_answer` put into an answer; None if there is none.

    :param answer_path: the answer's path, for the error text.
    :raises StagingError: it is damaged.
    """
    packed, manifest = answer.get(_PACKED), answer.get(_MANIFEST)
    if isinstance(packed, str):
        try:
            content = base64.b64decode(packed, validate=True)
        except binascii.Error as error:
            raise StagingError(f"the staged batch in {answer_path!r} is damaged ({error})", _CURE) from error
        return unpack(content, answer_path, _CURE)
    return decode(manifest.encode(), answer_path) if isinstance(manifest, str) else None
