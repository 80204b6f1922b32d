"""Drives the partitions of one stateful node through the checkpoint protocol: recover, prepare all, commit all.

A new committer first raises the fence of the journal and then reads it: from then on no older committer can begin or
decide a checkpoint. If the journal shows an open checkpoint, every partition is rolled back or committed under the new
fence, so no older committer can touch a partition either. So a new checkpoint finds every partition at rest.

The emitted tuples of a stateful function, kept with its checkpoint in Arrow's stream format, which keeps types.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import CorruptRecordError, FencedError
from airflow_trident.io.arrow import rows_to_table
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
from airflow_trident.states.keyvalue.stateful_partition import Part
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = "__state"
_EMITTED = "__emitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What the journal holds: the progress of the checkpoint, and what is applied (None: nothing). A transaction counts
    from COMMITTING on."""

    record: CheckpointRecord
    marker: Marker | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """The journal's entry in stored form."""

    checkpoint: dict[str, Any]
    marker: dict[str, Any] | None


class Journal:
    """The durable record of one node, itself a key-value state (as for Storm's CheckpointSpout)."""

    def __init__(self, state: KeyValueState[Any, Any]) -> None:
        self.state = state

    def read(self) -> Saved:
        """:raises CorruptRecordError: the record is damaged. :raises NewerRecordError: a newer version wrote it."""
        self.state.discard()  # of a failed write
        value = self.state.get(_KEY)
        if value is None:
            return Saved(record=CheckpointRecord(), marker=None)
        namespace = self.state.namespace
        entry = FORMAT.build(_Entry, FORMAT.mapping(value, namespace), namespace)
        record = decode_checkpoint(entry.checkpoint, namespace)
        if entry.marker is None:
            return Saved(record=record, marker=None)
        marker = FORMAT.build(Marker, entry.marker, namespace, needed=("holes", "position"))
        return Saved(record=record, marker=marker)

    def take_over(self, fence: int) -> None:
        """:raises FencedError: a newer committer has taken over."""
        self.state.discard()
        self.state.commit(fence=fence)

    def emitted(self) -> Json:
        """What was kept with the last decided checkpoint; None if there was none."""
        emitted: Json = self.state.get(_EMITTED)
        return emitted

    def write(self, saved: Saved, fence: int, emitted: Json = None) -> None:
        marker = None if saved.marker is None else replace(saved.marker, fence=fence)
        self.state.put(_KEY, {"checkpoint": encode_checkpoint(saved.record), "marker": _encode_marker(marker)})
        if emitted is not None:
            self.state.put(_EMITTED, emitted)
        self.state.commit(fence=fence)


class Checkpoints:
    """See the module. `parts`: all partitions of the node, also those without tuples in a batch. Every state takes part
    in every transaction, so a partition that was left behind or restored from a copy is detected."""

    def __init__(self, journal: Journal, parts: Sequence[Part]) -> None:
        self._journal = journal
        self._parts = parts

    def recover(self, fence: int) -> Saved:
        """Take over, finish or undo an open checkpoint by the recovery table, and initialise the functions.

        :raises FencedError: a newer committer was here.
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
        """Make the writes of the functions the committed state as of `txid`.

        :param marker: what is applied after the decision.
        :param emitted: data to keep in the deciding step itself; None: nothing.
        """
        record = begin(saved.record, txid)
        self._journal.write(replace(saved, record=record), fence)
        while (step := decide(record, Mode.NORMAL)) is not None:
            self._all(step.action, txid, fence)
            record = step.then
            decides = record.state is CheckpointState.COMMITTING
            self._journal.write(Saved(record=record, marker=marker), fence, emitted if decides else None)

    def note(self, saved: Saved, marker: Marker, fence: int) -> None:
        """Write a marker that differs only in a higher fence."""
        self._journal.write(replace(saved, marker=marker), fence)

    def _all(self, action: Action, txid: int, fence: int) -> None:
        for part in self._parts:
            part.act(action, txid, fence)


def shows_prepared(record: CheckpointRecord) -> bool:
    """Do prepared writes count already? Yes from the decision on."""
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


def encode_emitted(txid: int, schema: Schema, rows: list[tuple[Any, ...]]) -> Json:
    import pyarrow as pa

    table = rows_to_table(schema, rows)
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table)
    return {"txid": txid, "body": base64.b64encode(body.getvalue()).decode()}


def decode_emitted(kept: Json, txid: int, namespace: str) -> pa.Table:
    """:param namespace: for errors.
    :raises FencedError: the tuples are of another transaction.
    :raises CorruptRecordError: they cannot be read.
    """
    import pyarrow as pa

    if not isinstance(kept, dict) or not isinstance(kept.get("body"), str):
        raise CorruptRecordError(
            f"namespace {namespace!r} holds nothing that its function emitted for transaction {txid}",
            "A part of the store was lost, or the function had no outputs when it was applied: restore a whole copy.",
        )
    if kept["txid"] != txid:
        raise FencedError(
            f"namespace {namespace!r} holds what its function emitted for transaction {kept['txid']}, not for {txid}, "
            "which is to be committed",
            "Another committer has finished it: this one has nothing to do.",
        )
    with pa.ipc.open_stream(base64.b64decode(str(kept["body"]))) as reader:
        return reader.read_all()
