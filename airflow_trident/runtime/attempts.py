"""Begins attempts, and tells of each. If a spout is opaque, an attempt chooses its batch (P2)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing

from airflow_trident.contracts.spout import Spout
from airflow_trident.errors import spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import MetadataOf
from airflow_trident.protocol.records import CommitTicket, Owner, TxRecord
from airflow_trident.protocol.spout_kinds import SpoutKind
from airflow_trident.runtime.milestones import Milestone, reached
from airflow_trident.topology.topology import Topology
from airflow_trident.types import Json


def start_attempts(
    ledger: Ledger,
    topology: Topology,
    members: Sequence[int | CommitTicket],
    *,
    owner: Owner | str,
    replays: bool = False,
) -> list[TxRecord]:
    """:meth:`Ledger.attempt` for all members, in as few steps as possible. If it raises, some may have their attempt.

    :param members: in the order of their txids.
    """
    metadata_of, digest = _choosing(topology) if topology.opaque else None, topology.compile().digest
    records: list[TxRecord] = []
    while len(records) < len(members):
        records += ledger.attempt(
            members[len(records) :], owner=owner, metadata_of=metadata_of, plan=digest, replays=replays
        )
    return [began(record) for record in records]


def began(record: TxRecord) -> TxRecord:
    """Tells that the attempt of the record has begun. By itself only for one that began with its transaction, when its
    work is taken up: in between the transaction is BEGUN."""
    reached(Milestone.ATTEMPT_STARTED, record.txid)
    return record


def _choosing(topology: Topology) -> MetadataOf:
    """Asks the opaque spouts, once per position: the ledger asks again when others write meanwhile."""
    spouts = {name: spout for name, spout in topology.spouts.items() if spout.kind is SpoutKind.OPAQUE}
    known: dict[str, dict[str, Json]] = {}

    def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json]:
        key = json.dumps([txid, position], sort_keys=True)
        if key not in known:
            known[key] = _chosen(spouts, txid, position)
        return known[key]

    return metadata_of


def _chosen(spouts: dict[str, Spout], txid: int, position: dict[str, Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for name, spout in spouts.items():
        with spout_code(name, txid), closing(spout.coordinator()) as coordinator:
            metadata = coordinator.initialize_transaction(txid, position.get(name))
        if metadata is not None:
            found[name] = metadata
    return found
