"""The ledger's verbs about states: what belongs to them, what they are given up for, and what they may forget. Pure, as
`ledger.verbs`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_trident.errors import TransitionError
from airflow_trident.ledger.transact import Snapshot, Step, Write
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Definition, Loss, TopologyRecord, TxRecord
from airflow_trident.protocol.statuses import Status


def redefined(record: TopologyRecord, definition: Definition, committed: int, empty: Collection[str]) -> TopologyRecord:
    """The topology with another definition. A state that is new, or was changed and holds nothing, belongs to it from
    the next commit on.

    :param committed: the commit pointer.
    :param empty: the names of the states that hold nothing.
    """
    before = record.definition
    anew = {
        name
        for name in definition.states
        if name not in before.states or (name in empty and not before.same_state(definition, name))
    }
    kept = definition.states.keys() - anew
    since = {name: first for name, first in record.since.items() if name in kept}
    return replace(
        record,
        definition=definition,
        since={**since, **dict.fromkeys(sorted(anew), committed + 1)},
        lost=tuple(loss for loss in record.lost if loss.state in kept),
    )


def noted(record: TopologyRecord, since: Mapping[str, int], lost: Sequence[Loss], *, at_ms: int) -> TopologyRecord:
    """The topology with what a look at its states, or a person, said."""
    return replace(
        record,
        since={**record.since, **since},
        lost=(*record.lost, *(replace(loss, at_ms=loss.at_ms or at_ms) for loss in lost)),
    )


def note_states(snap: Snapshot, since: Mapping[str, int], lost: Sequence[Loss]) -> Step[TopologyRecord]:
    record, path = noted(snap.topology(), since, lost, at_ms=snap.now_ms), snap.life.topology
    return Step(writes=(snap.set(path, codec.encode_topology(record, op=snap.op)),), witness=path, result=record)


def take_fence(snap: Snapshot) -> Step[int]:
    """The topology's record is written with it as it is: the commit pointer has no place for an op id."""
    pointer, path = snap.pointer(), snap.life.topology
    writes: list[Write] = [
        snap.set(path, codec.encode_topology(snap.topology(), op=snap.op)),
        snap.set(snap.life.commit, codec.encode_pointer(replace(pointer, fence=pointer.fence + 1))),
    ]
    return Step(writes=tuple(writes), witness=path, result=pointer.fence + 1)


def require_closable(tx: TxRecord, committed: int) -> None:
    """:raises TransitionError: it is not SKIPPED, or a lower transaction is not committed yet."""
    if tx.status is not Status.SKIPPED:
        raise TransitionError(
            f"transaction {tx.txid} is {tx.status}, and only what is SKIPPED can be closed", "Skip it first."
        )
    if tx.txid > committed:
        raise TransitionError(
            f"transaction {tx.txid} cannot be closed yet: all up to {committed} are done, and one in between is not",
            "Close it when those before it are committed.",
        )
