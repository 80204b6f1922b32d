"""Objects for pyarrow, which reads only the needed parts of a Parquet file. To be imported where pyarrow is needed.

pyarrow has a client of its own for S3. It follows no certificates of a connection, nor, on Linux, its time-outs. Where
a connection has such, obstore serves pyarrow. pyarrow has a client for Azure, too, but that one takes fewer credentials
than obstore, mixes them with the environment's, and shows SAS tokens in its errors. So there obstore serves pyarrow.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa  # noqa: TID253 - who imports this module needs it
import pyarrow.fs as pafs  # noqa: TID253

from airflow_trident.io.arrow_handler import ReadOnlyFiles
from airflow_trident.io.object_service import is_behind_the_end
from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.io.seekable import Seekable

_FIRST_BYTES = 4 << 20
_FIRST_BYTES_OF_PARQUET = 64 << 10
"""Little, because mostly some columns are wanted only, and the description of all is at the end."""


def arrow_files(place: ObjectPlace) -> pafs.FileSystem:
    """The whole store, for reading, with the settings of the place; names are those of :meth:`ObjectPlace.key`.

    :raises ConfigurationError: as :meth:`ObjectPlace.resolved`.
    """
    whole = replace(place.resolved(), prefix="")
    own = None if whole.client else whole.service.arrow_files(dict(whole.settings))
    return own or pafs.PyFileSystem(ReadOnlyFiles(whole.scheme, whole, partial(_part_reader, whole)))


def _part_reader(whole: ObjectPlace, key: str) -> _Reader:
    return _Reader(whole, key.removeprefix(f"{whole.bucket}/"), _FIRST_BYTES_OF_PARQUET)


def open_object(place: ObjectPlace, name: str) -> pa.PythonFile:
    """Open an object of a place, to read parts of it. A small object is one request.

    :raises FileNotFoundError: there is none.
    """
    return pa.PythonFile(_Reader(place, name, _FIRST_BYTES), mode="r")


class _Reader(Seekable):
    """Each `read` is one request, but of the beginning, which opening has fetched."""

    def __init__(self, place: ObjectPlace, name: str, first_bytes: int) -> None:
        self._place, self._name = place, name
        self._begun, size = self._beginning(first_bytes)
        super().__init__(size)

    def read(self, size: int = -1) -> bytes:
        begin, end = self.at, self.until(size)
        if end <= begin:
            return b""
        content = self._begun[begin:end] if end <= len(self._begun) else self._fetched(begin, end)
        self.at += len(content)
        return content

    def _beginning(self, size: int) -> tuple[bytes, int]:
        """And the size of all: HEAD would say that, too, but its errors have no code."""
        with self._place.errors(f"read {self._name!r}", "read"):
            try:
                got = self._get(0, size)
                return bytes(got.bytes()), got.meta["size"]
            except self._place.obstore().exceptions.GenericError as error:
                if not is_behind_the_end(error):
                    raise
                return b"", 0

    def _fetched(self, begin: int, end: int) -> bytes:
        with self._place.errors(f"read {self._name!r}", "read"):
            return bytes(self._get(begin, end).bytes())

    def _get(self, begin: int, end: int) -> Any:
        return self._place.obstore().get(self._place.store(), self._name, options={"range": (begin, end)})
