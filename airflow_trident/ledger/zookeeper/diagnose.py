"""Facts about an ensemble for people: sizes, limits, access lists, speed. Nothing here decides.

A fact is None if the server does not tell it: its administrator may have switched off ZooKeeper's four letter words.

Questions that a ZooKeeper server answers without a session.
"""

from __future__ import annotations

import re
import socket
import ssl
import statistics
import struct
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.znodes import Create
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import DEFAULT_PORT, Tls, ZooKeeperSettings

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One server. `mode`: leader, follower, standalone. `session_timeout_s`: granted by it. `max_connections`: per
    address; 0: no limit."""

    address: str
    version: str | None = None
    mode: str | None = None
    znodes: int | None = None
    data_bytes: int | None = None
    connections: int | None = None
    max_connections: int | None = None
    session_timeout_s: float | None = None


def server_facts(settings: ZooKeeperSettings) -> list[ServerFacts]:
    """The facts of each server, asked as the ledger's client asks it: over TLS, if that is set.

    :raises ConfigurationError: the certificates cannot be used.
    """
    tls = _context(settings.tls)
    return [_ask(address, settings.session_timeout_s, tls) for address in settings.hosts.split(",")]


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca or None)
        # as kazoo, whose clients take certificates that Python 3.13 is stricter with here
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = tls.check_hostname and tls.verify
        if not tls.verify:
            context.verify_mode = ssl.CERT_NONE
        if tls.certificate:
            context.load_cert_chain(tls.certificate, tls.key, tls.key_password or "")
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"TLS: the certificates of the connection cannot be used ({error})", "They must be PEM files."
        ) from None
    return context


def _ask(address: str, session_timeout_s: float, tls: ssl.SSLContext | None) -> ServerFacts:
    host, port = _host_port(address)
    serving = four_letters(host, port, "srvr", tls=tls)
    monitor = four_letters(host, port, "mntr", tls=tls)
    configured = four_letters(host, port, "conf", tls=tls)
    version = re.search(r"version: (\d+\.\d+\.\d+)", serving)
    mode = re.search(r"^Mode: (\w+)", serving, re.MULTILINE)
    return ServerFacts(
        address=address,
        version=version[1] if version else None,
        mode=mode[1] if mode else None,
        znodes=_number(r"^Node count: (\d+)", serving),
        data_bytes=_number(r"^zk_approximate_data_size\s+(\d+)", monitor),
        connections=_number(r"^Connections: (\d+)", serving),
        max_connections=_number(r"^maxClientCnxns=(-?\d+)", configured),
        session_timeout_s=_granted_s(host, port, session_timeout_s, tls),
    )


def _host_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), DEFAULT_PORT
    return host.strip("[]"), int(port)


def _number(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return int(match[1]) if match else None


def _granted_s(host: str, port: int, wanted_s: float, tls: ssl.SSLContext | None) -> float | None:
    """Opens a session by hand and closes it again, because kazoo does not show the granted timeout.

    The frames are ZooKeeper's ConnectRequest and ConnectResponse (zookeeper.jute) and a close request (opcode -11).
    """
    request = struct.pack(">iqiqi16s?", 0, 0, int(wanted_s * 1000), 0, 16, bytes(16), False)
    try:
        with connected(host, port, tls) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = b""
            while len(answer) < 12:
                part = connection.recv(64)
                if not part:
                    return None
                answer += part
            connection.sendall(struct.pack(">iii", 8, 1, -11))
    except OSError:
        return None
    _, _, granted_ms = struct.unpack(">iii", answer[:12])
    return float(granted_ms) / 1000 if granted_ms > 0 else None


def access_list(znodes: ZooKeeperZNodes, path: str) -> list[tuple[str, str]] | None:
    """Who may do what to a node, as ``("world:anyone", "ALL")``; None if it does not exist.

    :raises LedgerUnavailableError: no answer. :raises LedgerAuthError: not allowed to ask.
    """
    if znodes.read([path]).nodes[path] is None:
        return None
    deadline = time.monotonic() + znodes.settings.op_deadline_s
    client = znodes._ready(deadline)
    with znodes._translated(f"read the access list of {path}"):
        entries, _ = client.get_acls_async(znodes._full(path)).get(timeout=max(0.0, deadline - time.monotonic()))
    return [(f"{entry.id.scheme}:{entry.id.id}", ",".join(entry.acl_list)) for entry in entries]


def write_latency_ms(znodes: ZooKeeperZNodes, folder: str, *, writes: int = 15) -> float:
    """The median time of small durable writes below `folder`, in milliseconds. Creates `folder` and leaves nothing else
    behind.

    :raises LedgerAuthError: this user may not write there.
    """
    znodes.ensure(folder)
    spent_ms: list[float] = []
    name = uuid.uuid4().hex[:12]
    for number in range(writes):
        began = time.perf_counter()
        # ephemeral: gone with the session, also if this process is killed
        znodes.multi([Create(f"{folder}/doctor-{name}-{number}", b"x" * 200, ephemeral=True)])
        spent_ms.append((time.perf_counter() - began) * 1000)
    return statistics.median(spent_ms)
