"""Who works on a topology now: ephemeral znodes, which go with the session of their process, however it ends. For
people, and for who would take over what another is at: no decision of the protocol reads them."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from airflow_trident.ledger.paths import Life
from airflow_trident.ledger.znodes import Create, ZNodes
from airflow_trident.protocol.records import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`task`: what runs, as in the owner of an attempt; `txid`: what it works on, None for several; `since_ms`: Unix
    milliseconds."""

    host: str
    pid: int
    task: str
    txid: int | None
    since_ms: int


def enlist(znodes: ZNodes, life: Life, worker: Worker) -> None:
    """Until the session of `znodes` ends. Under a unique name: a forked child, or a second task, has its own."""
    path = f"{life.workers}/{worker.host}-{worker.pid}-{uuid.uuid4().hex[:8]}"
    znodes.multi([Create(path, json.dumps({"v": 1, **asdict(worker)}).encode(), ephemeral=True)])


def live_workers(znodes: ZNodes, life: Life) -> list[Worker]:
    """Oldest first. What cannot be read is left out: it may be a newer version's."""
    names = sorted(znodes.read([], [life.workers]).folders[life.workers] or ())
    nodes = znodes.read([f"{life.workers}/{name}" for name in names]).nodes if names else {}
    found = [_worker(node.data) for node in nodes.values() if node is not None]
    return sorted((one for one in found if one is not None), key=lambda one: (one.since_ms, one.host, one.pid))


def is_alive(workers: Iterable[Worker], owner: Owner) -> bool:
    """Is the owner of an attempt, or of a commit, at work as far as is known? A killed worker is listed until its
    session ends, but on this very machine it is seen that its process is gone.
    """
    listed = [one for one in workers if (one.host, one.pid) == (owner.host, owner.pid)]
    return any(one.host != socket.gethostname() or _runs_here(one.pid) for one in listed)


def _runs_here(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _worker(data: bytes) -> Worker | None:
    try:
        body = json.loads(data)
        del body["v"]
        return Worker(**body)
    except (ValueError, TypeError, KeyError):
        return None
