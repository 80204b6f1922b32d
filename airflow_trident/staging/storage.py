"""The storage of an address: a folder, a place in an object store, or one in an HDFS."""

from __future__ import annotations

import errno
import io
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import BinaryIO

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.hdfs import HdfsPlace, is_hdfs_uri
from airflow_trident.io.object_service import is_behind_the_end, said
from airflow_trident.io.object_stores import ObjectPlace, StoredObject, is_object_uri
from airflow_trident.io.private_files import require_local_path
from airflow_trident.staging.hdfs_storage import HdfsStorage
from airflow_trident.staging.verbs import (
    PROBE,
    STAGING,
    Keeps,
    Storage,
    WriteTo,
    make_folder,
    nothing_is_kept,
    put_if_absent,
    storage_error,
    sync_folder,
    write_durably,
)

_PAGE = 1000
"""Objects in one answer."""
_AT_ONCE = 10
"""Requests."""


def storage_at(root: str, what: str = STAGING) -> Storage:
    """The storage of a folder, or of a place in an object store or in an HDFS; opens nothing.

    :param what: what is stored there, as errors name it.
    :raises ConfigurationError: `root` is none of these.
    """
    if is_hdfs_uri(root):
        return HdfsStorage(HdfsPlace.parse(what, root))
    if is_object_uri(root) and not root.strip().lower().startswith("file:"):
        return ObjectStorage(ObjectPlace.parse(what, root))
    return PosixStorage(root, what)


def absolute_root(root: str) -> str:
    """A folder as its absolute path; a URI unchanged.

    :raises ConfigurationError: `root` is neither.
    """
    storage = storage_at(root)
    return storage.folder if isinstance(storage, PosixStorage) else root.strip()


@contextmanager
def temporary_root(root: str, name: str) -> Iterator[str]:
    """A new root below `root`, visible to all who see `root`; removed at the end of the block."""
    storage, own = storage_at(root), f"{name}{uuid.uuid4().hex}"
    try:
        yield f"{absolute_root(root).rstrip('/')}/{own}"
    finally:
        storage.delete(own)


@dataclass(frozen=True)
class PosixStorage(Storage):
    """A folder. `root` may begin with ``~``.

    For speed, the two lowest folders of a name are made without a sync: `put_if_absent` syncs them, whoever made them.
    """

    root: str
    what: str = STAGING
    is_local = True

    @property
    def folder(self) -> str:
        return os.path.abspath(os.path.expanduser(require_local_path(self.what, self.root)))

    @property
    def where(self) -> str:
        return self.folder

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def sizes(self, folder: str, names: Iterable[str]) -> dict[str, int]:
        """Asks for one file at a time, because the listing of a file server may be some seconds old."""
        found = {}
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError), self._errors(may_miss=True):
                found[name] = os.path.getsize(self.at(name))
        return found

    def put_if_absent(self, name: str, content: bytes) -> bool:
        with self._errors():
            path = self.at(name)
            folder = self._folder_of(path)
            absent = put_if_absent(path, content)
            for above in (os.path.dirname(folder), os.path.dirname(os.path.dirname(folder))):
                sync_folder(above)  # whoever made the two lowest folders may be dead
        return absent or self.get(name) == content

    def put(self, name: str, write: WriteTo) -> int:
        with self._errors():
            path = self.at(name)
            self._folder_of(path)
            return write_durably(path, write, name_too=False)

    def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        with self._errors(may_miss=True), self.open(name) as file:
            file.seek(start)
            return file.read(-1 if size is None else size)

    def open(self, name: str) -> BinaryIO:
        try:
            return open(self.at(name), "rb")
        except NotADirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.at(name)) from error

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        root = self.folder
        with self._errors():
            for above, _, names in os.walk(os.path.join(root, folder), onerror=_unless_gone):
                for name in names:
                    path = os.path.join(above, name)
                    try:
                        size = os.path.getsize(path)
                    except FileNotFoundError:
                        continue
                    yield os.path.relpath(path, root), size

    def delete(self, folder: str, first: str = "", end: str = "", keeps: Keeps = nothing_is_kept) -> int:
        try:
            parts = os.listdir(self.at(folder))
        except OSError:
            return 0
        gone = [part for part in parts if first <= part and (not end or part < end) and not keeps(part)]
        for part in gone:
            shutil.rmtree(os.path.join(self.at(folder), part), ignore_errors=True)
            with suppress(OSError):
                os.unlink(os.path.join(self.at(folder), part))
        if not first and not end:
            with suppress(OSError):
                os.rmdir(self.at(folder))
        return len(gone)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(self.at(name))

    def _folder_of(self, path: str) -> str:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            make_folder(os.path.dirname(os.path.dirname(folder)))
            make_folder(folder, durably=False)
        return folder

    @contextmanager
    def _errors(self, *, may_miss: bool = False) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if may_miss and isinstance(error, FileNotFoundError | NotADirectoryError):
                raise
            raise storage_error(error, self.folder, self.what) from error


