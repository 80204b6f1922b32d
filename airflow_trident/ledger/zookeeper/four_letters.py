"""Questions that a ZooKeeper server answers without a session."""

from __future__ import annotations

import socket


def four_letters(host: str, port: int, word: str, timeout_s: float = 5.0) -> str:
    """A server's answer to one of ZooKeeper's four letter words (``srvr``, ``mntr``, ``ruok``); "" if it gives none."""
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(word.encode("ascii"))
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
    except OSError:
        return ""
    return b"".join(parts).decode("utf-8", "replace")
