"""Reads many topologies together: a few round trips for all, where each alone takes five."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from airflow_trident.errors import TridentError, UnknownTopologyError
from airflow_trident.ledger.backup.importing import require_finished
from airflow_trident.ledger.paths import DEFAULT_ROOT, LedgerPaths, topology_path
from airflow_trident.ledger.snapshot import Cache, Snapshot
from airflow_trident.ledger.verbs import outcomes
from airflow_trident.ledger.workers import Worker, workers_of
from airflow_trident.ledger.znodes import ZNodes
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
    found: dict[str, Overview | TridentError] = {}
    for at in range(0, len(names), TOGETHER):
        found |= _Reading(znodes, root, latest, lowest_of).of(names[at : at + TOGETHER])
    return found


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
        self._cache.fetch(path for one in paths.values() for path in one.about(0))
        snaps = {name: Snapshot(one, self._cache, 0) for name, one in paths.items()}
        views = dict(self._each(snaps, lambda snap: snap.view(0)))
        wanted = {name: self._wanted(view) for name, view in views.items()}
        self._cache.fetch(paths[name].tx(txid) for name, txids in wanted.items() for txid in txids)
        known = {snaps[name]: (txids, self._lowest_of(views[name])) for name, txids in wanted.items()}
        records = dict(
            self._each({name: snaps[name] for name in views}, lambda snap: self._records(snap, *known[snap]))
        )
        workers = self._workers({name: paths[name] for name in records if self._lowest_of(views[name]) is not None})
        whole = {
            name: self._overview(views[name], outcomes.outcome_at(snaps[name]), read, workers.get(name, ()))
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
        for name, one in all_.items():
            if name not in self._failed:
                try:
                    yield name, read(one)
                except TridentError as error:
                    self._failed[name] = error

    def _wanted(self, view: LedgerView) -> list[int]:
        lowest = self._lowest_of(view)
        last = range(max(1, view.next_txid - self._latest), view.next_txid)
        return sorted({*last, *([] if lowest is None else [lowest])})

    def _records(self, snap: Snapshot, txids: Sequence[int], lowest: int | None) -> dict[int, TxRecord | None]:
        return {txid: snap.tx(txid) if txid == lowest else self._light(snap.paths.tx(txid)) for txid in txids}

    def _light(self, path: str) -> TxRecord | None:
        """Does not fetch metadata kept apart: nobody needs it here, and it may be megabytes."""
        node = self._cache.node(path)
        return None if node is None else codec.decode_tx(node.data, path, lambda _ref: ({}, {}))

    def _overview(
        self,
        view: LedgerView,
        outcome: CoordinatorOutcome | None,
        known: Mapping[int, TxRecord | None],
        workers: tuple[Worker, ...],
    ) -> Overview:
        first = max(1, view.next_txid - self._latest)
        latest = tuple(one for txid, one in sorted(known.items()) if one is not None and txid >= first)
        lowest = self._lowest_of(view)
        return Overview(view, outcome, latest, None if lowest is None else known.get(lowest), workers)

    def _workers(self, paths: Mapping[str, LedgerPaths]) -> dict[str, tuple[Worker, ...]]:
        self._cache.fetch([], [one.workers for one in paths.values()])
        nodes = {
            name: [f"{one.workers}/{worker}" for worker in sorted(self._cache.folder(one.workers))]
            for name, one in paths.items()
        }
        self._cache.fetch(path for each in nodes.values() for path in each)
        return {
            name: tuple(workers_of({path: self._cache.node(path) for path in each})) for name, each in nodes.items()
        }
