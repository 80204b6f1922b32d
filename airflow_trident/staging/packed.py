"""A small staged batch as one bytes object, to be kept without files: a zip of the manifest and the unchanged files.

Each part has a checksum, so the object itself shows whether it is whole.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace

from airflow_trident.errors import StagingError
from airflow_trident.staging.manifest import Manifest, decode, encode

_MANIFEST = "manifest.json"


def pack(manifest: Manifest) -> bytes:
    """:param manifest: all its files have their content. The same manifest gives the same bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        packed.writestr(zipfile.ZipInfo(_MANIFEST), encode(manifest))
        for file in manifest.files:
            packed.writestr(zipfile.ZipInfo(file.path), file.content)
    return buffer.getvalue()


def unpack(content: bytes, where: str, cure: str) -> Manifest:
    """The manifest that :func:`pack` packed, with the content of its files.

    :param where: where it was, for the error text.
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
