"""Has a source data that no transaction of its topology covers? For sensors and triggers; begins nothing."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from airflow_trident.errors import UnknownTopologyError, spout_code
from airflow_trident.runtime.open_resources import SourceNotes
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json

if TYPE_CHECKING:
    from airflow_trident.ledger.ledger import Ledger


def last_position(ledger: Ledger) -> tuple[int, dict[str, Json] | None]:
    """The last transaction and its end position: empty before the first transaction, None while it has no batch."""
    try:
        last = ledger.view(0).next_txid - 1
    except UnknownTopologyError:
        return 0, {}
    record = ledger.view(last).tx if last else None
    if record is not None and record.invalidated:
        return last, None
    return last, record.position if record is not None else {}


def first_ready(topology: Topology, position: dict[str, Json], notes: SourceNotes) -> str | None:
    """The first stream with data after the position.

    :param notes: of the topology's ledger.
    :raises TridentError: a source does not answer.
    """
    for stream, spout in topology.spouts.items():
        with spout_code(stream), closing(notes.open(stream, spout)) as coordinator:
            if coordinator.is_ready(position.get(stream)):
                return stream
    return None
