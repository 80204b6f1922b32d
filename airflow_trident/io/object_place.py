"""A place in an object store, by obstore. A bucket has no rename, but a copy inside the store appears whole or not at
all."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, BinaryIO, cast

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, is_of_driver
from airflow_trident.io.object_service import code_and_message, is_behind_the_end
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.place import Place, PlaceEntry, RemotePlace, WriteTo
from airflow_trident.io.seekable import Seekable

_PAGE = 1000
"""Objects in one answer."""
_AT_ONCE = 10
"""Requests."""
_FIRST_BYTES = 4 << 20
"""What opening an object fetches: a smaller one is one request."""


@dataclass(frozen=True)
class ObstorePlace(RemotePlace):
    """`address`: of the bucket, with the prefix of all names."""

    address: ObjectAddress
    is_flat = True

    def below(self, folder: str) -> ObstorePlace:
        prefix = f"{self.address.prefix}/{folder}" if self.address.prefix else folder
        return ObstorePlace(replace(self.address, prefix=prefix))

    def _takes(self, name: str, content: bytes) -> bool:
        client = self.address.obstore()
        with self.address.errors(f"put {name!r}"):
            try:
                client.put(self.address.store(), name, content, mode="create", use_multipart=False)
            except client.exceptions.AlreadyExistsError as error:
                if self.address.service.cure_of(code_and_message(str(error))[0], ""):
                    raise  # one status stands for several conflicts
                return False
        return True

    def _absent(self, name: str) -> StoreUnavailableError:
        """S3 says that another process took it at the same moment, and has not ended yet."""
        return StoreUnavailableError(f"{name!r} is being put into {self.where!r} by another one", "Run the task again.")

    def put(self, name: str, write: WriteTo) -> int:
        buffer = io.BytesIO()
        write(buffer)
        with self.address.errors(f"put {name!r}"):
            self.address.obstore().put(self.address.store(), name, buffer.getbuffer())
        return buffer.getbuffer().nbytes

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        client = self.address.obstore()
        with self.address.errors(f"read {name!r}"):
            if begin == 0 and end is None:
                return bytes(client.get(self.address.store(), name).bytes())
            if end is not None and end <= begin:
                return b""
            try:
                options = {"range": {"offset": begin} if end is None else (begin, end)}
                return bytes(client.get(self.address.store(), name, options=options).bytes())
            except client.exceptions.GenericError as error:
                if not is_behind_the_end(error):
                    raise
                return b""

    def open(self, name: str, *, whole: bool = True) -> BinaryIO:
        return super().open(name) if whole else cast("BinaryIO", ObjectReader(self.address, name, _FIRST_BYTES))

    def list(self, folder: str = "") -> Iterator[PlaceEntry]:
        with self.address.errors(f"list {folder!r}"):
            for page in self.address.obstore().list(self.address.store(), folder, chunk_size=_PAGE):
                yield from (PlaceEntry(meta["path"], meta["size"]) for meta in page)

    def names(self, folder: str = "", after: str = "") -> Sequence[str]:
        begin = len(f"{folder}/") if folder else 0
        names = tuple(dict.fromkeys(entry.name[begin:].split("/", 1)[0] for entry in self.list(folder)))
        if not names:  # a sink would begin anew
            self.address.require_store(f"list {folder!r}")
        return names

    def stat(self, name: str) -> PlaceEntry | None:
        doing = f"look at {name!r}"
        with self.address.errors(doing):
            try:
                return PlaceEntry(name, self.address.obstore().head(self.address.store(), name)["size"])
            except FileNotFoundError as error:
                self.address.require_bucket(error, doing)
                return None

    def show(self, hidden: str, name: str) -> bool:
        """The hidden object is the right to show it: who comes late does not find it, and changes nothing."""
        doing = f"copy {hidden!r}"
        with self.address.errors(doing):
            try:
                self.address.obstore().copy(self.address.store(), hidden, name)
            except FileNotFoundError as error:
                self.address.require_bucket(error, doing)
                return False
        if self.address.service.copies_later and not self._is_copied(hidden, name):
            return False
        self.delete([hidden])
        return True

    def _is_copied(self, hidden: str, name: str) -> bool:
        """False: the hidden object is gone, so somebody else has done it. Until it is copied, it must stay. An object
        whose copy goes on, or has failed, is empty.

        :raises StoreUnavailableError: not yet.
        """
        source = self.stat(hidden)
        if source is None:
            return False
        shown = self.stat(name)
        if shown is None or shown.size != source.size:
            raise StoreUnavailableError(f"{name!r} is still being copied in {self.where!r}", "Run the task again.")
        return True

    def copy_to(self, name: str, target: Place, target_name: str) -> bool:
        """The store does not copy between two stores, or what is too large for one request, or who may read here may
        not write there."""
        if not isinstance(target, ObstorePlace):
            return False
        address, other = self.address.resolved(), target.address.resolved()
        if address.home != other.home or address.service.copies_later:
            return False
        client, store = address.obstore(), replace(address, prefix="").store()
        try:
            client.copy(store, address.in_bucket(name), other.in_bucket(target_name))
        except FileNotFoundError as error:
            address.require_bucket(error, f"copy {name!r}")
            raise
        except BaseException as error:
            if not is_of_driver(error):
                raise
            return False  # if nothing works there, writing says why
        return True

    def delete(self, names: Sequence[str]) -> None:
        page, doing = self.address.service.deletes_at_once, "delete objects"
        with self.address.errors(doing):
            for begin in range(0, len(names), page):
                try:
                    self.address.obstore().delete(self.address.store(), [*names[begin : begin + page]])
                except FileNotFoundError as error:  # Azure says so of some, and has deleted the others
                    self.address.require_bucket(error, doing)
                    if self.address.service.deletes_one_by_one:
                        self._delete_each(names[begin : begin + page])

    def _delete_each(self, names: Sequence[str]) -> None:
        """One call for each, because the first name that is not there would end the call for all."""

        def delete(name: str) -> None:
            with suppress(FileNotFoundError):
                self.address.obstore().delete(self.address.store(), name)

        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names))) as pool:
            for _ in pool.map(delete, names):
                pass

    def check(self) -> None:
        """One request if it was checked before. A store that ignores conditions takes the name twice."""
        _require_conditions(self, os.getpid())


@lru_cache(maxsize=16)
def _require_conditions(place: ObstorePlace, _process: int) -> None:
    """Runs once per process, if it succeeds."""
    if place.takes_twice():
        raise ConfigurationError(
            f"{place.where!r} takes a name twice: this object store ignores the condition of a write, so that two "
            "attempts could both publish",
            place.address.service.conditions,
        )


class ObjectReader(Seekable):
    """Each `read` is one request, but of the beginning, which opening has fetched."""

    def __init__(self, address: ObjectAddress, name: str, first_bytes: int) -> None:
        self._address, self._name = address, name
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
        with self._address.errors(f"read {self._name!r}", "read"):
            try:
                got = self._get(0, size)
                return bytes(got.bytes()), got.meta["size"]
            except self._address.obstore().exceptions.GenericError as error:
                if not is_behind_the_end(error):
                    raise
                return b"", 0

    def _fetched(self, begin: int, end: int) -> bytes:
        with self._address.errors(f"read {self._name!r}", "read"):
            return bytes(self._get(begin, end).bytes())

    def _get(self, begin: int, end: int) -> Any:
        return self._address.obstore().get(self._address.store(), self._name, options={"range": (begin, end)})
