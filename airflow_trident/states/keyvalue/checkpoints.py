"""Drives the partitions of one stateful node through the checkpoint protocol: recover, prepare all, commit all.

Whoever comes raises the fence of the journal first and reads it then: from there on nobody older can begin or decide a
checkpoint. If it says that one is under way, every partition is rolled back or committed under the new fence, so that
nobody older can touch one of them either. Hence a checkpoint that begins finds every partition quiet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_trident.contracts.state import Marker
from airflow_trident.protocol.checkpoint import (
    FORMAT,
    Action,
    CheckpointRecord,
    CheckpointState,
    Mode,
    begin,
    decide,
    decode_checkpoint,
    encode_checkpoint,
)
from airflow_trident.states.keyvalue.base import KeyValueState
from airflow_trident.states.keyvalue.part import Part
from airflow_trident.types import Json

_KEY = "__state"
_EMITTED = "__emitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What the journal holds: how far the checkpoint is, and what is applied (None: nothing). A transaction counts from
    COMMITTING on."""

    record: CheckpointRecord
    marker: Marker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """As it is in the store."""

    checkpoint: dict[str, Any]
    marker: dict[str, Any] | None


class Journal:
    """The durable record of one node, a key-value state of its own (Storm keeps its CheckpointSpout's likewise)."""

    def __init__(self, state: KeyValueState[Any, Any]) -> None:
        self.state = state

    def read(self) -> Saved:
        """:raises CorruptRecordError: it cannot be read. :raises NewerRecordError: of a newer version."""
        self.state.discard()  # of a write that failed
        value = self.state.get(_KEY)
        if value is None:
            return Saved(record=CheckpointRecord(), marker=None)
        where = self.state.namespace
        found = FORMAT.build(_Entry, FORMAT.mapping(value, where), where)
        record = decode_checkpoint(found.checkpoint, where)
        if found.marker is None:
            return Saved(record=record, marker=None)
        marker = FORMAT.build(Marker, found.marker, where, needed=("holes", "position"))
        return Saved(record=record, marker=marker)

    def take_over(self, fence: int) -> None:
        """:raises FencedError: somebody newer has."""
        self.state.discard()
        self.state.commit(fence=fence)

    def emitted(self) -> Json:
        """What was kept with the last checkpoint that was decided; None if nothing was ever."""
        emitted: Json = self.state.get(_EMITTED)
        return emitted

    def write(self, saved: Saved, fence: int, emitted: Json = None) -> None:
        marker = None if saved.marker is None else replace(saved.marker, fence=fence)
        self.state.put(_KEY, {"checkpoint": encode_checkpoint(saved.record), "marker": _encode_marker(marker)})
        if emitted is not None:
            self.state.put(_EMITTED, emitted)
        self.state.commit(fence=fence)


class Checkpoints:
    """See the module. `parts` are all partitions of the node, also those that a batch has no tuples for: every state
    goes through every transaction, so that a partition that was left behind or restored from a copy is noticed."""

    def __init__(self, journal: Journal, parts: Sequence[Part]) -> None:
        self._journal = journal
        self._parts = parts

    def recover(self, fence: int) -> Saved:
        """Take over, bring what was left to its end by the recovery table, and initialise the functions.

        :raises FencedError: somebody newer was here.
        :raises CorruptRecordError: a partition is not where the journal says.
        """
        self._journal.take_over(fence)
        saved = self._journal.read()
        while True:
            step = decide(saved.record, Mode.RECOVERING)
            assert step is not None  # the column has no gap
            self._all(step.action, saved.record.txid, fence)
            if step.recovered:
                return saved
            saved = replace(saved, record=step.then)
            self._journal.write(saved, fence)

    def run(self, saved: Saved, txid: int, marker: Marker, fence: int, emitted: Json = None) -> None:
        """Make what the functions have written the committed state as of `txid`.

        :param marker: what is applied once this is decided.
        :param emitted: what to keep in the very step that decides; None: nothing.
        """
        record = begin(saved.record, txid)
        self._journal.write(replace(saved, record=record), fence)
        while (step := decide(record, Mode.NORMAL)) is not None:
            self._all(step.action, txid, fence)
            record = step.then
            decides = record.state is CheckpointState.COMMITTING
            self._journal.write(Saved(record=record, marker=marker), fence, emitted if decides else None)

    def note(self, saved: Saved, marker: Marker, fence: int) -> None:
        """Keep a marker that only has a higher fence."""
        self._journal.write(replace(saved, marker=marker), fence)

    def _all(self, action: Action, txid: int, fence: int) -> None:
        for part in self._parts:
            part.act(action, txid, fence)


def shows_prepared(record: CheckpointRecord) -> bool:
    """Does what is prepared count already? From the decision on."""
    return record.state is CheckpointState.COMMITTING


# ---- the marker as JSON ----------------------------------------------------------------------------------------


def _encode_marker(marker: Marker | None) -> Json:
    if marker is None:
        return None
    return {
        "incarnation": marker.incarnation,
        "high": marker.high,
        "fence": marker.fence,
        "holes": [[first, last] for first, last in marker.holes],
        "position": marker.position,
    }
