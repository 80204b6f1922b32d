"""The decision that every state makes in its atomic step (T2..T5, T9, T11). Pure, so all stores decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_trident.contracts.state import (
    Applied,
    Marker,
    State,
    StateSpec,
    Verdict,
    digest_of,
    is_known_as,
    other_ledger,
)
from airflow_trident.errors import FencedError, GoneOverError, HeldError, LateBatchError, LedgerBehindStateError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket
from airflow_trident.protocol.state_gaps import state_behind
from airflow_trident.protocol.txids import Txids
from airflow_trident.states.core.groups import Group
from airflow_trident.types import Json

if TYPE_CHECKING:
    import pyarrow as pa


class AdmittingState(State):
    """A state whose `apply` asks :func:`admit` in its atomic step, so `bar` is an `apply` of the marker alone."""

    _spec: StateSpec

    def bar(self, ticket: CommitTicket) -> None:
        self.apply(replace(ticket, bars=True), arrow_schema(self._spec.staged).empty_table())

    def apply_group(self, tickets: Sequence[CommitTicket], batches: Sequence[pa.Table]) -> tuple[Applied, ...]:
        if not self._spec.factory.capabilities.groups:
            return super().apply_group(tickets, batches)
        if len(tickets) == 1:
            return (self.apply(tickets[0], *batches),)
        return self._apply_group(Group(self._spec, tickets, batches))

    def _apply_group(self, group: Group) -> tuple[Applied, ...]:
        """Apply in one atomic step, after the decision of :func:`admit_group`."""
        raise NotImplementedError


def admit(
    marker: Marker | None, ticket: CommitTicket, *, state: str, commutes: bool, opaque: bool = False
) -> tuple[Marker, Verdict]:
    """The marker to write, and what to do with the batch.

    :param opaque: `StateSpec.opaque`: a newer attempt may replace the batch of the highest txid.
    :raises FencedError: the ticket's fence is lower than the marker's.
    :raises LedgerBehindStateError: the marker is of another incarnation, or holds what the ledger never committed.
    :raises StateBehindLedgerError: the state lacks what the ticket needs.
    :raises LateBatchError: a late batch for a state whose aggregate does not commute.
    :raises HeldError: the ticket bars, and its transaction is applied.
    """
    if ticket.bars:
        return _barred(marker, ticket, state), Verdict.SKIP
    attempt = ticket.attempt if opaque else NO_ATTEMPT
    if marker is None:
        _require_whole(marker, ticket, state)
        return _highest(ticket, ((1, ticket.txid - 1),) if ticket.txid > 1 else (), attempt), Verdict.APPLY
    _require_newest(marker, ticket, state)
    _require_whole(marker, ticket, state)
    if opaque and ticket.txid == marker.high and NO_ATTEMPT < marker.attempt < ticket.attempt:
        return _highest(ticket, marker.holes, attempt), Verdict.REPLACE
    _require_own(marker, ticket, state, opaque)
    if marker.has(ticket.txid):
        return replace(marker, fence=ticket.fence, holes=_from(ticket.floor, marker.holes)), Verdict.SKIP
    if ticket.txid > marker.high:
        gap = ((marker.high + 1, ticket.txid - 1),) if ticket.txid > marker.high + 1 else ()
        return _highest(ticket, marker.holes + gap, attempt), Verdict.APPLY
    if not commutes:
        raise late_batch(ticket.txid, marker.high, state)
    holes = _from(ticket.floor, _without(marker.holes, ticket.txid))
    return replace(marker, fence=ticket.fence, holes=holes), Verdict.APPLY


def admit_group(
    marker: Marker | None, tickets: Sequence[CommitTicket], *, state: str, commutes: bool
) -> tuple[Marker, tuple[Verdict, ...]]:
    """The marker after all tickets of one step, lowest first, and what to do with the batch of each (T12).

    Same as :func:`admit` for one after the other. If anything is new, the marker's group names all txids of the step,
    also those that the state held before: the ledger may not have committed them yet.

    :param tickets: at least one; all with the same fence, none late.
    :raises: as :func:`admit`; then no ticket is admitted.
    """
    verdicts = []
    for ticket in tickets:
        marker, verdict = admit(marker, ticket, state=state, commutes=commutes)
        verdicts.append(verdict)
    assert marker is not None, "a group has tickets"
    if Verdict.APPLY in verdicts and len(tickets) > 1:
        marker = replace(marker, group={ticket.txid: digest_of(ticket.position) for ticket in tickets})
    return marker, tuple(verdicts)


def group_to_json(group: dict[int, str]) -> list[list[Json]]:
    """`Marker.group` in stored form."""
    return [[txid, digest] for txid, digest in group.items()]


def group_from_json(content: Sequence[Sequence[Json]]) -> dict[int, str]:
    """:raises ValueError, TypeError: `group_to_json` did not write it."""
    return {int(str(txid)): str(digest) for txid, digest in content}


def _barred(marker: Marker | None, ticket: CommitTicket, state: str) -> Marker:
    """The marker with the ticket's fence, for a state that does not hold its transaction."""
    _require_whole(marker, ticket, state)
    if marker is None:
        return Marker(incarnation=ticket.incarnation, high=0, fence=ticket.fence)
    _require_newest(marker, ticket, state)
    if marker.has(ticket.txid):
        raise HeldError(
            f"state {state!r} holds transaction {ticket.txid} of topology {ticket.topology!r}: its commit cannot be "
            "taken back",
            "Correct what keeps the other states from taking it, and run its commit again: `airflow trident backfill "
            f"{ticket.topology} --txid {ticket.txid}`.",
        )
    return replace(marker, fence=ticket.fence)


