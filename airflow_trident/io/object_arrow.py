"""Objects for pyarrow, which reads only the needed parts of a Parquet file. To be imported where pyarrow is needed.

pyarrow has a client of its own for S3. It follows no certificates of a connection, nor, on Linux, its time-outs. Where
a connection has such, obstore serves pyarrow. pyarrow has a client for Azure, too, but that one takes fewer credentials
than obstore, mixes them with the environment's, and shows SAS tokens in its errors. So there obstore serves pyarrow.

Files for pyarrow that another library opens. To be imported where pyarrow is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa  # noqa: TID253 - who imports this module needs it
import pyarrow.fs as pafs  # noqa: TID253

from airflow_trident.io.object_place import ObjectReader, ObstorePlace
from airflow_trident.io.object_stores import ObjectAddress


class ReadOnlyFiles(pafs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types
    """Opens the files that pyarrow was told of; does nothing else.

    :param kind: a name for pyarrow.
    :param place: two of the same place are the same.
    :param opened: opens the file of a path.
    """

    def __init__(self, kind: str, place: Hashable, opened: Callable[[str], Any]) -> None:
        self.kind, self.place, self.opened = kind, place, opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReadOnlyFiles) and self.place == other.place

    def __hash__(self) -> int:
        return hash(self.place)

    def get_type_name(self) -> str:
        return self.kind

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [pafs.FileInfo(path, pafs.FileType.File) for path in paths]

    def open_input_file(self, path: str) -> pa.PythonFile:
        return pa.PythonFile(self.opened(path), mode="r")

    open_input_stream = open_input_file

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError("files are read only here")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse


_PIECE_BYTES = 1 << 20


class WritesBytes(pafs.FileSystemHandler):  # type: ignore[misc]
    """The file system of a library whose streams accept nothing but `bytes`.

    pyarrow passes each large piece on as a `pyarrow.Buffer`, whatever its caller wrote.

    :param opened: opens the library's own stream for writing to a path.
    """

    def __init__(self, handler: pafs.FileSystemHandler, opened: Callable[[str], Any]) -> None:
        self._handler, self._opened = handler, opened

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WritesBytes) and bool(self._handler == other._handler)

    def __hash__(self) -> int:
        return hash(type(self))

    def open_output_stream(self, path: str, metadata: Any = None) -> pa.PythonFile:
        return pa.PythonFile(_BytesOnly(self._opened(path)), mode="w")

    def get_type_name(self) -> str:
        return str(self._handler.get_type_name())

    def normalize_path(self, path: str) -> str:
        return str(self._handler.normalize_path(path))

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return list(self._handler.get_file_info(paths))

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        return list(self._handler.get_file_info_selector(selector))

    def open_input_file(self, path: str) -> pa.PythonFile:
        return self._handler.open_input_file(path)

    open_input_stream = open_input_file

    def delete_file(self, path: str) -> None:
        self._handler.delete_file(path)

    def _refuse(self, *arguments: Any, **named: Any) -> NoReturn:
        raise NotImplementedError("files are only written, read, deleted and listed here")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    move = copy_file = open_append_stream = _refuse


class _BytesOnly:
    """What `pyarrow.PythonFile` calls. Close, also after an error, is the library's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        view = memoryview(data)
        for begin in range(0, len(view), _PIECE_BYTES):
            self._stream.write(bytes(view[begin : begin + _PIECE_BYTES]))
        return len(view)

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        self._stream.close()


_FIRST_BYTES_OF_PARQUET = 64 << 10
"""Little, because mostly some columns are wanted only, and the description of all is at the end."""


def arrow_files(address: ObjectAddress) -> pafs.FileSystem:
    """The whole store, for reading, with the settings of the address; names are those of :meth:`ObjectAddress.key`.

    :raises ConfigurationError: as :meth:`ObjectAddress.resolved`.
    """
    whole = replace(address.resolved(), prefix="")
    native_files = None if whole.client else whole.service.arrow_files(dict(whole.settings))
    return native_files or pafs.PyFileSystem(ReadOnlyFiles(whole.scheme, whole, partial(_part_reader, whole)))


def _part_reader(whole: ObjectAddress, key: str) -> ObjectReader:
    return ObjectReader(whole, key.removeprefix(f"{whole.bucket}/"), _FIRST_BYTES_OF_PARQUET)


def open_object(address: ObjectAddress, name: str) -> pa.PythonFile:
    """Open an object below an address, to read parts of it. A small object is one request.

    :raises FileNotFoundError: there is none.
    """
    return pa.PythonFile(ObstorePlace(address).open(name, whole=False), mode="r")
