"""The verbs for one transaction that only a person asks for."""

from __future__ import annotations

from dataclasses import replace

from airflow_trident.ledger.refusals import may_be_held
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs import common
from airflow_trident.ledger.verbs.announcements import settled
from airflow_trident.ledger.verbs.opaque import rewrite
from airflow_trident.ledger.verbs.topology import require_closable
from airflow_trident.protocol import codec
from airflow_trident.protocol.accepted_source import MendedSources, accepted
from airflow_trident.protocol.exceptional_txids import closed, over_skipped, shifted
from airflow_trident.protocol.opaque import cannot_skip
from airflow_trident.protocol.records import ERROR_CHARACTERS, TxRecord
from airflow_trident.protocol.seen_by_person import SeenTransaction
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.txids import Txids


def skip(
    snap: Snapshot, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """-> SKIPPED: other transactions may pass it; the pointer moves over it when it can.

    :param seen: the transaction as it was when the person decided; without it any is accepted.
    :raises TransitionError: a commit of it has begun (`touched`), so a state may hold it; or it has changed since
        `seen`.
    :raises InvalidatedError: it has no batch to leave out.
    """
    tx = _as_seen(snap, txid, seen)
    if tx.status is Status.SKIPPED:
        return Unchanged(tx)
    if tx.invalidated:
        raise cannot_skip(txid)
    if tx.touched and not tx.status.is_final:
        raise may_be_held(snap.topology().name, txid)
    record = common.moved(snap, tx.with_error(reason), Status.SKIPPED)
    pointer, exceptions = snap.pointer(), snap.exceptions()
    writes: list[Write] = [snap.set_tx(record), *common.exceptions_write(snap, txid, "skipped")]
    upto = over_skipped(pointer.committed, shifted(exceptions, txid, "skipped"))
    if upto != pointer.committed:
        writes.append(snap.set(snap.paths.commit, codec.encode_pointer(replace(pointer, committed=upto))))
    return Change(writes=tuple(writes), witness=snap.paths.tx(txid), result=record)


def accept_source(
    snap: Snapshot, txid: int, sources: MendedSources, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord]:
    """A transaction that is not committed anywhere takes its source as it is now: new metadata, attempt + 1, nothing
    staged, FAILED (or SKIPPED, as it was), `reason` in the record. Later transactions keep their batch (P2).

    :param sources: asked for every stream of its batch; may be asked again, so it has no side effects.
    :param seen: as for :func:`skip`.
    :raises TransitionError: see :func:`airflow_trident.protocol.accepted_source.accepted`; or it has changed since
        `seen`.
    :raises PassedOverError: it is SKIPPED, and a commit that went over it has not ended. The metadata of that later
        transaction may follow from it.
    """
    tx, above = _as_seen(snap, txid, seen), range(txid + 1, snap.next_txid())
    common.require_not_passed_over(snap, tx)
    snap.prefetch_transactions(above)
    later = [one for one in map(snap.tx, above) if one is not None]
    found, followed = accepted(tx, later, sources, committed=snap.pointer().committed, reason=reason)
    listed = tx.status in (Status.FAILED, Status.SKIPPED)
    record = replace(found, op=snap.op) if listed else common.moved(snap, found, Status.FAILED)
    writes: list[Write] = [
        write for one in (record, *(replace(one, op=snap.op) for one in followed)) for write in rewrite(snap, one)
    ]
    if not listed:
        writes += common.exceptions_write(snap, txid, "failed")
    return Change(writes=tuple(writes), witness=snap.paths.tx(txid), result=record)


def close_transaction(
    snap: Snapshot, txid: int, reason: str, *, seen: SeenTransaction | None = None
) -> Change[TxRecord] | Unchanged[TxRecord]:
    """SKIPPED -> CLOSED: it will never be replayed, so nobody has to remember it (P10, L14).

    :param seen: as for :func:`skip`.
    :raises TransitionError: it is not SKIPPED, or the pointer has not passed it; or it has changed since `seen`.
    """
    tx = _as_seen(snap, txid, seen)
    if tx.status is Status.CLOSED:
        return Unchanged(tx)
    require_closable(tx, snap.pointer().committed)
    record = common.moved(snap, tx, Status.CLOSED, error=reason[:ERROR_CHARACTERS])
    after = codec.encode_exceptions(closed(snap.exceptions(), txid))
    writes = (snap.set_tx(record), snap.set(snap.paths.exceptions, after), *settled(snap, Txids.of(txid)))
    return Change(writes=writes, witness=snap.paths.tx(txid), result=record)


def _as_seen(snap: Snapshot, txid: int, seen: SeenTransaction | None) -> TxRecord:
    tx = common.existing(snap, txid)
    if seen is not None:
        seen.require(tx)
    return tx
