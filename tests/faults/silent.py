"""Peers that are silent: a server that was stopped, or one behind a network that drops what is sent."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import StrEnum


class Silence(StrEnum):
    CONNECTING = "no connection comes about: its queue is full"
    ANSWERING = "connections come about, and nothing is ever answered"


class SilentServer:
    """Listens on `port` of this machine."""

    def __init__(self, silence: Silence) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.hosts = f"127.0.0.1:{self.port}"
        if silence is Silence.ANSWERING:
            self._listener.listen(512)  # the system itself accepts connections
            return
        self._listener.listen(0)
        for _ in range(3):  # the system drops what comes when these wait
            waiting = socket.socket()
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(("127.0.0.1", self.port))
            self._sockets.append(waiting)

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            each.close()


class SilentProxy:
    """Passes bytes to and from a real server until `hush`, or until a packet with the text `hush_at` comes.

    From then on it swallows them.
    """

    hush_at: bytes | None = None

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._hushed = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.hosts = f"127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hush(self) -> None:
        self._hushed.set()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> SilentProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(1 << 16):
                if self.hush_at is not None and self.hush_at in content:
                    self.hush()
                if not self._hushed.is_set():
                    sink.sendall(content)
        if not self._hushed.is_set():
            for each in (source, sink):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
