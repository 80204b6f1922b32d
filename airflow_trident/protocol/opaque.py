"""Opaque streams: a new attempt may choose another batch, and later batches behind the old one become invalid (P2).
Pure.

Above the commit pointer each new attempt chooses the batch of the opaque streams anew, behind the batch of the
transaction before. If it is another batch, the same step invalidates all later transactions: they have no batch until
they are attempted again. So invalidated transactions are always the last ones, up to the head. At and below the pointer
a batch is frozen, because later ones have gone on behind it.

After Storm's OpaquePartitionedTridentSpoutExecutor, which also forgets the metadata of later transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from airflow_trident.errors import ConfigurationError, InvalidatedError
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import NO_ATTEMPT, NOBODY, TxRecord
from airflow_trident.protocol.statuses import Status, move
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.types import Json

Position = dict[str, Json]


def is_decided_anew(definition: Definition, record: TxRecord, committed: int) -> bool:
    """Must the next attempt of a transaction choose its batch? Not the first attempt: its batch was just recorded.

    :param committed: the commit pointer.
    """
    untouched = record.attempt == NO_ATTEMPT and not record.invalidated
    return bool(definition.opaque) and not untouched and record.txid > committed


def with_batch(
    definition: Definition,
    record: TxRecord,
    position: Position,
    metadata_of: Callable[[int, Position], Position | None] | None,
) -> TxRecord:
    """Gives the record a batch of its opaque streams that begins at `position`; the other streams keep theirs.

    :raises ConfigurationError: there is no `metadata_of`.
    """
    if metadata_of is None:
        raise ConfigurationError(
            f"transaction {record.txid} has an opaque spout, and this attempt cannot choose its batch",
            "Start its attempts with the topology at hand (metadata_of).",
        )
    before = {stream: value for stream, value in position.items() if stream in definition.opaque}
    # A copy: a spout may change its argument, and the change must not get into what is carried on.
    found = metadata_of(record.txid, codec.require_json(before, "the position")) or {}
    chosen = {
        stream: codec.require_json(value, f"the metadata of stream {stream!r}")
        for stream, value in found.items()
        if stream in definition.opaque
    }
    metadata = _without_opaque(definition, record.metadata) | chosen
    carried = {stream: value for stream, value in position.items() if stream not in metadata}
    return replace(record, metadata=metadata, carried=carried, invalidated=False)


def invalidated(definition: Definition, record: TxRecord) -> TxRecord:
    """Removes the batch of the opaque streams. FAILED and SKIPPED go too: they were about that batch."""
    return replace(
        record.with_past_attempt(),
        status=move(record.status, Status.PROCESSING, txid=record.txid),
        attempt=record.attempt + 1,
        metadata=_without_opaque(definition, record.metadata),
        carried=_without_opaque(definition, record.carried),
        staged=None,
        invalidated=True,
        owner=NOBODY,
        error="",
    )


def require_batch(record: TxRecord, txid: int) -> Position:
    """The position behind `record`, where transaction `txid` begins.

    :raises InvalidatedError: `record` has no batch.
    """
    if record.invalidated:
        raise InvalidatedError(
            f"transaction {txid} cannot be attempted: it goes on behind transaction {record.txid}, which has no batch "
            "since a lower one was attempted again",
            f"Attempt transaction {record.txid} first; its committer does so when its turn comes.",
        )
    return record.position


def cannot_skip(txid: int) -> InvalidatedError:
    return InvalidatedError(
        f"transaction {txid} cannot be skipped: it has no batch since a lower one was attempted again, and later ones "
        "could not go on behind it",
        "Attempt it first.",
    )


def _without_opaque(definition: Definition, streams: Mapping[str, Json]) -> Position:
    return {stream: value for stream, value in streams.items() if stream not in definition.opaque}