def _require_newest(marker: Marker, ticket: CommitTicket, state: str) -> None:
    if marker.incarnation != ticket.incarnation:
        raise other_ledger(
            ticket.topology,
            f"state {state!r} belongs to incarnation {marker.incarnation} of the ledger of topology "
            f"{ticket.topology!r} and the ledger is incarnation {ticket.incarnation}",
        )
    if ticket.fence < marker.fence:
        raise FencedError(
            f"state {state!r} was reached by a newer committer (fence {marker.fence}) than this one "
            f"(fence {ticket.fence}, transaction {ticket.txid})",
            "Nothing was changed; the newer committer finishes the work.",
        )


def _require_whole(marker: Marker | None, ticket: CommitTicket, state: str) -> None:
    """A transaction missing below the batch must be a gap in the ledger; else the state was restored, or lost data."""
    needed = ticket.needed.get(state, Txids())
    lacking = needed if marker is None else marker.lacks(needed)
    if lacking:
        raise state_behind(ticket.topology, state, lacking, 0 if marker is None else marker.high)


def _require_own(marker: Marker, ticket: CommitTicket, state: str, opaque: bool) -> None:
    """Is the ticket's transaction the one that this state knows by that txid?

    Nothing is known above the highest txid. Below it, these may come: a late transaction, for a hole or repeated, or
    one of the highest txid's group; the latter must have the same digest of its position. The highest must have the
    same position, and no older attempt if attempts may have different batches.
    """
    if ticket.txid > marker.high or (ticket.late and ticket.txid < marker.high):
        return
    if not is_known_as(marker, ticket.txid, ticket.position, ticket.attempt, opaque=opaque):
        raise _another(ticket, marker, state)


def _another(ticket: CommitTicket, marker: Marker, state: str) -> LedgerBehindStateError:
    if marker.has(ticket.txid):
        return LedgerBehindStateError(
            f"state {state!r} holds another transaction {ticket.txid} of topology {ticket.topology!r}: the ledger was "
            "restored from an old copy and gives used txids to new data",
            "Nothing was changed. Pause the DAG and seed the ledger from the states: `airflow trident repair "
            f"{ticket.topology}`.",
        )
    return GoneOverError(
        f"state {state!r} holds transactions of topology {ticket.topology!r} up to {marker.high}, and not "
        f"{ticket.txid}, which does not come late: the ledger was restored to where it was not SKIPPED yet",
        "Nothing was changed. `airflow trident doctor` names the commands after which it comes late.",
    )


def late_batch(txid: int, high: int, state: str) -> LateBatchError:
    return LateBatchError(
        f"transaction {txid} comes late (after {high}) and state {state!r} depends on the order of batches",
        "It stays SKIPPED; only rebuilding the state from its sources can take it in.",
    )


def _highest(ticket: CommitTicket, holes: tuple[tuple[int, int], ...], attempt: int) -> Marker:
    return Marker(
        incarnation=ticket.incarnation,
        high=ticket.txid,
        fence=ticket.fence,
        holes=_from(ticket.floor, holes),
        position=ticket.position,
        attempt=attempt,
    )


def _from(floor: int, holes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Without holes below `floor`: nothing can fill them any more."""
    return tuple((max(first, floor), last) for first, last in holes if last >= floor)


def _without(holes: tuple[tuple[int, int], ...], txid: int) -> tuple[tuple[int, int], ...]:
    kept: list[tuple[int, int]] = []
    for first, last in holes:
        if not first <= txid <= last:
            kept.append((first, last))
            continue
        kept.extend(part for part in ((first, txid - 1), (txid + 1, last)) if part[0] <= part[1])
    return tuple(kept)
