"""Two steps of a group in one, for a process that goes from group to group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airflow_trident.ledger.begin_result import DEFAULT_MAX_PENDING, DEFAULT_RETENTION, BatchesOf, Begun, LagOf
from airflow_trident.ledger.group_answers import CommittedAndBegun
from airflow_trident.ledger.snapshot import Snapshot
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.ledger.verbs.begin import begin_many
from airflow_trident.ledger.verbs.commits import committed_many
from airflow_trident.ledger.verbs.group_steps import Together
from airflow_trident.protocol.records import Claim, CommitTicket, Owner


def committed_and_begin(
    snap: Snapshot,
    tickets: Sequence[CommitTicket],
    claims: Sequence[Claim],
    batches_of: BatchesOf,
    *,
    retention: int = DEFAULT_RETENTION,
    max_pending: int = DEFAULT_MAX_PENDING,
    attempt_by: Owner | str = "",
    lag_of: LagOf | None = None,
    plan: str = "",
) -> Change[CommittedAndBegun] | Unchanged[CommittedAndBegun]:
    """`committed_many`, and `begin_many` for the next ones: the committed ones make room for them.

    If it raises, nothing is changed: if a source cannot be asked, the caller uses the tickets with `committed_many`.

    :raises FencedError: a newer ticket was given out.
    """
    together = Together(snap)
    records = together.then(partial(committed_many, tickets=tickets, retention=retention))
    begin = partial(
        begin_many,
        claims=claims,
        batches_of=batches_of,
        max_pending=max_pending,
        attempt_by=attempt_by,
        lag_of=lag_of,
        plan=plan,
        step_bytes=together.bytes,
    )
    result = CommittedAndBegun.of(records, together.then(begin))
    return together.change(result, witness=_claim_of(snap, result.begun))


def _claim_of(snap: Snapshot, begun: Sequence[Begun]) -> str:
    """The key of the first new claim: nobody overwrites it, while somebody may overwrite a record."""
    new = (one.record for one in begun if one.new and one.record is not None)
    return next((snap.paths.claim(record.claim.key) for record in new), "")
