"""Opens one ledger, or all of them, from settings; and keeps sessions between short uses.

Reads many topologies together: a few round trips for all, where each alone takes five.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from airflow_trident.closeable import Closing
from airflow_trident.contracts.wing import Beside
from airflow_trident.errors import TridentError, UnknownTopologyError
from airflow_trident.ledger.backup import require_finished
from airflow_trident.ledger.layout import DEFAULT_ROOT, LedgerPaths, topology_path
from airflow_trident.ledger.ledger import ZNodeLedger, topology_names
from airflow_trident.ledger.snapshot import Cache, Snapshot
from airflow_trident.ledger.verbs.topology import outcome_at
from airflow_trident.ledger.workers import Worker, workers_of
from airflow_trident.ledger.znodes import ZNodes
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol import codec
from airflow_trident.protocol.outcomes import CoordinatorOutcome
from airflow_trident.protocol.records import LedgerView, TxRecord

K = TypeVar("K")
V = TypeVar("V")
TOGETHER = 40
"""How many topologies are read at once: what is read of them must fit into the cache."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A topology's view. `latest`: its last transactions, without metadata kept apart; `lowest`: the one that
    `lowest_of` asked for, if it exists; `workers`: read only if there is a lowest one."""

    view: LedgerView
    outcome: CoordinatorOutcome | None
    latest: tuple[TxRecord, ...]
    lowest: TxRecord | None
    workers: tuple[Worker, ...]


def overviews(
    znodes: ZNodes,
    names: Sequence[str],
    *,
    latest: int,
    lowest_of: Callable[[LedgerView], int | None],
    root: str = DEFAULT_ROOT,
) -> dict[str, Overview | TridentError]:
    """Topology -> what there is to see of it, or why it cannot be read.

    :param latest: how many of the last transactions are read.
    :param lowest_of: gives one more transaction to read, from the view.
    """
    overviews_by_name: dict[str, Overview | TridentError] = {}
    for at in range(0, len(names), TOGETHER):
        overviews_by_name |= _Reading(znodes, root, latest, lowest_of).of(names[at : at + TOGETHER])
    return overviews_by_name


class _Reading:
    """Reads some topologies. Each step reads for all what the step before needs. A topology that fails is left out."""

    def __init__(self, znodes: ZNodes, root: str, latest: int, lowest_of: Callable[[LedgerView], int | None]) -> None:
        self._cache = Cache(znodes)
        self._root = root
        self._latest = latest
        self._lowest_of = lowest_of
        self._failed: dict[str, TridentError] = {}

    def of(self, names: Sequence[str]) -> dict[str, Overview | TridentError]:
        paths = self._paths(names)
        self._cache.fetch(path for ledger_paths in paths.values() for path in ledger_paths.about(0))
        snaps = {name: Snapshot(ledger_paths, self._cache, 0) for name, ledger_paths in paths.items()}
        views = dict(self._each(snaps, lambda snap: snap.view(0)))
        wanted = {name: self._wanted(view) for name, view in views.items()}
        self._cache.fetch(paths[name].tx(txid) for name, txids in wanted.items() for txid in txids)
        read_txids = {snaps[name]: (txids, self._lowest_of(views[name])) for name, txids in wanted.items()}
        records = dict(
            self._each({name: snaps[name] for name in views}, lambda snap: self._records(snap, *read_txids[snap]))
        )
        workers = self._workers({name: paths[name] for name in records if self._lowest_of(views[name]) is not None})
        whole = {
            name: self._overview(views[name], outcome_at(snaps[name]), read, workers.get(name, ()))
            for name, read in records.items()
        }
        return {name: whole.get(name) or self._failed[name] for name in names}

    def _paths(self, names: Sequence[str]) -> dict[str, LedgerPaths]:
        places = {name: topology_path(self._root, name) for name in names}
        self._cache.fetch(places.values())

        def paths(place: str) -> LedgerPaths:
            node = self._cache.node(place)
            if node is None:
                raise UnknownTopologyError(f"{place} is gone", "It was deleted just now.")
            require_finished(node.data, place)
            return LedgerPaths(place, codec.decode_topology(node.data, place).incarnation)

        return dict(self._each(places, paths))

    def _each(self, all_: Mapping[str, K], read: Callable[[K], V]) -> Iterator[tuple[str, V]]:
        for name, subject in all_.items():
            if name not in self._failed:
                try:
                    yield name, read(subject)
                except TridentError as error:
                    self._failed[name] = error

    def _wanted(self, view: LedgerView) -> list[int]:
        lowest = self._lowest_of(view)
        last = range(max(1, view.next_txid - self._latest), view.next_txid)
        return sorted({*last, *([] if lowest is None else [lowest])})

    def _records(self, snap: Snapshot, txids: Sequence[int], lowest: int | None) -> dict[int, TxRecord | None]:
        return {txid: snap.tx(txid) if txid == lowest else snap.light_tx(txid) for txid in txids}

    def _overview(
        self,
        view: LedgerView,
        outcome: CoordinatorOutcome | None,
        records: Mapping[int, TxRecord | None],
        workers: tuple[Worker, ...],
    ) -> Overview:
        first = max(1, view.next_txid - self._latest)
        latest = tuple(record for txid, record in sorted(records.items()) if record is not None and txid >= first)
        lowest = self._lowest_of(view)
        return Overview(view, outcome, latest, None if lowest is None else records.get(lowest), workers)

    def _workers(self, paths: Mapping[str, LedgerPaths]) -> dict[str, tuple[Worker, ...]]:
        self._cache.fetch([], [ledger_paths.workers for ledger_paths in paths.values()])
        nodes = {
            name: [f"{ledger_paths.workers}/{worker}" for worker in sorted(self._cache.folder(ledger_paths.workers))]
            for name, ledger_paths in paths.items()
        }
        self._cache.fetch(path for each in nodes.values() for path in each)
        return {
            name: tuple(workers_of({path: self._cache.node(path) for path in each})) for name, each in nodes.items()
        }


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
        """All topologies, by name: see :func:`airflow_trident.ledger.open.overviews`."""
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
    sources_root: str = "",
) -> ZNodeLedger:
    """The ledger of one topology in ZooKeeper; connects when first used. Close it, or use it as a context manager.

    :param root: the folder of all ledgers, below the settings' chroot.
    :param incarnation: of the topology, if known: see :class:`ZNodeLedger`.
    :param chunk_bytes: the ledger keeps staged batches of up to this many bytes; none by default.
    :param sources_root: the place of what spouts keep beside the ledger. Without one, metadata have all of it, and a
        ledger that was used with one is refused.
    """
    ledger = ZNodeLedger(ZooKeeperZNodes(settings), topology, root, incarnation=incarnation)
    ledger.chunk_bytes, ledger.sources_root = chunk_bytes, sources_root
    return ledger


def list_topologies(settings: ZooKeeperSettings, *, root: str = DEFAULT_ROOT) -> list[str]:
    """The names of all topologies that have a ledger there.

    :raises LedgerUnavailableError: ZooKeeper does not answer.
    """
    with Ledgers(settings, root=root) as ledgers:
        return ledgers.names()
