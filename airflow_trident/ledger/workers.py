"""Who works on a topology now: ephemeral znodes, which vanish when the session of their process ends. For people, and
for takeovers: no decision of the protocol reads them."""

from __future__ import annotations

import functools
import os
import socket
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_trident.errors import CorruptError
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.znodes import Create, Delete, WriteRefusedError, ZNode, ZNodes
from airflow_trident.protocol.durable_format import Format, plain_fields
from airflow_trident.protocol.records import Owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """`task`: what runs, as in the owner of an attempt; `txid`: the transaction it works on, None for several;
    `since_ms`: Unix milliseconds; `is_task`: a task of Airflow, which begins transactions by claims that name it;
    `name`: of its node, also recorded in the owners of its attempts; "" for a worker that is not listed yet;
    `process_ids`: see :func:`own_process_ids`."""

    host: str
    pid: int
    task: str
    txid: int | None
    since_ms: int
    is_task: bool = False
    name: str = field(default="", compare=False)
    process_ids: str = field(default="", compare=False)

    @classmethod
    def of(cls, owner: Owner, txid: int | None = None) -> Worker:
        """Who works from now on, as the owner of what it does."""
        since_ms = time.time_ns() // 10**6
        return cls(host=owner.host, pid=owner.pid, task=owner.who, txid=txid, since_ms=since_ms, is_task=owner.is_task)


_FORMAT = Format(noun="the worker", version=1, cure="It is not listed.")


def enlist(znodes: ZNodes, paths: LedgerPaths, worker: Worker, *, wait: bool = True) -> str:
    """Lists a worker until the session of `znodes` ends, or until the worker retires. Returns its name, which is
    unique: a forked child, or a second task, has its own.

    :param wait: wait for the server's answer; without it this costs no round trip.
    """
    name = f"{worker.host}-{worker.pid}-{uuid.uuid4().hex[:8]}"
    body = {key: value for key, value in plain_fields(worker).items() if key != "name"}
    body["process_ids"] = own_process_ids()
    node = Create(f"{paths.workers}/{name}", _FORMAT.dump(body, f"worker {name}"), ephemeral=True)
    (znodes.multi if wait else znodes.post)([node])
    return name


def retire(znodes: ZNodes, paths: LedgerPaths, name: str) -> None:
    """Takes a worker off the list while its session goes on."""
    with suppress(WriteRefusedError):  # its session has ended meanwhile
        znodes.multi([Delete(f"{paths.workers}/{name}")])


def live_workers(znodes: ZNodes, paths: LedgerPaths) -> list[Worker]:
    """All listed workers, oldest first. Unreadable entries are left out: a newer version may have written them."""
    names = sorted(znodes.read([], [paths.workers]).folders[paths.workers] or ())
    return workers_of(znodes.read([f"{paths.workers}/{name}" for name in names]).nodes if names else {})


def workers_of(nodes: Mapping[str, ZNode | None]) -> list[Worker]:
    """The workers of these nodes, by path; oldest first."""
    sessions = [_worker(node.data, path.rpartition("/")[2]) for path, node in nodes.items() if node is not None]
    return sorted(
        (worker for worker in sessions if worker is not None),
        key=lambda worker: (worker.since_ms, worker.host, worker.pid),
    )


def is_alive(workers: Iterable[Worker], owner: Owner) -> bool:
    """Is the owner of an attempt or a commit at work? A killed worker stays listed until its session ends; if it ran on
    this machine, its process is looked up, too.

    The name of a worker is unique. An owner without one is recognised by its place and by what it is: containers may
    give the same host name and process id again.
    """
    listed = [worker for worker in workers if _is_entry_of(worker, owner)]
    return any(not has_ended(worker.host, worker.pid, worker.process_ids) for worker in listed)


def _is_entry_of(worker: Worker, owner: Owner) -> bool:
    if owner.worker:
        return worker.name == owner.worker
    return (worker.host, worker.pid, worker.task) == (owner.host, owner.pid, owner.who)


def programs(workers: Iterable[Worker]) -> frozenset[str]:
    """Names of the workers that are no tasks of Airflow, or may be none: versions before this one did not say."""
    return frozenset(worker.name for worker in workers if not worker.is_task)


def own_process_ids() -> str:
    """Tells whose process ids those of this process are: of which start of which kernel, and of which container. A host
    name alone does not: containers with the network of their host have its name, and machines may share one. "" where
    the system does not say."""
    return _process_ids_of(os.getpid())


@functools.cache
def _process_ids_of(_pid: int) -> str:
    """They never change in the life of a process; a forked one may live elsewhere."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def has_ended(host: str, pid: int, process_ids: str) -> bool:
    """Is it certain that a process has ended? Only one whose id is one of this process's own can be looked up.

    :param process_ids: "" is of a version that did not say: then the host's name decides.
    """
    return host == socket.gethostname() and process_ids in ("", own_process_ids()) and not is_running(pid)


def is_running(pid: int) -> bool:
    """Is there a process with this id on this machine?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _worker(data: bytes, name: str) -> Worker | None:
    try:
        return replace(_FORMAT.build(Worker, _FORMAT.load(data, name), name), name=name)
    except CorruptError:
        return None
