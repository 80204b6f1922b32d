"""A TCP proxy that goes silent: it takes what comes and passes nothing on, as a network that swallows packets, or a
server that is stopped."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class SwallowingProxy:
    def __init__(self, port: int) -> None:
        self._server_port = port
        self.silent = threading.Event()
        self.silent_after: bytes | None = None
        """Be silent from the first packet on that holds this text; it is not passed on."""
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> SwallowingProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            if self.silent.is_set():
                continue
            server = socket.create_connection(("127.0.0.1", self._server_port))
            self._sockets.append(server)
            for source, target in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(source, target), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if self.silent_after is not None and self.silent_after in data:
                    self.silent.set()
                if not self.silent.is_set():
                    target.sendall(data)
            if not self.silent.is_set():
                target.shutdown(socket.SHUT_WR)
