"""Objects of a store, for a FileSpout.

An object is identified by name, size and ETag, and also by its version if the bucket keeps versions: then a repeated
transaction reads what it recorded, even if the object was replaced. Each request for content contains these, so no
other request is needed before or after.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any, BinaryIO, cast

from airflow_trident.errors import ConfigurationError, SourceUnavailableError, StoreUnavailableError
from airflow_trident.io.object_service import code_and_message
from airflow_trident.io.object_stores import ObjectAddress
from airflow_trident.io.seekable import RangedFile
from airflow_trident.spouts.files.contents import (
    RecordedFile,
    changed,
    gone,
    nothing_to_take,
    still_written,
    version_gone,
)
from airflow_trident.spouts.files.file_source import FileSource
from airflow_trident.spouts.files.listing import FoundFile, Listing, by_place, is_meant, plain_parts, plain_text_of

AHEAD_BYTES = 4 << 20
"""The least that is read at a time: a smaller object is one request."""
_THREADS = 8
_PAGE = 1000
_NO_NAMES = ("", ".", "..")
_ITS_CONTENT = "its content is another"
_A_DELETION = "MethodNotAllowed"
"""S3's answer where the version that is asked for is that of a deletion. Where versions were switched off, a deletion
takes the place of a version that was recorded."""


@dataclass(frozen=True)
class ObjectFiles(FileSource):
    """`parts`: the pattern below the place. A path without a pattern means the objects below it."""

    place: ObjectAddress
    parts: tuple[str, ...]
    written: str
    is_local = False

    @classmethod
    def parse(cls, subject: str, uri: str, recursive: bool) -> ObjectFiles:
        """:raises ConfigurationError: it is no place in an object store, or it contains keys."""
        scheme, _, rest = uri.strip().partition("://")
        bucket, *names = rest.rstrip("/").split("/")
        plain = plain_parts(names)
        place = ObjectAddress.parse(subject, f"{scheme}://{'/'.join([bucket, *names[:plain]])}")
        return cls(place, tuple(names[plain:]) or (("**", "*") if recursive else ("*",)), uri.strip())

    def __getstate__(self) -> dict[str, Any]:
        """Pickled with the connection's settings: executors have no connections."""
        return {**self.__dict__, "place": self.place.resolved(required=False)}

    @property
    def text(self) -> str:
        return self.written

    def base(self) -> str:
        return self.place.where

    def list(self) -> Listing:
        """
        :raises ConfigurationError: the bucket does not exist, this user may not list it, or the path is an object.
        """
        begun = time.monotonic_ns()
        files = sorted(self.behind(""), key=by_place)
        if not files:
            self._require_folder()
        return Listing(tuple(files), time.monotonic_ns() - begun)

    def behind(self, last_name: str) -> Iterator[FoundFile]:
        """The objects whose names sort after `last_name`, in the order of names. Each page is requested when needed.

        Objects without content are left out: such an object may stand for a folder, and their names do not differ.

        :raises ConfigurationError: the store lists in another order.
        """
        if self.place.service.lists_by_folder:
            yield from self._sorted_behind(last_name)
            return
        begin, last = plain_text_of(self.parts[0]), ""
        before = max(last_name, begin[:-1] if begin[:-1] not in _NO_NAMES else "") or None
        with self._asking("list the objects"):
            for page in self.place.obstore().list(self.place.store(), offset=before, chunk_size=_PAGE):
                for meta in page:
                    name: str = meta["path"]
                    if name < last or (name == last and meta["size"]):
                        raise (_ends_in_slash if f"{name}/" > last else _out_of_order)(self.base(), name, last)
                    last = name
                    if name > begin and not name.startswith(begin):
                        return
                    if meta["size"] and is_meant(name.split("/"), self.parts):
                        yield _found_file(meta)

    def _sorted_behind(self, last_name: str) -> Iterator[FoundFile]:
        """All of them are listed, because ``a-b`` may come after ``a/b``: the order by names shows no end."""
        with self._asking("list the objects"):
            pages = self.place.obstore().list(self.place.store(), chunk_size=_PAGE)
            metas = [meta for page in pages for meta in page if meta["size"] and meta["path"] > last_name]
        metas.sort(key=itemgetter("path"))
        yield from (_found_file(meta) for meta in metas if is_meant(meta["path"].split("/"), self.parts))

    def _require_folder(self) -> None:
        above, _, name = self.place.prefix.rpartition("/")
        parent = replace(self.place, prefix=above)
        with self._asking(f"look at {name!r}" if name else "list the objects"):
            try:
                is_object = bool(name and self.place.obstore().head(parent.store(), name)["size"])
            except FileNotFoundError as error:
                self.place.require_bucket(error, f"look at {name!r}")
                return
            self.place.require_store("list the objects")
        if not is_object:
            return
        address = self.place.where
        raise ConfigurationError(
            f"{address!r} is an object, and the path of a FileSpout is a folder or a pattern",
            f"Write a pattern that means it: {f'{address[:-1]}[{address[-1]}]'!r}.",
        )

    def content_of(self, base: str, file: FoundFile) -> str:
        return file.etag

    def is_as_listed(self, base: str, file: FoundFile) -> bool:
        """Always true, without a request: if the content is another than listed, the store refuses to give it."""
        return True

    def claimed(self, base: str, files: Sequence[FoundFile], digest_bytes: int) -> Sequence[RecordedFile]:
        """Listings have no versions. So the newest object is looked at, and all others if it has a version."""
        newest = max(files, key=lambda file: file.place)
        version = self._version(base, newest)
        if not version:
            return [_recorded(file) for file in files]
        with ThreadPoolExecutor(max_workers=min(_THREADS, len(files))) as pool:
            versions = pool.map(lambda file: version if file is newest else self._version(base, file), files)
            return [
                replace(_recorded(file), version=version_id) for file, version_id in zip(files, versions, strict=True)
            ]

    def _version(self, base: str, file: FoundFile) -> str:
        """The version of an object; "" if the bucket keeps no versions.

        :raises SourceUnavailableError: the object is another than the listed one.
        """
        location = f"{base}/{file.path}"
        with self._asking(f"look at {file.path!r}"):
            try:
                status = self.place.obstore().head(self.place.store(), file.path)
            except FileNotFoundError as error:
                self.place.require_bucket(error, f"look at {file.path!r}")
                if self._is_listed(file.path, file.etag):
                    raise _ends_in_slash(base, file.path) from None
                raise still_written(location) from None
        if (status["size"], _etag(status)) != (file.size, file.etag):
            raise still_written(location)
        return status["version"] or ""

    def _is_listed(self, name: str, etag: str) -> bool:
        """Is there an object of this name, also one whose real name goes on with a slash?"""
        with self._asking("list the objects"):
            pages = self.place.obstore().list(self.place.store(), offset=name[:-1], chunk_size=_PAGE)
            page: list[Any] = next(iter(pages), [])
        return any(meta["path"] == name and _etag(meta) == etag for meta in page)

    def as_they_are(self, base: str, files: Sequence[RecordedFile], digest_bytes: int) -> Sequence[RecordedFile]:
        return [self._as_it_is(f"{base}/{file.path}", file) for file in files]

    def _as_it_is(self, location: str, file: RecordedFile) -> RecordedFile:
        with self._asking(f"look at {file.path!r}"):
            try:
                status = self.place.obstore().head(self.place.store(), file.path)
            except FileNotFoundError as error:
                self.place.require_bucket(error, f"look at {file.path!r}")
                raise nothing_to_take(location) from None
        return replace(_recorded(_found_file(status)), version=status["version"] or "")

    def looked_at(self, location: str, file: RecordedFile) -> RecordedFile:
        return file

    def is_as_recorded(self, file: RecordedFile) -> bool:
        """Is the content that the object has now the recorded one, by its ETag?"""
        with self._asking(f"look at {file.path!r}"):
            try:
                status = self.place.obstore().head(self.place.store(), file.path)
            except FileNotFoundError as error:
                self.place.require_bucket(error, f"look at {file.path!r}")
                return False
        return (status["size"], _etag(status)) == (file.size, file.digest)

    @contextmanager
    def opened(self, location: str, file: RecordedFile) -> Iterator[BinaryIO]:
        fetch = partial(self.range_of, location, file)
        yield cast("BinaryIO", RangedFile(file.size, fetch, AHEAD_BYTES))

    def range_of(self, location: str, file: RecordedFile, begin: int, end: int) -> bytes:
        """The bytes [begin, end) of a recorded object: of its version, or of an object in its place with its ETag.

        :raises SourceChangedError: the object is gone, or has other content.
        """
        client = self.place.obstore()
        options: dict[str, Any] = {"range": (begin, end)}
        if file.digest:
            options["if_match"] = file.digest
        if file.version:
            options["version"] = file.version
        with self._asking(f"read {file.path!r}"):
            try:
                content = bytes(self._got(file, options).bytes())
            except (client.exceptions.PreconditionError, FileNotFoundError) as error:
                if file.version and "version" not in options and not self.place.service.always_versions:
                    raise version_gone(location) from None
                missing = isinstance(error, FileNotFoundError)
                if isinstance(error, FileNotFoundError):
                    self.place.require_bucket(error, f"read {file.path!r}")
                if missing and file.digest and self._is_listed(file.path, file.digest):
                    raise _ends_in_slash(self.base(), file.path) from None
                raise (gone(location) if missing else changed(location, _ITS_CONTENT, "its content")) from None
        if len(content) != end - begin:
            raise changed(location, f"{file.size} bytes then, fewer now", "its content")
        return content

    def _got(self, file: RecordedFile, options: dict[str, Any]) -> Any:
        """If the version is gone, it leaves the options, and the object that is there now is asked for: its ETag tells
        whether it has the same content."""
        client, store = self.place.obstore(), self.place.store()
        try:
            return client.get(store, file.path, options=options)
        except (client.exceptions.BaseError, FileNotFoundError) as error:
            gone_as = isinstance(error, FileNotFoundError) or code_and_message(str(error))[0] == _A_DELETION
            if not (gone_as and options.pop("version", "") and "if_match" in options):
                raise
        return client.get(store, file.path, options=options)

    @contextmanager
    def _asking(self, doing: str) -> Iterator[None]:
        try:
            with self.place.errors(doing, rights="list and read"):
                yield
        except StoreUnavailableError as error:
            raise SourceUnavailableError(error.message, error.cure) from None


