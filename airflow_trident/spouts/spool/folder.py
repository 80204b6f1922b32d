"""The folder of a spool, in a file system, an object store or an HDFS."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import SourceUnavailableError, StoreUnavailableError
from airflow_trident.io.hdfs import HdfsPlace, is_hdfs_uri
from airflow_trident.io.object_stores import ObjectPlace, is_object_uri, require_place
from airflow_trident.io.private_files import AnyPath, require_local_path
from airflow_trident.staging.hdfs_storage import HdfsStorage
from airflow_trident.staging.storage import ObjectStorage
from airflow_trident.staging.verbs import make_folder, put_if_absent, storage_error, sync_folder

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT = "SpooledSpout"


class SpoolFolder(ABC):
    """Holds files by plain names. `read` and `opened` raise FileNotFoundError if there is no such file."""

    @property
    @abstractmethod
    def where(self) -> str:
        """The folder's name, for people."""

    @abstractmethod
    def make(self) -> None:
        """Make it writable, and see that it takes names only once."""

    @abstractmethod
    def names(self) -> list[str]:
        """None if there is no folder."""

    @abstractmethod
    def take(self, name: str, content: bytes) -> bool:
        """Publish the file in one atomic step, durably; False: the name is taken.

        :param content: others never publish the same one, or it does not matter whose it is.
        """

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def opened(self, name: str) -> pa.NativeFile:
        """Open a file, to read parts of it."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove the files that are there."""

    def settle(self) -> None:
        """Make names and removals durable."""

    def errors(self) -> AbstractContextManager[None]:
        """Translates errors of the operating system."""
        return nullcontext()


def spool_folder(path: AnyPath) -> SpoolFolder:
    """
    :raises ConfigurationError: it is no path of a file system, no place in an object store and none in an HDFS.
    """
    path = require_place(_WHAT, path)
    if is_hdfs_uri(path):
        return HdfsSpoolFolder(HdfsPlace.parse(_WHAT, path))
    if is_object_uri(path):
        return ObjectSpoolFolder(ObjectPlace.parse(_WHAT, path))
    return LocalSpoolFolder(os.path.expanduser(require_local_path(_WHAT, path)))


@dataclass(frozen=True)
class LocalSpoolFolder(SpoolFolder):
    folder: str

    @property
    def where(self) -> str:
        return self.folder

    def make(self) -> None:
        make_folder(self.folder)

    def names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def take(self, name: str, content: bytes) -> bool:
        return put_if_absent(self._path(name), content)

    def read(self, name: str) -> bytes:
        with open(self._path(name), "rb") as file:
            return file.read()

    def opened(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.OSFile(self._path(name), "rb")

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(self._path(name))

    def settle(self) -> None:
        sync_folder(self.folder)

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise storage_error(error, self.folder, "the spool") from error

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)


@dataclass(frozen=True)
class ObjectSpoolFolder(SpoolFolder):
    """Objects are durable when the store has answered."""

    place: ObjectPlace

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: executors have no connections."""
        return {"place": self.place.resolved(required=False)}

    @property
    def where(self) -> str:
        return self.place.where

    def make(self) -> None:
        ObjectStorage(self.place).require_usable()

    def names(self) -> list[str]:
        with _reading():
            return [name for name, _ in ObjectStorage(self.place).list("")]

    def take(self, name: str, content: bytes) -> bool:
        return ObjectStorage(self.place).put_if_absent(name, content)

    def read(self, name: str) -> bytes:
        with _reading():
            return ObjectStorage(self.place).get(name)

    def opened(self, name: str) -> pa.NativeFile:
        from airflow_trident.io.object_arrow import open_object

        with _reading():
            return open_object(self.place, name)

    def remove(self, names: Iterable[str]) -> None:
        ObjectStorage(self.place).take_away(list(names))


@dataclass(frozen=True)
class HdfsSpoolFolder(SpoolFolder):
    """Files count when the name node has renamed them."""

    place: HdfsPlace

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: executors have no connections."""
        return {"place": self.place.resolved(required=False)}

    @property
    def where(self) -> str:
        return self.place.where

    def make(self) -> None:
        HdfsStorage(self.place).require_usable()

    def names(self) -> list[str]:
        with _reading():
            return list(HdfsStorage(self.place).files())

    def take(self, name: str, content: bytes) -> bool:
        return HdfsStorage(self.place).put_if_absent(name, content)

    def read(self, name: str) -> bytes:
        with _reading():
            return HdfsStorage(self.place).get(name)

    def opened(self, name: str) -> pa.NativeFile:
        import pyarrow as pa

        return pa.BufferReader(self.read(name))

    def remove(self, names: Iterable[str]) -> None:
        HdfsStorage(self.place).take_away(list(names))


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except StoreUnavailableError as error:
        raise SourceUnavailableError(error.message, error.cure) from None
