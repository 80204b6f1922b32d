"""The folder of a FileSink, in a file system, an object store or an HDFS. A bucket has no rename, but a copy inside the
store appears whole or not at all."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import BinaryIO

from airflow_trident.errors import StoreUnavailableError
from airflow_trident.io.hdfs import HdfsPlace
from airflow_trident.io.object_stores import ObjectPlace
from airflow_trident.staging.hdfs_storage import HdfsStorage
from airflow_trident.staging.storage import ObjectStorage
from airflow_trident.staging.verbs import make_folder, put_if_absent, storage_error, sync_folder, write_durably

META = "_trident"


class SinkFolder(ABC):
    """`_trident` in it holds records and hidden files, by plain names; the folder itself holds published files.

    Methods raise StoreUnavailableError or ConfigurationError if the storage does not work, and FileNotFoundError if a
    file they need does not exist.
    """

    @property
    @abstractmethod
    def where(self) -> str:
        """The folder's name, for people."""

    @abstractmethod
    def make(self) -> None:
        """Make it writable."""

    @abstractmethod
    def noted(self) -> list[str]:
        """The names in ``_trident``."""

    @abstractmethod
    def note(self, name: str) -> bytes:
        """:raises FileNotFoundError: there is no such file."""

    @abstractmethod
    def take(self, name: str, content: bytes) -> bool:
        """Put it into ``_trident`` in one atomic step; False: the name is taken."""

    @abstractmethod
    def hide(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        """Put it into ``_trident`` durably, under a name that nobody else uses."""

    @abstractmethod
    def forget(self, names: Iterable[str]) -> None:
        """Remove these from ``_trident``; missing ones are ignored."""

    @abstractmethod
    def show(self, hidden: str, final: str) -> None:
        """Publish a hidden file. If it is no longer hidden, that was done before."""

    @abstractmethod
    def remove(self, final: str) -> None:
        """Remove a published file, if it is still there."""

    @abstractmethod
    def settle(self) -> None:
        """Make publications and removals durable."""

    @abstractmethod
    def shown(self) -> list[str]:
        """Names of the published files."""

    @abstractmethod
    def open(self, final: str) -> BinaryIO:
        """Open a published file for reading."""

    def errors(self) -> AbstractContextManager[None]:
        """Translates errors of the operating system."""
        return nullcontext()


@dataclass(frozen=True)
class LocalSinkFolder(SinkFolder):
    folder: str

    @property
    def where(self) -> str:
        return self.folder

    def make(self) -> None:
        make_folder(os.path.join(self.folder, META), private=False)

    def noted(self) -> list[str]:
        return os.listdir(os.path.join(self.folder, META))

    def note(self, name: str) -> bytes:
        with open(self._noted(name), "rb") as file:
            return file.read()

    def take(self, name: str, content: bytes) -> bool:
        try:
            return put_if_absent(self._noted(name), content, private=False)
        except FileNotFoundError:
            return False  # so slow that others have cleaned up meanwhile

    def hide(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        write_durably(self._noted(name), write, private=False)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            _unlink(self._noted(name))

    def show(self, hidden: str, final: str) -> None:
        with suppress(FileNotFoundError):  # then it is done
            os.replace(self._noted(hidden), os.path.join(self.folder, final))

    def remove(self, final: str) -> None:
        _unlink(os.path.join(self.folder, final))

    def settle(self) -> None:
        sync_folder(self.folder)

    def shown(self) -> list[str]:
        return os.listdir(self.folder)

    def open(self, final: str) -> BinaryIO:
        return open(os.path.join(self.folder, final), "rb")

    @contextmanager
    def errors(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, self.folder, "the folder of the sink") from error

    def _noted(self, name: str) -> str:
        return os.path.join(self.folder, META, name)


@dataclass(frozen=True)
class ObjectSinkFolder(SinkFolder):
    """A hidden object is the right to publish: a late committer does not find it and changes nothing."""

    place: ObjectPlace

    @property
    def where(self) -> str:
        return self.place.where

    @property
    def _meta(self) -> ObjectStorage:
        prefix = f"{self.place.prefix}/{META}" if self.place.prefix else META
        return ObjectStorage(replace(self.place, prefix=prefix))

    def make(self) -> None:
        self._meta.require_usable()

    def noted(self) -> list[str]:
        return [name for name, _ in self._meta.list("")]

    def note(self, name: str) -> bytes:
        return self._meta.get(name)

    def take(self, name: str, content: bytes) -> bool:
        return self._meta.put_if_absent(name, content)

    def hide(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        self._meta.put(name, write)

    def forget(self, names: Iterable[str]) -> None:
        self._meta.take_away(list(names))

    def show(self, hidden: str, final: str) -> None:
        source = f"{META}/{hidden}"
        with self.place.errors(f"copy {hidden!r}"):
            try:
                self.place.obstore().copy(self.place.store(), source, final)
                if self.place.service.copies_later:
                    self._require_copied(source, final)
            except FileNotFoundError as error:
                self.place.require_bucket(error, f"copy {hidden!r}")
                return  # done before
        self.forget([hidden])

    def _require_copied(self, source: str, final: str) -> None:
        """Until it is, the hidden object must stay. An object whose copy goes on, or has failed, is empty.

        :raises FileNotFoundError: the hidden one is gone: somebody else has done it.
        :raises StoreUnavailableError: not yet.
        """
        client, store = self.place.obstore(), self.place.store()
        size = client.head(store, source)["size"]
        with suppress(FileNotFoundError):
            if client.head(store, final)["size"] == size:
                return
        raise StoreUnavailableError(f"{final!r} is still being copied in {self.where!r}", "Run the task again.")

    def remove(self, final: str) -> None:
        ObjectStorage(self.place).take_away([final])

    def settle(self) -> None:
        """Nothing to do: an answer of the store means that the change is durable."""

    def shown(self) -> list[str]:
        return [name for name, _ in ObjectStorage(self.place).list("") if "/" not in name]

    def open(self, final: str) -> BinaryIO:
        return ObjectStorage(self.place).open(final)


@dataclass(frozen=True)
class HdfsSinkFolder(SinkFolder):
    """A hidden file is published by a rename, which the name node does in one step."""

    place: HdfsPlace

    @property
    def where(self) -> str:
        return self.place.where

    @property
    def _all(self) -> HdfsStorage:
        return HdfsStorage(self.place)

    @property
    def _meta(self) -> HdfsStorage:
        return HdfsStorage(replace(self.place, path=f"{self.place.path}/{META}"))

    def make(self) -> None:
        self._meta.require_usable()

    def noted(self) -> list[str]:
        return list(self._meta.files())

    def note(self, name: str) -> bytes:
        return self._meta.get(name)

    def take(self, name: str, content: bytes) -> bool:
        return self._meta.put_if_absent(name, content)

    def hide(self, name: str, write: Callable[[BinaryIO], None]) -> None:
        self._meta.put(name, write)

    def forget(self, names: Iterable[str]) -> None:
        self._meta.take_away(list(names))

    def show(self, hidden: str, final: str) -> None:
        self._all.move(f"{META}/{hidden}", final)

    def remove(self, final: str) -> None:
        self._all.take_away([final])

    def settle(self) -> None:
        """Nothing to do: an answer means that the name node has logged the change."""

    def shown(self) -> list[str]:
        return list(self._all.files())

    def open(self, final: str) -> BinaryIO:
        return self._all.open(final)


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
