"""Accepts a mended source: on a person's word, an uncommitted transaction takes what its source holds now (P2). Pure.

The transaction keeps its txid and gets a new attempt, so reports from attempts with the old batch come too late. Later
transactions keep their batches; where they record the position before them, that position follows the change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from airflow_trident.errors import TransitionError
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.types import Json


class MendedSources(ABC):
    """The coordinators of the streams: see `Coordinator.accept_source` and `Coordinator.follow_source`."""

    @abstractmethod
    def accept(self, stream: str, metadata: Json) -> Json: ...

    @abstractmethod
    def follow(self, stream: str, later: Json, accepted: Json) -> Json: ...


def accepted(
    record: TxRecord, later: Sequence[TxRecord], sources: MendedSources, *, committed: int, reason: str
) -> tuple[TxRecord, list[TxRecord]]:
    """The record with its new metadata (to be moved to FAILED unless it is SKIPPED), and the later records that change.

    :param later: the records above it, in txid order.
    :param committed: the commit pointer.
    :raises TransitionError: a state has or may have its batch, later transactions have gone on behind it, or its source
        has not changed.
    """
    _require_uncommitted(record, committed)
    found = {
        stream: codec.require_json(sources.accept(stream, value), f"the metadata of stream {stream!r}")
        for stream, value in record.metadata.items()
    }
    changed = {stream: value for stream, value in found.items() if value != record.metadata[stream]}
    if not changed:
        raise TransitionError(
            f"the source of transaction {record.txid} is as it was recorded: there is nothing to accept",
            "Replay it: `airflow trident backfill TOPOLOGY --txid TXID`.",
        )
    after = replace(
        record.with_past_attempt(),
        metadata={**record.metadata, **changed},
        attempt=record.attempt + 1,
        staged=None,
        accepted=(*record.accepted, reason),
    )
    if record.status is not Status.SKIPPED:  # its error says what to do before the source was accepted
        replay = f"`airflow trident backfill TOPOLOGY --txid {record.txid}`, or clear its run"
        after = replace(after, error=f"The source was accepted as it is now. Replay it: {replay}.", first_error="")
    followed = []
    for one in later:
        follower = replace(
            one, metadata=_following(one.metadata, changed, sources), carried=_following(one.carried, changed, sources)
        )
        if follower != one:
            followed.append(follower)
    return after, followed


def _following(position: dict[str, Json], changed: dict[str, Json], sources: MendedSources) -> dict[str, Json]:
    return {
        stream: sources.follow(stream, value, changed[stream]) if stream in changed else value
        for stream, value in position.items()
    }


def _require_uncommitted(record: TxRecord, committed: int) -> None:
    anew = "Put what is to be corrected into new files (or records) of the source."
    if record.status is Status.COMMITTED:
        why, cure = "it is COMMITTED: the states have its batch", anew
    elif record.touched or record.status is Status.COMMITTING:
        why = "a commit of it has begun, so a state may hold its batch"
        cure = "Put the source back as it was and replay it: its commit finds out what the states hold."
    elif record.txid <= committed:
        why, cure = "it was SKIPPED, and later ones have gone on behind its batch", anew
    elif record.invalidated:
        why, cure = "it has no batch at the moment", "Attempt it: its opaque spout chooses the batch anew."
    else:
        return
    raise TransitionError(f"transaction {record.txid} cannot take its source as it is now: {why}", cure)