def _unless_gone(error: OSError) -> None:
    """A folder that cannot be listed is not an empty one. One that does not exist is, and so is what is no folder."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@dataclass(frozen=True)
class ObjectStorage(Storage):
    """A place in an object store."""

    place: ObjectPlace
    is_local = False

    @property
    def where(self) -> str:
        return self.place.where

    def resolved(self) -> Storage:
        return ObjectStorage(self.place.resolved())

    def stored(self, name: str) -> StoredObject:
        return StoredObject(place=self.place, name=name)

    def put_if_absent(self, name: str, content: bytes) -> bool:
        try:
            return self.takes(name, content) or self._holds(name, content)
        except StoreUnavailableError:  # perhaps only its answer was lost
            with suppress(TridentError, FileNotFoundError):
                if self.get(name) == content:
                    return True
            raise

    def takes(self, name: str, content: bytes) -> bool:
        """False: the name is taken, perhaps by an earlier try of this call whose answer was lost."""
        client = self.place.obstore()
        with self.place.errors(f"put {name!r}"):
            try:
                client.put(self.place.store(), name, content, mode="create", use_multipart=False)
            except client.exceptions.AlreadyExistsError as error:
                if self.place.service.cure_of(said(str(error))[0], ""):
                    raise  # one status stands for several conflicts
                return False
        return True

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.get(name) == content
        except FileNotFoundError:  # S3 says that somebody took it at the same moment, and has not ended yet
            raise StoreUnavailableError(
                f"{name!r} is being put into {self.where!r} by another one", "Run the task again."
            ) from None

    def put(self, name: str, write: WriteTo) -> int:
        buffer = io.BytesIO()
        write(buffer)
        with self.place.errors(f"put {name!r}"):
            self.place.obstore().put(self.place.store(), name, buffer.getbuffer())
        return buffer.getbuffer().nbytes

    def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        client = self.place.obstore()
        with self.place.errors(f"read {name!r}"):
            if start == 0 and size is None:
                return bytes(client.get(self.place.store(), name).bytes())
            if size == 0:
                return b""
            try:
                options = {"range": {"offset": start} if size is None else (start, start + size)}
                return bytes(client.get(self.place.store(), name, options=options).bytes())
            except client.exceptions.GenericError as error:
                if not is_behind_the_end(error):
                    raise
                return b""

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        with self.place.errors(f"list {folder!r}"):
            for page in self.place.obstore().list(self.place.store(), folder, chunk_size=_PAGE):
                yield from ((one["path"], one["size"]) for one in page)

    def delete(self, folder: str, first: str = "", end: str = "", keeps: Keeps = nothing_is_kept) -> int:
        gone, parts, begin = list[str](), set[str](), len(f"{folder}/") if folder else 0
        with suppress(TridentError):
            for name, _ in self.list(folder):
                part = name[begin:].split("/", 1)[0]
                if end and part >= end:
                    break
                if part >= first and not keeps(part):
                    gone.append(name)
                    parts.add(part)
            self.take_away(gone)
        return len(parts)

    def remove(self, names: Sequence[str]) -> None:
        with suppress(TridentError):
            self.take_away(names)

    def take_away(self, names: Sequence[str]) -> None:
        """As :meth:`remove`, and errors are raised. That a name is not there is none."""
        page = self.place.service.deletes_at_once
        with self.place.errors("delete objects"):
            for begin in range(0, len(names), page):
                try:
                    self.place.obstore().delete(self.place.store(), list(names[begin : begin + page]))
                except FileNotFoundError as error:  # Azure says so of some, and has deleted the others
                    self.place.require_bucket(error, "delete objects")
                    if self.place.service.deletes_one_by_one:
                        self._take_each_away(names[begin : begin + page])

    def _take_each_away(self, names: Sequence[str]) -> None:
        """One call for each, because the first name that is not there would end the call for all."""

        def take(name: str) -> None:
            with suppress(FileNotFoundError):
                self.place.obstore().delete(self.place.store(), name)

        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names))) as pool:
            for _ in pool.map(take, names):
                pass

    def require_usable(self) -> None:
        """One request if it was checked before. A store that ignores conditions takes the name twice."""
        _require_conditions(self, os.getpid())


@lru_cache(maxsize=16)
def _require_conditions(storage: ObjectStorage, _process: int) -> None:
    """Runs once per process, if it succeeds."""
    if storage.takes(PROBE, b"") and storage.takes(PROBE, b""):
        raise ConfigurationError(
            f"{storage.where!r} takes a name twice: this object store ignores the condition of a write, so that two "
            "attempts could both publish",
            storage.place.service.conditions,
        )
