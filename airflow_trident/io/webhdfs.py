"""The REST interface of HDFS: WebHDFS of a name node, or HttpFS or a gateway that speaks it.

With the standard library alone, because executors read and write with it. The name node answers `CREATE` and `OPEN`
with the address of a data node, where the content goes or comes from.
"""

from __future__ import annotations

import http.client
import json
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from airflow_trident.errors import ConfigurationError, is_of_driver
from airflow_trident.io.database_limits import HDFS
from airflow_trident.io.webhdfs_errors import IN_CLEAR, RemoteException, Unreachable, exception_and_message

T = TypeVar("T")
_PREFIX = "/webhdfs/v1"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 8.0
_WRITTEN_SO = "/%:@!$&'()*+,;=~"
"""What may be in the path of a connection as it is."""
_REDIRECTS = (301, 302, 303, 307, 308)
_LONG = 1 << 20
"""A body that says why a request was refused is shorter."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach an HDFS.

    :param servers: ``host:port`` of each name node, or of a gateway.
    :param path: before ``/webhdfs/v1``; of a gateway.
    :param proxy_user: on whose behalf `user` acts.
    :param verify: a file of CA certificates, or ``false``.
    :param retries: tries after the first one.
    """

    servers: tuple[str, ...]
    tls: bool = False
    path: str = ""
    user: str = ""
    proxy_user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    verify: str = ""
    certificate: str = ""
    key: str = ""
    connect_timeout_s: float = HDFS.connect_s
    read_timeout_s: float = HDFS.answer_s
    retries: int = 8

    @property
    def query(self) -> dict[str, str]:
        """Who asks, as the interface wants it in each request."""
        if self.token:
            return {"delegation": self.token}
        parameters = {"user.name": self.user, "doas": self.proxy_user}
        return {name: value for name, value in parameters.items() if value}


@dataclass(frozen=True)
class FileStatus:
    """A file or a folder. `name`: in its folder.

    `file_id` is new with each creation and survives a rename; `modified_ms` is set by the last close.
    """

    name: str
    is_file: bool
    size: int
    modified_ms: int
    file_id: int

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> FileStatus:
        return cls(
            name=reply["pathSuffix"],
            is_file=reply["type"] == "FILE",
            size=int(reply["length"]),
            modified_ms=int(reply["modificationTime"]),
            file_id=int(reply.get("fileId") or 0),
        )


@dataclass(frozen=True)
class _Answer:
    status: int
    content: bytes
    location: str


@contextmanager
def _its_form(reply: Mapping[str, Any]) -> Iterator[None]:
    """:raises RemoteException: an answer that is read inside is not of HDFS."""
    try:
        yield
    except (KeyError, TypeError, ValueError):
        raise _foreign(json.dumps(reply).encode()) from None


def _foreign(content: bytes) -> RemoteException:
    return RemoteException(200, "", f"it answers {content[:80]!r}")


_ACTIVE: dict[tuple[str, ...], int] = {}
"""The server that answered last."""


