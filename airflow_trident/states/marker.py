"""The decision that every state makes in its atomic step: pure, so that all stores decide alike (T2..T5)."""

from __future__ import annotations

from airflow_trident.errors import FencedError, LateBatchError, LedgerBehindStateError
from airflow_trident.plan.states import Marker
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.types import Json


def admit(marker: Marker | None, ticket: CommitTicket, *, state: str, commutes: bool) -> tuple[Marker, bool]:
    """The marker to write, and whether the batch is to be applied (False: it is there already).

    :raises FencedError: the ticket's fence is lower than the marker's.
    :raises LedgerBehindStateError: the marker is of another incarnation, or holds what the ledger never committed.
    :raises LateBatchError: a late batch for a state whose aggregate does not commute.
    """
    if marker is None:
        holes = ((1, ticket.txid - 1),) if ticket.txid > 1 else ()
        return _marker(ticket, ticket.txid, holes, ticket.position), True
    if marker.incarnation != ticket.incarnation:
        raise LedgerBehindStateError(
            f"state {state!r} belongs to incarnation {marker.incarnation} of the ledger of topology "
            f"{ticket.topology!r} and the ledger is incarnation {ticket.incarnation}: the ledger was wiped or replaced",
            "Seed the ledger from the states with `airflow trident repair`, or give the topology new states.",
        )
    if ticket.fence < marker.fence:
        raise FencedError(
            f"state {state!r} was reached by a newer committer (fence {marker.fence}) than this one "
            f"(fence {ticket.fence}, transaction {ticket.txid})",
            "Nothing was changed; the newer committer finishes the work.",
        )
    # Below the highest txid only a late one may come, into a hole or again; the highest is known by its batch.
    used = ticket.position != marker.position if ticket.txid == marker.high else not ticket.late
    if ticket.txid <= marker.high and used:
        raise LedgerBehindStateError(
            f"state {state!r} holds another transaction {ticket.txid} of topology {ticket.topology!r}, or later "
            f"ones (up to {marker.high}): the ledger was restored from an old copy and gives used txids to new data",
            "Seed the ledger from the states with `airflow trident repair`; nothing was changed.",
        )
    if marker.has(ticket.txid):
        return _marker(ticket, marker.high, marker.holes, marker.position), False
    if ticket.txid > marker.high:
        gap = ((marker.high + 1, ticket.txid - 1),) if ticket.txid > marker.high + 1 else ()
        return _marker(ticket, ticket.txid, marker.holes + gap, ticket.position), True
    if not commutes:
        raise late_batch(ticket.txid, marker.high, state)
    return _marker(ticket, marker.high, _without(marker.holes, ticket.txid), marker.position), True


def late_batch(txid: int, high: int, state: str) -> LateBatchError:
    return LateBatchError(
        f"transaction {txid} comes late (after {high}) and state {state!r} depends on the order of batches",
        "It stays SKIPPED; only rebuilding the state from its sources can take it in.",
    )


def _marker(ticket: CommitTicket, high: int, holes: tuple[tuple[int, int], ...], position: dict[str, Json]) -> Marker:
    return Marker(incarnation=ticket.incarnation, high=high, fence=ticket.fence, holes=holes, position=position)


def _without(holes: tuple[tuple[int, int], ...], txid: int) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for first, last in holes:
        if not first <= txid <= last:
            kept.append((first, last))
            continue
        kept.extend(part for part in ((first, txid - 1), (txid + 1, last)) if part[0] <= part[1])
    return tuple(kept)