def _found_file(meta: Any) -> FoundFile:
    """A listed object. Its time is rounded to microseconds, which a float holds."""
    at_ns = round(meta["last_modified"].timestamp() * 1_000_000) * 1_000
    return FoundFile(meta["path"], meta["size"], at_ns, at_ns, etag=_etag(meta))


def _etag(meta: Any) -> str:
    """The ETag in quotes, which some stores leave out of their listings."""
    etag = meta["e_tag"] or ""
    return etag if not etag or etag.endswith('"') else f'"{etag}"'


def _ends_in_slash(location: str, name: str, _last: str = "") -> ConfigurationError:
    return ConfigurationError(
        f"{location!r} has an object with content whose name is {f'{name}/'!r}: such a name means a folder, and no "
        "object can be read by it",
        f"Give the object another name. Its transaction, if it has one, takes it under the name {name!r}.",
    )


def _out_of_order(location: str, name: str, last: str) -> ConfigurationError:
    return ConfigurationError(
        f"{location!r} is not listed in the order of names: {name!r} comes behind {last!r}",
        "Use a bucket that is (a directory bucket of S3 is not).",
    )


def _recorded(file: FoundFile) -> RecordedFile:
    return RecordedFile(path=file.path, size=file.size, mtime_ns=file.mtime_ns, digest=file.etag)
