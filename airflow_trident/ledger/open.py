"""Opens one ledger, or all of them, from settings; and keeps sessions between short uses."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from airflow_trident.closeable import Closing
from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import TridentError
from airflow_trident.ledger.base import topology_names
from airflow_trident.ledger.overviews import Overview, overviews
from airflow_trident.ledger.paths import DEFAULT_ROOT
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import LedgerView


class Ledgers(Closing):
    """The ledgers of an ensemble through one client, which connects on first use: one session for all. Close it, or use
    it as a context manager; that closes its ledgers too.

    :param root: the folder of all ledgers, below the settings' chroot.
    """

    def __init__(self, settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> None:
        self.znodes = ZooKeeperZNodes(settings)
        self.root = root

    @property
    def place(self) -> tuple[ZooKeeperSettings, str]:
        """Two objects of the same place read the same ledgers with the same rights and deadlines."""
        return self.znodes.settings, self.root

    def names(self) -> list[str]:
        """The names of all topologies that have a ledger there, sorted.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        return topology_names(self.znodes, self.root)

    def ledger(self, topology: str, *, incarnation: str = "") -> ZNodeLedger:
        """The ledger of one topology. Do not close it by itself.

        :param incarnation: the expected life of the topology, if known: another one is refused.
        """
        return ZNodeLedger(self.znodes, topology, self.root, incarnation=incarnation)

    def overviews(
        self, *, latest: int, lowest_of: Callable[[LedgerView], int | None]
    ) -> dict[str, Overview | TridentError]:
        """All topologies, by name: see :func:`airflow_trident.ledger.overviews.overviews`."""
        return overviews(self.znodes, self.names(), latest=latest, lowest_of=lowest_of, root=self.root)

    def beside(self, topologies: Collection[str] | None = None) -> Beside:
        """The records of wings beside the transactions.

        :param topologies: only these; None: all.
        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        return Beside.read(self.znodes, self.root, topologies)

    def close(self) -> None:
        self.znodes.close()


class SessionPool:
    """Keeps ZooKeeper sessions between short uses, such as the requests of a page. Each use has a session for itself,
    so uses at the same time do not wait for each other.

    A session that has lost its connection is not kept: after a restart of the server, a new one connects at once.

    :param idle_s: a session that is unused for so long is closed.
    """

    def __init__(self, *, idle_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle_s, self._clock = idle_s, clock
        self._begin_empty()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Ledgers]] = []
        self._timer: threading.Timer | None = None

    @contextmanager
    def used(self, ledgers: Ledgers) -> Iterator[Ledgers]:
        """Idle ledgers of the same place if the pool has some, otherwise `ledgers`, which the pool keeps afterwards."""
        borrowed = self._take(ledgers)
        try:
            yield borrowed
        finally:
            self._put_back(borrowed)

    def close_idle(self) -> None:
        """Closes sessions that were unused for `idle_s`."""
        with self._lock:
            due = self._clock() - self._idle_s
            closing = [ledgers for since, ledgers in self._idle if since <= due]
            self._idle = [(since, ledgers) for since, ledgers in self._idle if since > due]
            self._timer = None
            self._watch_idle()
        for ledgers in closing:
            ledgers.close()

    def _take(self, ledgers: Ledgers) -> Ledgers:
        with self._lock:
            same = [entry for entry in self._idle if entry[1].place == ledgers.place]
            usable = next((entry for entry in reversed(same) if entry[1].znodes.is_connected), None)
            broken = [entry for entry in same if not entry[1].znodes.is_connected]
            self._idle = [entry for entry in self._idle if entry is not usable and entry not in broken]
        for _, closing in broken:
            closing.close()
        return usable[1] if usable else ledgers

    def _put_back(self, ledgers: Ledgers) -> None:
        if not ledgers.znodes.is_connected:
            ledgers.close()
            return
        with self._lock:
            self._idle.append((self._clock(), ledgers))
            self._watch_idle()

    def _watch_idle(self) -> None:
        if self._idle and self._timer is None:
            self._timer = threading.Timer(self._idle_s, self.close_idle)
            self._timer.daemon = True
            self._timer.start()


def open_ledger(
    settings: ZooKeeperSettings,
    topology: str,
    *,
    root: str = DEFAULT_ROOT,
    incarnation: str = "",
    chunk_bytes: int = 0,
) -> ZNodeLedger:
    """The ledger of one topology in ZooKeeper; connects when first used. Close it, or use it as a context manager.

    :param root: the folder of all ledgers, below the settings' chroot.
    :param incarnation: of the topology, if known: see :class:`ZNodeLedger`.
    :param chunk_bytes: the ledger keeps staged batches of up to this many bytes; none by default.
    """
    ledger = ZNodeLedger(ZooKeeperZNodes(settings), topology, root, incarnation=incarnation)
    ledger.chunk_bytes = chunk_bytes
    return ledger


def list_topologies(settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger there.

    :raises LedgerUnavailableError: ZooKeeper does not answer.
    """
    with Ledgers(settings, root=root) as ledgers:
        return ledgers.names()
