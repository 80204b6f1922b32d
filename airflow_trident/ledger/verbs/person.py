"""Verbs that only a person asks for, about one transaction. Pure, as `ledger.verbs`."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.ledger.transact import Done, Snapshot, Step, Write
from airflow_trident.ledger.verbs.opaque import rewrite
from airflow_trident.ledger.verbs.states import require_closable
from airflow_trident.ledger.verbs.transactions import _exceptions_write, _existing, _moved
from airflow_trident.protocol import codec
from airflow_trident.protocol.accepted import MendedSources, accepted
from airflow_trident.protocol.exceptions import closed
from airflow_trident.protocol.records import ERROR_CHARACTERS, TxRecord
from airflow_trident.protocol.statuses import Status


def accept_source(snap: Snapshot, txid: int, sources: MendedSources, reason: str) -> Step[TxRecord]:
    tx, above = _existing(snap, txid), range(txid + 1, snap.next_txid())
    snap.prefetch(map(snap.life.tx, above))
    later = [one for one in map(snap.tx, above) if one is not None]
    found, followed = accepted(tx, later, sources, committed=snap.pointer().committed, reason=reason)
    listed = tx.status in (Status.FAILED, Status.SKIPPED)
    record = replace(found, op=snap.op) if listed else _moved(snap, found, Status.FAILED)
    writes: list[Write] = [
        write for one in (record, *(replace(one, op=snap.op) for one in followed)) for write in rewrite(snap, one)
    ]
    if not listed:
        writes += _exceptions_write(snap, txid, "failed")
    return Step(writes=tuple(writes), witness=snap.life.tx(txid), result=record)


def close_transaction(snap: Snapshot, txid: int, reason: str) -> Step[TxRecord] | Done[TxRecord]:
    tx = _existing(snap, txid)
    if tx.status is Status.CLOSED:
        return Done(tx)
    require_closable(tx, snap.pointer().committed)
    record = _moved(snap, tx, Status.CLOSED, error=reason[:ERROR_CHARACTERS])
    after = codec.encode_exceptions(closed(snap.exceptions(), txid))
    writes = (snap.set_tx(record), snap.set(snap.life.exceptions, after))
    return Step(writes=writes, witness=snap.life.tx(txid), result=record)
