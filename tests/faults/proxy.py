"""A TCP proxy that understands ZooKeeper's frames. It cuts a connection exactly before or after a request is applied.

Client -> proxy -> server. A request is a frame: 4 bytes of length, then 4 bytes of number (xid) and 4 bytes of kind;
the answer has the same number. A rule that a test sets decides what happens to a frame.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

KINDS = {4: "get", 8: "children", 9: "sync", 3: "exists", 14: "multi", 11: "ping", 100: "auth", -11: "close"}


class Verdict(StrEnum):
    PASS = "pass it on"
    CUT = "cut both connections instead"
    HOLD = "keep it in the network, and cut the client's connection"


@dataclass(frozen=True)
class Frame:
    """`answer`: from the server; then `kind` is the kind of its request. `paths`: texts that look like node names."""

    answer: bool
    kind: str
    body: bytes


Rule = Callable[[Frame], Verdict]


def pass_all(frame: Frame) -> Verdict:
    return Verdict.PASS


def cut_once(kind: str, *, after: bool, containing: bytes = b"") -> Rule:
    """Cuts the first request of the kind whose bytes contain `containing` before it reaches the server, or, with
    `after`, its answer, so that the request was applied."""
    left = threading.Semaphore(1)
    marked = threading.Event()

    def rule(frame: Frame) -> Verdict:
        if frame.kind != kind:
            return Verdict.PASS
        if not after:
            wanted = not frame.answer and containing in frame.body
            return Verdict.CUT if wanted and left.acquire(blocking=False) else Verdict.PASS
        if not frame.answer and containing in frame.body:
            marked.set()
        wanted = frame.answer and marked.is_set()
        return Verdict.CUT if wanted and left.acquire(blocking=False) else Verdict.PASS

    return rule


@dataclass
class _Link:
    """A client's connection, and the connection to the server that continues it."""

    client: socket.socket
    server: socket.socket
    kinds: dict[int, str] = field(default_factory=dict)
    held: list[bytes] = field(default_factory=list)

    def cut(self) -> None:
        self.cut_client()
        _shut(self.server)

    def cut_client(self) -> None:
        _shut(self.client)


class FaultProxy:
    """Listens on a free port of this machine. `rule` may be changed at any time; `cuts` counts the cuts; `silent` is
    the number of connections to accept and never answer."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.rule: Rule = pass_all
        self.refusing = False
        self.cuts = 0
        self.silent = 0
        self._unanswered: list[socket.socket] = []
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._spawn(self._accept)

    def cut_all(self) -> None:
        """Cut every connection now."""
        for link in self._links:
            link.cut()
        self._links.clear()

    def release(self) -> None:
        """Deliver held requests to the server: late, when their client uses another connection already."""
        for link in self._links:
            for frame in link.held:
                with contextlib.suppress(OSError):
                    link.server.sendall(frame)
            link.held.clear()

    def close(self) -> None:
        _shut(self._listener)
        self.cut_all()
        for client in self._unanswered:
            _shut(client)
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            if self.silent:
                self.silent -= 1
                self._unanswered.append(client)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            link = _Link(client, server)
            self._links.append(link)
            self._spawn(self._pump, link, False)
            self._spawn(self._pump, link, True)

    def _pump(self, link: _Link, answers: bool) -> None:
        source, sink = (link.server, link.client) if answers else (link.client, link.server)
        greeting = True
        try:
            while True:
                head = _exactly(source, 4)
                body = _exactly(source, struct.unpack(">i", head)[0])
                verdict = Verdict.PASS if greeting else self._judge(link, answers, body)
                greeting = False
                if verdict is Verdict.CUT:
                    self.cuts += 1
                    break
                if verdict is Verdict.HOLD:
                    self.cuts += 1
                    link.held.append(head + body)
                    link.cut_client()
                    return  # the way to the server stays open: the request is still "in the network"
                sink.sendall(head + body)
        except OSError:
            if link.held:
                return
        link.cut()

    def _judge(self, link: _Link, answers: bool, body: bytes) -> Verdict:
        number = struct.unpack(">i", body[:4])[0]
        if answers:
            return self.rule(Frame(True, link.kinds.pop(number, "event"), body))
        kind = KINDS.get(struct.unpack(">i", body[4:8])[0], "other")
        link.kinds[number] = kind
        return self.rule(Frame(False, kind, body))


def _exactly(source: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = source.recv(size)
        if not part:
            raise ConnectionError("closed")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
