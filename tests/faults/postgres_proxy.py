"""A TCP proxy that understands PostgreSQL's messages. It cuts a connection before a statement arrives, or when the
answer to it comes."""

from __future__ import annotations

import socket
import struct
import threading


class PostgresProxy:
    """Cuts both ways before a statement reaches the server, or instead of passing on the answer to it."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.cut_before: bytes | None = None
        self.cut_answer_of: bytes | None = None
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> PostgresProxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for one in (client, server):
                # Messages are passed on one by one: none may wait for the answer to the one before.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            marked = threading.Event()
            for pump in (self._requests, self._answers):
                thread = threading.Thread(target=pump, args=(client, server, marked), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _requests(self, client: socket.socket, server: socket.socket, marked: threading.Event) -> None:
        """After the first packet a message is a letter, a length of 4 bytes, and its body."""
        head = 0
        with server:
            while packet := _packet(client, head):
                head = 1
                if self.cut_before is not None and self.cut_before in packet:
                    self.cuts += 1
                    break
                if self.cut_answer_of is not None and self.cut_answer_of in packet:
                    marked.set()
                server.sendall(packet)
            _end(client)
            _end(server)

    def _answers(self, client: socket.socket, server: socket.socket, marked: threading.Event) -> None:
        with client:
            while packet := _packet(server, 1):
                if marked.is_set():
                    # The server has answered: the statement is done.
                    self.cuts += 1
                    break
                client.sendall(packet)
            _end(client)
            _end(server)


def _packet(source: socket.socket, head: int) -> bytes:
    try:
        begin = source.recv(head + 4, socket.MSG_WAITALL)
        if len(begin) < head + 4:
            return b""
        rest = struct.unpack(">i", begin[head:])[0] - 4
        return begin + (source.recv(rest, socket.MSG_WAITALL) if rest else b"")
    except OSError:
        return b""


def _end(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
