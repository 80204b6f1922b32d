"""The states of a topology and the coordinators of its spouts, open for one transaction or for many.

Coordinators keep notes beside the ledger: in a folder for each stream of each incarnation, below one place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_trident.closeable import OpenTogether
from airflow_trident.contracts.spout import Coordinator, Spout
from airflow_trident.contracts.state import State
from airflow_trident.errors import UnknownTopologyError, spout_code, state_code
from airflow_trident.names import Composed
from airflow_trident.protocol.decide import MendedSources
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

if TYPE_CHECKING:
    from airflow_trident.io.place import Place
    from airflow_trident.ledger.answers import Begun
    from airflow_trident.ledger.ledger import Ledger


class OpenStates(OpenTogether[State]):
    """Name -> state."""

    def __init__(self, topology: Topology) -> None:
        super().__init__(lambda: _each_state(topology))


def _each_state(topology: Topology) -> Iterator[tuple[str, State]]:
    for name, spec in topology.states.items():
        with state_code(name):
            state = spec.factory.make_state(spec)
        yield name, state


SOURCES = "the folder of [trident] sources_dir"
_FOLDERS = Composed(joint="__", has_case=False)
SWEEP_TRANSACTIONS = 100
"""After so many transactions the notes of coordinators are swept."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourceNotes:
    """Where the coordinators of a topology keep their notes; `root` "": nowhere."""

    root: str = ""
    topology: str = ""
    incarnation: str = ""

    @classmethod
    def of(cls, ledger: Ledger, root: str = "") -> SourceNotes:
        """A topology without a ledger has none: nothing was read.

        :param root: the ledger's `sources_root`, if it was opened without.
        """
        if root := root or ledger.sources_root:
            with suppress(UnknownTopologyError):
                return cls(root, ledger.topology_name, ledger.paths().incarnation)
        return cls()

    def place(self, stream: str) -> Place:
        from airflow_trident.io.places import place_at

        folder = f"{_FOLDERS.of(self.topology)}/{self.incarnation}/{_FOLDERS.of(stream)}"
        return place_at(self.root, SOURCES).below(folder)

    def open(self, stream: str, spout: Spout) -> Coordinator:
        """The coordinator of a stream's spout. The caller closes it."""
        with spout_code(stream):
            coordinator = spout.coordinator()
            if self.root:
                coordinator.keep_notes_in(self.place(stream))
        return coordinator


class OpenCoordinators(OpenTogether[Coordinator]):
    """Stream name -> coordinator. A spout in another program starts once."""

    def __init__(self, topology: Topology, ledger: Ledger) -> None:
        super().__init__(lambda: _each_coordinator(topology, SourceNotes.of(ledger)))


def _each_coordinator(topology: Topology, notes: SourceNotes) -> Iterator[tuple[str, Coordinator]]:
    for name, spout in topology.spouts.items():
        yield name, notes.open(name, spout)


def sweep_notes(ledger: Ledger, coordinators: Mapping[str, Coordinator], begun: Sequence[Begun]) -> None:
    """Has coordinators delete notes that the ledger no longer refers to, if these transactions make that due."""
    txids = [each.txid for each in begun if each.new]
    keepers = {name: it for name, it in coordinators.items() if type(it).sweep_notes is not Coordinator.sweep_notes}
    is_due = any(txid % SWEEP_TRANSACTIONS == 0 for txid in txids)
    if not is_due or not keepers or not ledger.sources_root:
        return
    try:
        records = ledger.transactions()
        for name, coordinator in keepers.items():
            with spout_code(name):
                kept = [record.position[name] for record in records if name in record.position]
                coordinator.sweep_notes(kept, records[-1].txid)
    except Exception:  # noqa: BLE001 - the transactions have begun
        _log.exception("The notes of the sources of topology %s could not be swept", ledger.topology_name)


class MendedStreams(MendedSources):
    """By the coordinators of the streams. If the topology no longer has a stream, the recorded metadata stays."""

    def __init__(self, coordinators: dict[str, Coordinator]) -> None:
        self._coordinators = coordinators

    def accept(self, stream: str, metadata: Json) -> Json:
        coordinator = self._coordinators.get(stream)
        if coordinator is None:
            return metadata
        with spout_code(stream):
            return coordinator.accept_source(metadata)

    def follow(self, stream: str, later: Json, accepted: Json) -> Json:
        with spout_code(stream):
            return self._coordinators[stream].follow_source(later, accepted)
