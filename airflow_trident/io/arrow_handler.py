"""Files that pyarrow reads, and that something else opens. To be imported where pyarrow is needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import pyarrow as pa  # noqa: TID253 - who imports this module needs it
import pyarrow.fs as pafs  # noqa: TID253


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

    def _refuse(self, *given: Any, **named: Any) -> NoReturn:
        raise NotImplementedError("files are read only here")

    get_file_info_selector = create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = copy_file = open_output_stream = open_append_stream = _refuse
