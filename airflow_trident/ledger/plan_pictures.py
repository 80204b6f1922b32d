"""The picture of a topology's plan, kept in its ledger for people.

Reading is tolerant: a newer version's picture must not keep an older version from its work.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial

from airflow_trident.errors import CorruptError
from airflow_trident.ledger.ledger import Ledger
from airflow_trident.ledger.snapshot import Snapshot
from airflow_trident.ledger.transact import Change, Prefetch, Unchanged
from airflow_trident.ledger.verbs import topology
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.topologies import PlanPicture

_FORMAT = Format(noun="the picture of the plan", version=1, cure="The next run writes it anew.")


def note_picture(ledger: Ledger, picture: PlanPicture) -> None:
    """Keeps it in place of another one. If it is there already, a caller that has just begun a transaction pays
    nothing.

    :raises UnknownTopologyError: the topology has no ledger yet.
    """
    paths = ledger.paths()
    outcome = topology.outcome_at(ledger.transactor.remembered(paths, [paths.coordinator]))
    if outcome is None or outcome.picture != picture.digest:
        ledger.run(partial(_note, picture=picture), Prefetch([paths.head, paths.coordinator, paths.plan]))


def picture_in(ledger: Ledger) -> PlanPicture | None:
    """None: nobody has recorded it, or this version cannot read it."""
    paths = ledger.paths()
    return _picture_at(ledger.transactor.fresh(paths, [paths.plan]))


def _note(snap: Snapshot, picture: PlanPicture) -> Change[None] | Unchanged[None]:
    path, outcome = snap.paths.plan, topology.outcome_at(snap)
    kept = _picture_at(snap) == picture
    if kept and (outcome is None or outcome.picture == picture.digest):
        return Unchanged(None)
    data = _FORMAT.dump({"op": snap.op, **asdict(picture)}, "the picture of the plan")
    outcome_writes = () if outcome is None else (topology.written(snap, replace(outcome, picture=picture.digest)),)
    writes = (snap.put(path, data), *outcome_writes)
    return Change(writes=writes, witness=path, result=None, unchecked=frozenset({snap.paths.head}))


def _picture_at(snap: Snapshot) -> PlanPicture | None:
    path = snap.paths.plan
    data = snap.data(path)
    if data is None:
        return None
    try:
        return _FORMAT.build(PlanPicture, _FORMAT.load(data, path), path)
    except CorruptError:
        return None
