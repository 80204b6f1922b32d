"""Is what a state holds by a txid the transaction that the ledger knows by that txid?

A ledger that was restored from an old copy gives out txids, and in time fences, that its states have seen. Numbers tell
only until they are reached; positions tell always. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from airflow_trident.contracts.state import Marker
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json


def digest_of(position: dict[str, Json]) -> str:
    """Digest of `CommitTicket.position`: 16 bytes, hexadecimal. Equal positions have the same digest."""
    text = json.dumps(position, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_known_as(marker: Marker, txid: int, position: dict[str, Json], attempt: int, *, opaque: bool) -> bool:
    """Does the marker know by `txid`, one of its highest step's, the transaction with this position?

    :param opaque: a newer attempt may have another batch; an older one is not what the state has.
    """
    if txid != marker.high:
        return marker.group.get(txid) == digest_of(position)
    if opaque and marker.attempt > NO_ATTEMPT and attempt != marker.attempt:
        return attempt > marker.attempt
    return position == marker.position


def in_question(marker: Marker, view: LedgerView) -> Txids:
    """Of what the state holds, the txids of transactions that are not COMMITTED yet: only their records tell whether
    they are the same."""
    open_ = Txids.of(*view.exceptions.late, *view.exceptions.failed) | Txids.span(
        view.pointer.committed + 1, marker.high
    )
    return _held(marker) & open_ if open_ else open_


def of_others(marker: Marker, view: LedgerView, records: Iterable[TxRecord]) -> Txids:
    """The txids of transactions that the state holds, and that cannot be those of the ledger: there they are SKIPPED,
    no commit of them has begun, or their position is another one.

    :param view: with all that was known when the marker was read, or a later one.
    :param records: of all that is :func:`in_question`, as they were then or are later.
    """
    held, skipped = _held(marker), view.exceptions.skipped
    others = [tx.txid for tx in records if tx.txid in held and not _is_own(marker, tx, view)]
    return Txids.of(*others) | (held & skipped if skipped else skipped)


def _held(marker: Marker) -> Txids:
    return Txids.span(1, marker.high) - Txids(marker.holes)


def _is_own(marker: Marker, tx: TxRecord, view: LedgerView) -> bool:
    if tx.status.is_final:
        return True  # meanwhile
    if not tx.touched or tx.invalidated or tx.txid <= view.pointer.committed:
        return tx.touched  # of one that comes late, or lost its batch, the position tells nothing
    opaque = bool(view.topology.definition.opaque)
    return is_known_as(marker, tx.txid, tx.position, tx.attempt, opaque=opaque)
