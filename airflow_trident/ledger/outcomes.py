"""The coordinator's last outcome as a record beside `head` and `commit`.

Read with tolerance: it is for people, and what a newer version wrote must not keep an older one from its work.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from airflow_trident.ledger.transact import Done, Snapshot, Step, Write
from airflow_trident.protocol.outcomes import CoordinatorOutcome, Lag, OutcomeKind
from airflow_trident.protocol.records import Claim


def note(snap: Snapshot, outcome: CoordinatorOutcome) -> Step[None] | Done[None]:
    """Say it, in a step of its own."""
    said = outcome.after(outcome_at(snap), next_txid=snap.next_txid(), now_ms=snap.now_ms)
    if said is None:
        return Done(None)
    path = snap.life.coordinator
    return Step(writes=(_write(snap, said),), witness=path, result=None, unchecked=frozenset({snap.life.head}))


def begun(snap: Snapshot, claim: Claim, txid: int, lag: dict[str, Lag]) -> Write:
    """That a transaction was begun, as a part of the step that begins it."""
    outcome = CoordinatorOutcome(kind=OutcomeKind.BEGUN, dag_id=claim.dag_id, run_id=claim.run_id, lag=lag)
    said = outcome.after(outcome_at(snap), next_txid=txid + 1, now_ms=snap.now_ms)
    assert said is not None
    return _write(snap, said)


def outcome_at(snap: Snapshot) -> CoordinatorOutcome | None:
    """None: nothing was said, or nobody here can read it."""
    data = snap.data(snap.life.coordinator)
    if data is None:
        return None
    try:
        body = json.loads(data)
        known = {name: body[name] for name in CoordinatorOutcome.__dataclass_fields__ if name in body}
        return CoordinatorOutcome(**{**known, "kind": OutcomeKind(body["kind"])})
    except (ValueError, TypeError, KeyError):
        return None


def _write(snap: Snapshot, outcome: CoordinatorOutcome) -> Write:
    body = {"v": 1, "op": snap.op, **asdict(outcome)}
    return snap.put(snap.life.coordinator, json.dumps(body, separators=(",", ":")).encode("ascii"))