@dataclass(frozen=True)
class WebHdfs:
    """Paths are absolute. Requests without an answer are tried again, at the next name node if there are several.

    All verbs raise :class:`RemoteException` if the server refuses, :class:`Unreachable` if nobody answers.
    """

    access: Access

    def status(self, path: str) -> FileStatus:
        """:raises FileNotFoundError: there is none."""
        reply = self._json("GET", path, "GETFILESTATUS")
        with _its_form(reply):
            return FileStatus.of(reply["FileStatus"])

    def children(self, folder: str, after: str = "") -> Iterator[FileStatus]:
        """In the order of the names' bytes, in pages.

        :param after: names that sort behind this one.
        :raises FileNotFoundError: the folder does not exist.
        """
        while True:
            # HttpFS and the documents call it the one, name nodes of Hadoop 3.5 the other; what is unknown is ignored
            begin = {"startAfter": after, "startafter": after} if after else {}
            reply = self._json("GET", folder, "LISTSTATUS_BATCH", **begin)
            with _its_form(reply):
                listing = reply["DirectoryListing"]
                page = [FileStatus.of(status) for status in listing["partialListing"]["FileStatuses"]["FileStatus"]]
                remaining = int(listing["remainingEntries"])
            if after and any(status.name.encode() <= after.encode() for status in page):
                raise RemoteException(
                    200, "UnsupportedOperationException", f"it lists from the beginning, not after {after!r}"
                )
            yield from page
            if not page or not remaining:
                return
            after = page[-1].name

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """:raises FileNotFoundError: the file does not exist."""
        range_parameters = {"offset": str(start)} | ({} if size is None else {"length": str(size)})
        return self._again(lambda server: self._followed(server, "GET", path, "OPEN", range_parameters))

    def create(self, path: Callable[[], str], content: bytes) -> None:
        """Writes a new file and closes it.

        :param path: gives another path for each try: a try whose answer was lost may still be writing. The last one is
            the one that succeeded.
        """
        self._again(lambda server: self._followed(server, "PUT", path(), "CREATE", {"overwrite": "false"}, content))

    def rename(self, source: str, target: str, *, over: bool = False) -> bool:
        """Atomic. False: nothing was done, or an earlier try did it.

        :param over: replace a file that is there.
        """
        try:
            option = "OVERWRITE" if over else "NONE"
            done = self._json("PUT", source, "RENAME", destination=target, renameoptions=option)
        except FileNotFoundError:
            return False
        except RemoteException as error:
            if error.exception == "FileAlreadyExistsException":
                return False
            raise
        return bool(done.get("boolean", True))  # with options a name node answers nothing

    def make_folder(self, path: str, mode: str = "") -> None:
        """With the folders above it, which get the same mode. One that exists stays as it is.

        :param mode: "700"; as HDFS is set if empty.
        """
        self._json("PUT", path, "MKDIRS", **({"permission": mode} if mode else {}))

    def delete(self, path: str) -> None:
        """With all that is below it; nothing happens if there is none."""
        self._json("DELETE", path, "DELETE", recursive="true")

    # ---- requests ----------------------------------------------------------------------------------------------

    def _json(self, method: str, path: str, operation: str, **parameters: str) -> dict[str, Any]:
        content = self._again(lambda server: self._followed(server, method, path, operation, parameters))
        try:
            reply = json.loads(content or b"{}")
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            raise _foreign(content)
        return reply

    def _again(self, once: Callable[[str], T]) -> T:
        """Tries `once(server)` until it is answered; waits when all servers have been tried."""
        begun, wait_s, retries = time.monotonic(), _FIRST_WAIT_S, self.access.retries
        while True:
            try:
                return self._at_one_of_all(once)
            except (Unreachable, RemoteException) as error:
                if not error.is_passing or not retries or time.monotonic() - begun > HDFS.retry_s:
                    raise
            time.sleep(wait_s)
            wait_s, retries = min(2 * wait_s, _LONGEST_WAIT_S), retries - 1

    def _at_one_of_all(self, once: Callable[[str], T]) -> T:
        """First at the server that answered last."""
        servers = self.access.servers
        first = _ACTIVE.get(servers, 0)
        *others, last = ((first + number) % len(servers) for number in range(len(servers)))
        for place in others:
            try:
                reply = once(servers[place])
            except (Unreachable, RemoteException) as error:
                if not error.is_passing:
                    raise
            else:
                _ACTIVE[servers] = place
                return reply
        reply = once(servers[last])
        _ACTIVE[servers] = last
        return reply

    def _followed(
        self,
        server: str,
        method: str,
        path: str,
        operation: str,
        parameters: Mapping[str, str],
        content: bytes | None = None,
    ) -> bytes:
        """One operation: at the name node, and at the data node that it names. `content` goes to the latter only."""
        query = urlencode({"op": operation, **self.access.query, **parameters})
        above = quote(self.access.path, safe=_WRITTEN_SO)
        url = f"{'https' if self.access.tls else 'http'}://{server}{above}{_PREFIX}{quote(path)}?{query}"
        answer = self._asked(method, url, server, None)
        if answer.status in _REDIRECTS and answer.location:
            if self.access.tls and urlsplit(answer.location).scheme != "https":
                raise RemoteException(answer.status, IN_CLEAR, "it sends to an address without TLS")
            answer = self._asked(method, answer.location, server, content)
        elif content is not None:
            raise (
                RemoteException(answer.status, *exception_and_message(answer.content))
                if answer.status >= 400
                else RemoteException(answer.status, "", "it names no data node")
            )
        if answer.status >= 300:
            raise RemoteException(answer.status, *exception_and_message(answer.content)).or_missing()
        return answer.content

    def _asked(self, method: str, url: str, server: str, content: bytes | None) -> _Answer:
        parts = urlsplit(url)
        headers = {"Content-Type": "application/octet-stream"} if content is not None else {}
        if self.access.password and parts.netloc == server:
            login = b64encode(f"{self.access.user}:{self.access.password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        try:
            client = self._client(parts.scheme == "https", parts.hostname or "", parts.port)
            try:
                client.connect()
                client.sock.settimeout(self.access.read_timeout_s)
                client.request(method, f"{parts.path}?{parts.query}", content, headers)
                got = client.getresponse()
                whole = got.read(_LONG) if got.status >= 300 else got.read()
                return _Answer(got.status, whole, got.headers.get("Location", ""))
            finally:
                client.close()
        except http.client.InvalidURL:  # it shows the whole query, with a token
            raise RemoteException(400, "", "it sends to an address that is none") from None
        except Exception as error:
            if not is_of_driver(error):
                raise
            if isinstance(error, http.client.BadStatusLine) and not isinstance(error, http.client.RemoteDisconnected):
                raise RemoteException(400, "", "it does not speak HTTP") from None
            raise Unreachable(parts.netloc, parts.netloc != server, error) from None

    def _client(self, tls: bool, host: str, port: int | None) -> http.client.HTTPConnection:
        timeout_s = self.access.connect_timeout_s
        if not tls:
            return http.client.HTTPConnection(host, port, timeout=timeout_s)
        access = self.access
        context = _context(access.verify, access.certificate, access.key)
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


@lru_cache(maxsize=16)
def _context(verify: str, certificate: str, key: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=verify if verify not in ("", "false") else None)
        if verify == "false":
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except OSError as error:
        names = ", ".join(repr(path) for path in (verify, certificate, key) if path)
        raise ConfigurationError(
            f"certificates or keys of an HDFS cannot be read from {names} ({error.strerror or error})",
            "Put the files on each machine that reads or writes there, or leave the extras out.",
        ) from None
    return context
