"""Questions that a ZooKeeper server answers without a session."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

PROBE_TIMEOUT_S = 5.0


@contextmanager
def connected(
    host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float = PROBE_TIMEOUT_S
) -> Iterator[socket.socket]:
    """A connection to one server.

    :param tls: for a port that speaks TLS.
    :raises OSError: there is none, or the certificate is refused.
    """
    with socket.create_connection((host, port), timeout=timeout_s) as plain:
        if tls is None:
            yield plain
            return
        with tls.wrap_socket(plain, server_hostname=host) as secured:
            yield secured


def four_letters(
    host: str, port: int, word: str, timeout_s: float = PROBE_TIMEOUT_S, *, tls: ssl.SSLContext | None = None
) -> str:
    """A server's answer to one of ZooKeeper's four letter words (``srvr``, ``mntr``, ``ruok``); "" if it gives none."""
    try:
        with connected(host, port, tls, timeout_s) as connection:
            connection.sendall(word.encode("ascii"))
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
    except OSError:
        return ""
    return b"".join(parts).decode("utf-8", "replace")
