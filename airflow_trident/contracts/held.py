"""Is what a state holds by a txid the transaction that the ledger knows by that txid?

A ledger that was restored from an old copy gives out txids, and in time fences, that its states have seen. Numbers tell
only until they are reached; positions tell always. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import LedgerBehindStateError
from airflow_trident.protocol.records import NO_ATTEMPT, LedgerView, TxRecord
from airflow_trident.protocol.txids import Txids
from airflow_trident.types import Json


def digest_of(position: dict[str, Json]) -> str:
    """Digest of `CommitTicket.position`: 16 bytes, hexadecimal. Equal positions have the same digest."""
    text = json.dumps(position, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def is_known_as(marker: Marker, txid: int, position: dict[str, Json], attempt: int, *, opaque: bool) -> bool:
    """Does the marker know by `txid`, which came in its highest step, the transaction with this position?

    :param opaque: a newer attempt may have another batch; an older one is not what the state has.
    """
    if txid != marker.high:
        return marker.group.get(txid) == digest_of(position)
    if opaque and marker.attempt > NO_ATTEMPT and attempt != marker.attempt:
        return attempt > marker.attempt
    return position == marker.position


def in_question(marker: Marker, view: LedgerView, since: int) -> Txids:
    """Of what the state holds, the txids of transactions that are not COMMITTED yet: only their records tell whether
    they are the same.

    :param since: the first txid since the state belongs to the topology. What it held before is nobody's question.
    """
    open_ = Txids.of(*view.exceptions.late, *view.exceptions.failed)
    return _held(marker, since) & (open_ | Txids.span(view.pointer.committed + 1, marker.high))


def of_others(marker: Marker, view: LedgerView, since: int, records: Iterable[TxRecord]) -> str:
    """What the state holds and the ledger knows as something else, for people; "" if there is nothing.

    :param view: with all that was known when the marker was read, or a later one.
    :param since: as for :func:`in_question`.
    :param records: of all that is :func:`in_question`, as they were then or are later.
    """
    held, known = _held(marker, since), view.exceptions
    begun, other = Txids(), Txids()
    for tx in records:
        if tx.txid not in held or tx.status.is_final:
            continue  # final meanwhile
        if not tx.touched:
            begun |= Txids.of(tx.txid)
        elif not _is_same(marker, tx, view):
            other |= Txids.of(tx.txid)
    found = (
        (held & known.skipped, "the ledger has as SKIPPED"),
        # A hole below the floor of tickets is forgotten, and looks like a txid that is held; the highest one never is.
        (held & known.closed & Txids.of(marker.high), "the ledger has as CLOSED"),
        (begun, "the ledger has not begun to commit"),
        (other, "has another position in the ledger"),
    )
    return ", and ".join(f"{txids}, which {what}" for txids, what in found if txids)


def _held(marker: Marker, since: int) -> Txids:
    return Txids.span(since, marker.high) - Txids(marker.holes)


def _is_same(marker: Marker, tx: TxRecord, view: LedgerView) -> bool:
    opaque = bool(view.topology.definition.opaque)
    if tx.invalidated or tx.txid <= view.pointer.committed or (opaque and marker.attempt == NO_ATTEMPT):
        return True  # one that lost its batch, or comes late, or whose batch the state cannot replace: nothing tells
    return is_known_as(marker, tx.txid, tx.position, tx.attempt, opaque=opaque)


def other_ledger(topology: str, what: str) -> LedgerBehindStateError:
    """The refusal of a state that belongs to another ledger than the one that asks. The causes that need no cure of the
    state come first.

    :param what: what the state holds, and what the ledger is.
    """
    return LedgerBehindStateError(
        f"{what}: another environment writes this state with a ledger of its own, or the ledger was deleted",
        "Nothing was changed. First compare [trident] root and the ZooKeeper connection with those of the environment "
        "that writes this state, and give one of the two a state of its own. Only if the ledger was deleted, pause the "
        "DAG and restore it, or seed it from the states: "
        f'`airflow trident repair {topology} --take-over "the ledger was deleted"`.',
    )
