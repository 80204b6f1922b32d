"""An HTTP proxy in front of an object store. It refuses, holds or loses the requests that a test names, and counts all.

Client -> proxy -> server. A rule that a test sets decides what happens to a request. Where the server redirects to
another one, the client is sent to this proxy again, which asks that other one.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_NEXT = "&next="
"""Comes last in the query of a redirected request: ``host:port`` of the other server."""


class Verdict(StrEnum):
    PASS = "pass it on"
    UNAVAILABLE = "answer 503, and do nothing"
    LOSE = "do it, and cut the connection instead of answering"
    FAIL = "do it, and answer 503"
    HOLD = "do it, and answer only when the client has gone away"
    UNCONDITIONAL = "pass it on without its condition, as a store does that knows none"


_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
_CONDITIONS = ("if-none-match", "x-goog-if-generation-match")


@dataclass(frozen=True)
class Request:
    """`path`: with the bucket, without the query, decoded."""

    method: str
    path: str
    query: str


@dataclass(frozen=True)
class Answer:
    """Sent instead of the server's answer."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Rule = Callable[[Request], "Verdict | Answer"]


def pass_all(request: Request) -> Verdict:
    return Verdict.PASS


def first(method: str, verdict: Verdict | Answer, *, times: int = 1, containing: str = "") -> Rule:
    """A rule for the first `times` requests of the method whose path contains the text; all others pass."""
    left = threading.Semaphore(times)

    def rule(request: Request) -> Verdict | Answer:
        wanted = request.method == method and containing in request.path
        return verdict if wanted and left.acquire(blocking=False) else Verdict.PASS

    return rule


def lasting(number: int, verdict: Verdict | Answer) -> Rule:
    """A rule for that request (the first one is 1) and for all that follow."""
    passing = threading.Semaphore(number - 1)
    return lambda _request: Verdict.PASS if passing.acquire(blocking=False) else verdict


def each_fails_once(seen: set[tuple[str, str]]) -> Rule:
    """Harms each request when it comes for the first time: every other one is done, and its answer lost.

    :param seen: receives the requests.
    """

    def rule(request: Request) -> Verdict:
        asked = (request.method, request.path + request.query)
        if asked in seen:
            return Verdict.PASS
        seen.add(asked)
        return Verdict.LOSE if len(seen) % 2 else Verdict.UNAVAILABLE

    return rule


class HttpProxy:
    """Listens on a free port of this machine. `rule` may be changed at any time; `asked` counts requests by method;
    `harmed` counts requests that did not simply pass."""

    def __init__(self, target: str) -> None:
        """:param target: ``host:port``."""
        self.target = target
        self.rule: Rule = pass_all
        self.asked = Counter[str]()
        self.harmed = 0
        self.taking = threading.Lock()  # moto looks whether a name is free and takes it in two steps; stores in one
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> HttpProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: HttpProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors: some tests are about clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self._body()
        path, _, query = self.path.partition("?")
        query, _, redirected = query.partition(_NEXT)
        self.path = f"{path}?{query}" if query else path
        verdict = proxy.rule(Request(self.command, unquote(path), query))
        proxy.asked[self.command] += 1
        proxy.harmed += verdict is not Verdict.PASS
        if isinstance(verdict, Answer):
            self._answer(verdict.status, verdict.body, verdict.headers)
            return
        if verdict is Verdict.UNAVAILABLE:
            self._answer(503, _SLOW_DOWN, {})
            return
        status, headers, content = self._forwarded(redirected, body, unconditional=verdict is Verdict.UNCONDITIONAL)
        if verdict is Verdict.HOLD:
            self.connection.recv(1)  # a client that has sent its request sends nothing until it goes away
        if verdict in (Verdict.LOSE, Verdict.HOLD):
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if verdict is Verdict.FAIL:
            status, content, headers = 503, _SLOW_DOWN, {}
        self._answer(status, content, headers)

    def _body(self) -> bytes:
        """The body in one piece, even if it was sent in chunks, as Amazon's own client does."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        del self.headers["Transfer-Encoding"]
        pieces = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            """Trailers."""
        return b"".join(pieces)

    def _forwarded(self, redirected: str, body: bytes, *, unconditional: bool) -> tuple[int, dict[str, str], bytes]:
        headers = dict(self.headers.items())
        if unconditional:
            headers = {name: value for name, value in headers.items() if name.lower() not in _CONDITIONS}
        conditional = self.command == "PUT" and any(name.lower() in _CONDITIONS for name in headers)
        server = http.client.HTTPConnection(redirected or self.server.proxy.target)
        with self.server.proxy.taking if conditional else nullcontext():
            try:
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                told = {name.title(): value for name, value in answer.getheaders()}
                if answer.status == http.HTTPStatus.TEMPORARY_REDIRECT:
                    to = urlsplit(told["Location"])
                    told["Location"] = f"{self.server.proxy.url}{to.path}?{to.query}{_NEXT}{to.netloc}"
                return answer.status, told, answer.read()
            finally:
                server.close()

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in ("Content-Length", "Transfer-Encoding", "Connection"):
                self.send_header(name, value)
        size = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", size)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _serve  # noqa: N815 - the names that http.server calls
