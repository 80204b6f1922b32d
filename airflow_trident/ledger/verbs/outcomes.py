"""The coordinator's last outcome, as a record beside `head` and `commit`.

A reader ignores records that it cannot read: they are for people, and what a newer version wrote must not stop an older
one.
"""

from __future__ import annotations

from airflow_trident.errors import CorruptError
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Unchanged
from airflow_trident.protocol.durable_format import Format, plain_fields
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag, OutcomeKind
from airflow_trident.protocol.records import Claim

_FORMAT = Format(noun="the coordinator's outcome", version=1, cure="The next run writes it anew.")


def note(snap: Snapshot, outcome: CoordinatorOutcome) -> Change[None] | Unchanged[None]:
    """Writes the outcome, in a step of its own."""
    said = outcome.after(outcome_at(snap), now_ms=snap.now_ms)
    if said is None:
        return Unchanged(None)
    path = snap.paths.coordinator
    return Change(writes=(written(snap, said),), witness=path, result=None, unchecked=frozenset({snap.paths.head}))


def begun(snap: Snapshot, claim: Claim, lag: dict[str, Lag]) -> Write:
    """The write that says that a transaction was begun, as a part of the step that begins it."""
    outcome = CoordinatorOutcome(kind=OutcomeKind.BEGUN, dag_id=claim.dag_id, run_id=claim.run_id, lag=lag)
    said = outcome.after(outcome_at(snap), now_ms=snap.now_ms)
    assert said is not None
    return written(snap, said)


def outcome_at(snap: Snapshot) -> CoordinatorOutcome | None:
    """None: there is no outcome, or this version cannot read it."""
    path = snap.paths.coordinator
    data = snap.data(path)
    if data is None:
        return None
    try:
        return _FORMAT.build(CoordinatorOutcome, _FORMAT.load(data, path), path)
    except CorruptError:
        return None


def written(snap: Snapshot, outcome: CoordinatorOutcome) -> Write:
    """The record, as a part of a step."""
    body = {"op": snap.op, **plain_fields(outcome)}
    return snap.put(snap.paths.coordinator, _FORMAT.dump(body, "the coordinator's outcome"))
