"""A small staged batch as one piece of bytes, for who keeps it without files: a zip of manifest and files, as they are.

It says itself whether it is whole: each part has a checksum.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

from airflow_trident.errors import StagingError
from airflow_trident.staging.manifest import Manifest, decode, encode

_MANIFEST = "manifest.json"


def pack(manifest: Manifest) -> bytes:
    """:param manifest: of files that all have their content. The same one gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(zipfile.ZipInfo(_MANIFEST), encode(manifest))
        for file in manifest.files:
            packed.writestr(zipfile.ZipInfo(file.path), file.content)
    return buffer.getvalue()


def unpack(content: bytes, where: str, cure: str) -> Manifest:
    """What :func:`pack` packed, the files with their content.

    :param where: it was, for the error text.
    :raises StagingError: it is damaged.
    :raises NewerRecordError: a newer version of the package wrote it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            manifest = decode(packed.read(_MANIFEST), where)
            files = tuple(replace(file, content=packed.read(file.path)) for file in manifest.files)
    except (zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, ValueError) as error:
        raise StagingError(f"the staged batch {where!r} is damaged ({error})", cure) from error
    return replace(manifest, files=files)
