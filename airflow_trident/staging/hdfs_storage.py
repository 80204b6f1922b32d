"""A storage in an HDFS, by its REST interface.

A file gets its content under a hidden name, which only one request ever uses, and is closed; then it is renamed, which
the name node does in one step and never over another file. So nobody sees half a file under a name that counts.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.hdfs import HdfsPlace
from airflow_trident.io.webhdfs import FileStatus, WebHdfs
from airflow_trident.io.webhdfs_errors import RemoteException, Unreachable
from airflow_trident.staging.verbs import PROBE, Keeps, Storage, WriteTo, nothing_is_kept

UNFINISHED = ".trident-unfinished-"
LEFT_DAYS = 7
"""What is hidden for so long is deleted. A writer that was only stopped finds that and fails; its task writes again."""
_PRIVATE = "700"


@dataclass(frozen=True)
class HdfsStorage(Storage):
    """A folder of an HDFS. No name in HDFS has a colon: it and a percent sign are written as ``%3A`` and ``%25``."""

    place: HdfsPlace
    is_local = False

    @property
    def where(self) -> str:
        return self.place.where

    def resolved(self) -> Storage:
        return HdfsStorage(self.place.resolved())

    def put_if_absent(self, name: str, content: bytes) -> bool:
        try:
            return self.takes(name, content) or self._holds(name, content)
        except StoreUnavailableError:  # perhaps only its answer was lost
            with suppress(TridentError, FileNotFoundError):
                if self.get(name) == content:
                    return True
            raise

    def takes(self, name: str, content: bytes, *, anew: bool = False) -> bool:
        """False: the name is taken, perhaps by an earlier try of this call whose answer was lost.

        :param anew: an earlier content of the name is replaced.
        """
        tried, taken = list[str](), False

        def hidden() -> str:
            tried.append(self._hidden(name))
            return tried[-1]

        with self.place.errors(f"put {name!r}"):
            client = self.place.client()
            client.create(hidden, content)
            try:
                taken = client.rename(tried[-1], self._path(name), over=anew)
            finally:
                with suppress(RemoteException, Unreachable):
                    for left in tried[:-1] if taken else tried:
                        client.delete(left)
        return taken

    def _holds(self, name: str, content: bytes) -> bool:
        try:
            return self.get(name) == content
        except FileNotFoundError:
            raise StoreUnavailableError(
                f"{name!r} was put into {self.where!r} and is not there: somebody deletes its folder",
                "Let nobody else delete there, and run the task again.",
            ) from None

    def put(self, name: str, write: WriteTo) -> int:
        buffer = io.BytesIO()
        write(buffer)
        content = buffer.getvalue()
        if not self.takes(name, content, anew=True) and not self._holds(name, content):
            self.remove([name])  # an HttpFS renames over nothing
            self.takes(name, content)
        return len(content)

    def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        if size == 0:
            return b""
        with self.place.errors(f"read {name!r}"):
            try:
                return self.place.client().read(self._path(name), start, size)
            except RemoteException as error:
                if not error.is_behind_the_end:
                    raise
                return b""

    def uri(self, name: str) -> str:
        """As Hadoop and Spark name it, without the connection."""
        return f"{self.place.root}{self._path(name)}"

    def list(self, folder: str) -> Iterator[tuple[str, int]]:
        """In the order of the names in each folder."""
        with self.place.errors(f"list {folder!r}"):
            yield from self._below(self.place.client(), folder)

    def _below(self, client: WebHdfs, folder: str) -> Iterator[tuple[str, int]]:
        for one in self._children(client, folder):
            name = "/".join(part for part in (folder, _given(one.name)) if part)
            if one.is_file:
                yield name, one.size
            else:
                yield from self._below(client, name)

    def _children(self, client: WebHdfs, folder: str, after: str = "", *, hidden: bool = False) -> Iterator[FileStatus]:
        """None of a file, and none if there is no such folder."""
        with suppress(FileNotFoundError):
            for one in client.children(self._path(folder), after):
                if one.name and (hidden or not one.name.startswith(UNFINISHED)):
                    yield one

    def delete(self, folder: str, first: str = "", end: str = "", keeps: Keeps = nothing_is_kept) -> int:
        parts = 0
        with suppress(TridentError), self.place.errors(f"delete below {folder!r}"):
            client = self.place.client()
            for one in list(self._children(client, folder, _written(first[:-1]), hidden=True)):
                part = _given(one.name)
                if end and part >= end:
                    break
                if part >= first and not keeps(part):
                    client.delete(f"{self._path(folder)}/{one.name}")
                    parts += not one.name.startswith(UNFINISHED)
            if not first and not end:
                client.delete(self._path(folder))
        return parts

    def sweep(self, folder: str = "") -> None:
        """One request if nothing is there. The clocks of this machine and of the name node may differ by hours."""
        before_ms = (time.time() - LEFT_DAYS * 86_400) * 1_000
        with suppress(TridentError, FileNotFoundError), self.place.errors(f"clean {folder!r}"):
            client = self.place.client()
            hidden = takewhile(
                lambda one: one.name.startswith(UNFINISHED), client.children(self._path(folder), UNFINISHED)
            )
            for one in list(hidden):
                if one.modified_ms < before_ms:
                    client.delete(f"{self._path(folder)}/{one.name}")

    def remove(self, names: Sequence[str]) -> None:
        with suppress(TridentError):
            self.take_away(names)

    def take_away(self, names: Sequence[str]) -> None:
        """As :meth:`remove`, and errors are raised. That a name is not there is none."""
        with self.place.errors("delete files"):
            client = self.place.client()
            for name in names:
                client.delete(self._path(name))

    def files(self) -> Sequence[str]:
        """The names of files right in the folder."""
        with self.place.errors("list the folder"):
            return [_given(one.name) for one in self._children(self.place.client(), "") if one.is_file]

    def move(self, name: str, target: str) -> None:
        """In one step, also over a file that is there. Nothing happens if there is no such file."""
        with self.place.errors(f"rename {name!r}"):
            client, old, new = self.place.client(), self._path(name), self._path(target)
            if client.rename(old, new, over=True):
                return
            with suppress(FileNotFoundError):
                client.status(old)
                client.delete(new)  # an HttpFS renames over nothing
                client.rename(old, new)

    def require_usable(self) -> None:
        """No request if it was checked before in this process. The folder is made, for its user alone, if missing; if
        not, it is swept."""
        _require_usable(self, os.getpid())

    def _path(self, name: str) -> str:
        return "/" + "/".join(part for part in (self.place.path, _written(name)) if part)

    def _hidden(self, name: str) -> str:
        return f"{self._path(name).rpartition('/')[0]}/{UNFINISHED}{uuid.uuid4().hex}"


@lru_cache(maxsize=16)
def _require_usable(storage: HdfsStorage, _process: int) -> None:
    """Runs once per process, if it succeeds."""
    with storage.place.errors("make the folder"):
        above, _, _ = f"/{storage.place.path}".rpartition("/")
        if above:
            storage.place.client().make_folder(above)
        storage.place.client().make_folder(f"/{storage.place.path}", _PRIVATE)
    if storage.takes(PROBE, b"") and storage.takes(PROBE, b""):
        raise ConfigurationError(
            f"{storage.where!r} takes a name twice: what answers there renames over other files, so that two attempts "
            "could both publish",
            "Use the WebHDFS of HDFS itself, or an HttpFS of it.",
        )
    storage.sweep()


def _written(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def _given(name: str) -> str:
    return name.replace("%3A", ":").replace("%25", "%")
