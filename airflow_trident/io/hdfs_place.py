"""A place in an HDFS, by WebHDFS. hdfs-native is to replace it, for Kerberos and name services.

A file gets its content under a hidden name, which only one request ever uses, and is closed. Then it is renamed. The
name node does that in one step and never over another file, so no reader sees half a file under a name that counts.
"""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io.hdfs import HdfsAddress
from airflow_trident.io.place import PlaceEntry, RemotePlace, WriteTo
from airflow_trident.io.webhdfs import FileStatus, WebHdfs
from airflow_trident.io.webhdfs_errors import RemoteException, Unreachable

UNFINISHED = ".trident-unfinished-"
LEFT_DAYS = 7
"""What is hidden for so long is deleted. A writer that was only stopped finds that and fails; its task writes again."""
_PRIVATE = "700"


@dataclass(frozen=True)
class WebHdfsPlace(RemotePlace):
    """A folder of an HDFS. No name in HDFS has a colon: it and a percent sign are written as ``%3A`` and ``%25``."""

    address: HdfsAddress
    is_flat = False

    def below(self, folder: str) -> WebHdfsPlace:
        return WebHdfsPlace(replace(self.address, path=f"{self.address.path}/{folder}"))

    def _takes(self, name: str, content: bytes, *, anew: bool = False) -> bool:
        """
        :param anew: an earlier content of the name is replaced.
        """
        tried, taken = list[str](), False

        def hidden() -> str:
            tried.append(self._hidden(name))
            return tried[-1]

        with self.address.errors(f"put {name!r}"):
            client = self.address.client()
            client.create(hidden, content)
            try:
                taken = client.rename(tried[-1], self._path(name), over=anew)
            finally:
                with suppress(RemoteException, Unreachable):
                    for hidden_path in tried[:-1] if taken else tried:
                        client.delete(hidden_path)
        return taken

    def _absent(self, name: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{name!r} was put into {self.where!r} and is not there: another process deletes its folder",
            "Allow no other process to delete there, and run the task again.",
        )

    def put(self, name: str, write: WriteTo) -> int:
        buffer = io.BytesIO()
        write(buffer)
        content = buffer.getvalue()
        if not self._takes(name, content, anew=True) and not self._holds(name, content):
            self.delete([name])  # an HttpFS renames over nothing
            self._takes(name, content)
        return len(content)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= begin:
            return b""
        with self.address.errors(f"read {name!r}"):
            try:
                return self.address.client().read(self._path(name), begin, None if end is None else end - begin)
            except RemoteException as error:
                if not error.is_behind_the_end:
                    raise
                return b""

    def list(self, folder: str = "") -> Iterator[PlaceEntry]:
        """In the order of the names in each folder."""
        with self.address.errors(f"list {folder!r}"):
            yield from self._below(self.address.client(), folder)

    def _below(self, client: WebHdfs, folder: str) -> Iterator[PlaceEntry]:
        for status in self._children(client, folder):
            name = "/".join(part for part in (folder, _given(status.name)) if part)
            if status.is_file:
                yield PlaceEntry(name, status.size)
            else:
                yield from self._below(client, name)

    def names(self, folder: str = "", after: str = "") -> Sequence[str]:
        with self.address.errors(f"list {folder!r}"):
            return [_given(status.name) for status in self._children(self.address.client(), folder, _written(after))]

    def _children(self, client: WebHdfs, folder: str, after: str = "") -> Iterator[FileStatus]:
        """None of a file, and none if there is no such folder."""
        with suppress(FileNotFoundError):
            for status in client.children(self._path(folder), after):
                if status.name and not status.name.startswith(UNFINISHED):
                    yield status

    def stat(self, name: str) -> PlaceEntry | None:
        with suppress(FileNotFoundError), self.address.errors(f"look at {name!r}"):
            status = self.address.client().status(self._path(name))
            return PlaceEntry(name, status.size) if status.is_file else None
        return None

    def show(self, hidden: str, name: str) -> bool:
        """By a rename, which the name node does in one step."""
        with self.address.errors(f"rename {hidden!r}"):
            client, old, new = self.address.client(), self._path(hidden), self._path(name)
            if client.rename(old, new, over=True):
                return True
            try:
                client.status(old)
            except FileNotFoundError:
                return False
            client.delete(new)  # an HttpFS renames over nothing
            return client.rename(old, new)

    def delete(self, names: Sequence[str]) -> None:
        with self.address.errors("delete files"):
            client = self.address.client()
            for name in names:
                client.delete(self._path(name))

    def sweep(self, folder: str = "") -> None:
        """One request if nothing is there. The clocks of this machine and of the name node may differ by hours."""
        before_ms = (time.time() - LEFT_DAYS * 86_400) * 1_000
        with suppress(TridentError, FileNotFoundError), self.address.errors(f"clean {folder!r}"):
            client = self.address.client()
            hidden = takewhile(
                lambda status: status.name.startswith(UNFINISHED), client.children(self._path(folder), UNFINISHED)
            )
            for status in list(hidden):
                if status.modified_ms < before_ms:
                    client.delete(f"{self._path(folder)}/{status.name}")

    def check(self) -> None:
        """No request if it was checked before in this process. The folder is made, for its user alone, if missing; if
        not, it is swept."""
        _require_usable(self, os.getpid())

    def _path(self, name: str) -> str:
        return "/" + "/".join(part for part in (self.address.path, _written(name)) if part)

    def _hidden(self, name: str) -> str:
        return f"{self._path(name).rpartition('/')[0]}/{UNFINISHED}{uuid.uuid4().hex}"


@lru_cache(maxsize=16)
def _require_usable(place: WebHdfsPlace, _process: int) -> None:
    """Runs once per process, if it succeeds."""
    with place.address.errors("make the folder"):
        above, _, _ = f"/{place.address.path}".rpartition("/")
        if above:
            place.address.client().make_folder(above)
        place.address.client().make_folder(f"/{place.address.path}", _PRIVATE)
    if place.takes_twice():
        raise ConfigurationError(
            f"{place.where!r} takes a name twice: what answers there renames over other files, so that two attempts "
            "could both publish",
            "Use the WebHDFS of HDFS itself, or an HttpFS of it.",
        )
    place.sweep()


def _written(name: str) -> str:
    return name.replace("%", "%25").replace(":", "%3A")


def _given(name: str) -> str:
    return name.replace("%3A", ":").replace("%25", "%")
