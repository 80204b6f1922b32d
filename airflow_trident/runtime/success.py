"""Coordinators learn from the ledger which of their batches are committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_trident.contracts.spout import Coordinator
from airflow_trident.errors import spout_code
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import TopologyRecord, TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.protocol.txids import Txids


def tell_success(ledger: Ledger, topology: TopologyRecord, coordinators: Mapping[str, Coordinator]) -> None:
    """Tells coordinators that implement `success` which transactions are committed, those that implement `skipped`
    which ones are passed, and those that implement `cleanup_before` which are over. The ledger says so, so it is never
    too early; and they are told again each time, so a kill loses nothing. What nobody was told of is not pruned.

    :param topology: as the caller has seen it.
    """
    told, passing, cleaning = (_with(name, coordinators) for name in ("success", "skipped", "cleanup_before"))
    records = ledger.transactions() if told or cleaning or passing else ()
    committed = [record for record in records if record.status is Status.COMMITTED]
    for record in committed:
        for name in told.keys() & record.metadata.keys():
            with spout_code(name, record.txid):
                told[name].success(record.txid, record.metadata[name])
    _note(ledger, topology.told, _over(records) if told else None)
    passed = [record for record in records if record.status in (Status.SKIPPED, Status.CLOSED)]
    for name, one in passing.items():
        with spout_code(name):
            one.skipped({record.txid: record.metadata[name] for record in passed if name in record.metadata})
    if committed:
        needed = [record.txid for record in records if not record.status.is_final]
        for name, one in cleaning.items():
            with spout_code(name):
                one.cleanup_before(min([committed[-1].txid, *needed]))


def _with(method: str, coordinators: Mapping[str, Coordinator]) -> dict[str, Coordinator]:
    """The coordinators that implement a method which need not be."""
    given = getattr(Coordinator, method)
    return {name: one for name, one in coordinators.items() if getattr(type(one), method) is not given}


def _over(records: Sequence[TxRecord]) -> Txids:
    """What nobody has to be told of any more, with what is pruned: so it has no more gaps than there are unfinished
    transactions.

    :param records: all that are kept, after coordinators were told of them.
    """
    last = max((record.txid for record in records if record.status.is_final), default=0)
    return Txids.span(1, last) - Txids.of(*(record.txid for record in records if not record.status.is_final))


def _note(ledger: Ledger, known: Txids | None, told: Txids | None) -> None:
    """Costs something only if there is news."""
    if (told is None) != (known is None) or (told is not None and known is not None and told - known):
        ledger.note_told(told)
