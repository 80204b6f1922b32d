"""Facts about an ensemble for people: sizes, limits, access lists, speed. Nothing here decides.

A fact is None if the server does not tell it: its administrator may have switched off ZooKeeper's four letter words.
"""

from __future__ import annotations

import re
import socket
import statistics
import struct
import time
import uuid
from dataclasses import dataclass

from airflow_trident.ledger.znodes import Create
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.four_letters import four_letters
from airflow_trident.ledger.zookeeper.settings import DEFAULT_PORT, ZooKeeperSettings

PROBE_TIMEOUT_S = 5.0


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
    """The facts of each server, asked without TLS: a server that only speaks TLS tells nothing."""
    return [_ask(address, settings.session_timeout_s) for address in settings.hosts.split(",")]


def _ask(address: str, session_timeout_s: float) -> ServerFacts:
    host, port = _host_port(address)
    serving = four_letters(host, port, "srvr", PROBE_TIMEOUT_S)
    monitor = four_letters(host, port, "mntr", PROBE_TIMEOUT_S)
    configured = four_letters(host, port, "conf", PROBE_TIMEOUT_S)
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
        session_timeout_s=_granted_s(host, port, session_timeout_s),
    )


def _host_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        return address.strip("[]"), DEFAULT_PORT
    return host.strip("[]"), int(port)


def _number(pattern: str, text: str) -> int | None:
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1]) if found else None


def _granted_s(host: str, port: int, wanted_s: float) -> float | None:
    """Opens a session by hand and closes it again, because kazoo does not show the granted timeout.

    The frames are ZooKeeper's ConnectRequest and ConnectResponse (zookeeper.jute) and a close request (opcode -11).
    """
    request = struct.pack(">iqiqi16s?", 0, 0, int(wanted_s * 1000), 0, 16, bytes(16), False)
    try:
        with socket.create_connection((host, port), timeout=PROBE_TIMEOUT_S) as connection:
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
