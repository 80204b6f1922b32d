"""A TCP proxy that understands Redis's requests. It cuts a connection exactly before or after a request is carried out.

Client -> proxy -> server. A request is an array of byte strings; its answer is whatever the server sends next.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import BinaryIO


class Cut(StrEnum):
    """What happens to a request."""

    NOT = "passed on"
    BEFORE = "the connection is cut instead"
    AFTER = "carried out, and the connection is cut instead of the answer"
    HOLD = "kept in the network; the client's connection is cut"


Rule = Callable[[list[bytes]], Cut]


def once(command: bytes, cut: Cut, *, containing: bytes = b"") -> Rule:
    """A rule for the first request of this command whose arguments contain the text."""
    left = threading.Semaphore(1)

    def rule(request: list[bytes]) -> Cut:
        wanted = request[0].upper() == command and any(containing in part for part in request)
        return cut if wanted and left.acquire(blocking=False) else Cut.NOT

    return rule


class RedisProxy:
    """Listens on a free port of this machine. `rule` may be changed at any time; `cuts` counts the cuts."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self.rule: Rule = lambda request: Cut.NOT
        self.refusing = False
        self.cuts = 0
        self._held: list[bytes] = []
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._spawn(self._accept)

    def release(self, db: int) -> None:
        """Deliver held requests, late. Returns when the server has answered."""
        with socket.create_connection(self._target) as server:
            for request in (b"SELECT %d\r\n" % db, *self._held):
                server.sendall(request)
                assert server.recv(1 << 16)
        self._held.clear()

    def __enter__(self) -> RedisProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in (self._listener, *self._sockets):
            _shut(one)
        for thread in self._threads:
            thread.join(10)

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.refusing:
                    client.close()
                    continue
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                lost = threading.Event()
                self._spawn(self._requests, client, server, lost)
                self._spawn(self._answers, client, server, lost)

    def _requests(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError), client.makefile("rb") as source:
            while request := _request(source):
                text, parts = request
                cut = self.rule(parts)
                if cut is not Cut.NOT:
                    self.cuts += 1
                if cut is Cut.BEFORE:
                    break
                if cut is Cut.HOLD:
                    self._held.append(text)
                    break
                if cut is Cut.AFTER:
                    lost.set()
                server.sendall(text)
        if not lost.is_set():
            _shut(client)
            _shut(server)

    def _answers(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (answer := server.recv(1 << 16)) and not lost.is_set():
                client.sendall(answer)
        _shut(client)
        _shut(server)


def _request(source: BinaryIO) -> tuple[bytes, list[bytes]] | None:
    head = source.readline()
    if not head:
        return None
    text, parts = [head], []
    for _ in range(int(head[1:])):
        size = source.readline()
        part = source.read(int(size[1:]) + 2)
        text += [size, part]
        parts.append(part[:-2])
    return b"".join(text), parts


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.close()
