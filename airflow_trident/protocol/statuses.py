"""The state machine of a transaction: one enum, one table, one function that moves it.

After Storm's MasterBatchCoordinator (PROCESSING, PROCESSED, COMMITTING), made durable and extended by an end for
transactions that keep failing.
"""

from __future__ import annotations

from enum import StrEnum

from airflow_trident.errors import TransitionError


class Status(StrEnum):
    """How far a transaction is."""

    PROCESSING = "PROCESSING"
    """Claimed; its batch is recorded; an attempt may be at work."""
    PROCESSED = "PROCESSED"
    """The current attempt's staged batch is durable; it waits for its turn."""
    COMMITTING = "COMMITTING"
    """Its turn has come; states may have been touched."""
    COMMITTED = "COMMITTED"
    """Every state has it. Final."""
    FAILED = "FAILED"
    """Attempts are used up; later commits wait until it is replayed or skipped."""
    SKIPPED = "SKIPPED"
    """A person or the policy let later ones pass; it can still be backfilled."""
    CLOSED = "CLOSED"
    """It was SKIPPED, and a person decided never to replay it. Final."""

    @property
    def is_final(self) -> bool:
        return self in (Status.COMMITTED, Status.CLOSED)

    @property
    def lets_others_pass(self) -> bool:
        """May a higher txid commit while this one has this status (P6)?"""
        return self in (Status.COMMITTED, Status.SKIPPED, Status.CLOSED)


TRANSITIONS: dict[Status, frozenset[Status]] = {
    # a new attempt stays in PROCESSING
    Status.PROCESSING: frozenset({Status.PROCESSING, Status.PROCESSED, Status.FAILED, Status.SKIPPED}),
    Status.PROCESSED: frozenset({Status.PROCESSING, Status.COMMITTING, Status.FAILED, Status.SKIPPED}),
    # COMMITTING again: a newer committer took over; PROCESSING: the staged batch is gone and must be emitted again.
    # Not SKIPPED: a state may already have the batch.
    Status.COMMITTING: frozenset({Status.COMMITTING, Status.COMMITTED, Status.PROCESSING, Status.FAILED}),
    Status.COMMITTED: frozenset(),
    Status.FAILED: frozenset({Status.PROCESSING, Status.SKIPPED}),
    Status.SKIPPED: frozenset({Status.PROCESSING, Status.CLOSED}),
    Status.CLOSED: frozenset(),
}


def move(current: Status, target: Status, *, txid: int) -> Status:
    """The only way from one status to another.

    :raises TransitionError: the table has no such step; names what is allowed.
    """
    if target in TRANSITIONS[current]:
        return target
    allowed = ", ".join(sorted(TRANSITIONS[current])) or "nothing, it is final"
    raise TransitionError(
        f"transaction {txid} is {current} and cannot become {target} (allowed: {allowed})",
        "See what the ledger says of it, with `airflow trident ledger list` and `ledger show`.",
    )


class OnFailure(StrEnum):
    """What becomes of a transaction that has no attempts left."""

    BLOCK = "block"
    """FAILED: later commits wait until a person replays or skips it."""
    SKIP = "skip"
    """SKIPPED: later commits pass; it can be backfilled."""
