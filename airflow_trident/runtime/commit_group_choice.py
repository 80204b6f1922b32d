"""Decides which waiting transactions are committed in one step. Pure: the caller passes records and manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.staging.manifest import Manifest

MOST_TOGETHER = 200
"""The most transactions of one step of the ledger and of the states."""
MOST_ROWS = 1_000_000
"""The most rows of one step, for transactions that were staged apart: these rows are in memory together."""


def waiting_run(records: Iterable[TxRecord], is_free: Callable[[TxRecord], bool], most: int) -> tuple[TxRecord, ...]:
    """The transactions that can commit one after the other, from the first one on, which can commit now.

    :param records: in txid order; those missing in between are committed.
    :param is_free: may a commit that somebody has begun be taken over?
    """
    found: list[TxRecord] = []
    for record in records:
        if len(found) == most:
            break
        if record.status.lets_others_pass:
            continue
        is_staged = record.status is Status.PROCESSED or (record.status is Status.COMMITTING and is_free(record))
        if not is_staged or record.invalidated or record.staged is None:
            break
        found.append(record)
    return tuple(found)


def first_group(waiting: Sequence[TxRecord], manifests: Mapping[str, Manifest]) -> tuple[TxRecord, ...]:
    """The first of these that go together. A batch that was merged by key goes as a whole and alone, or not at all.

    :param waiting: staged, in txid order; at least one.
    :param manifests: path -> manifest, of those that can be read.
    """
    first = _manifest(waiting[0], manifests)
    if first is None:
        return tuple(waiting[:1])
    if first.inseparable:
        whole = tuple(waiting[: len(first.members)])
        attempts = [(one.txid, one.attempt) for one in whole]
        return whole if attempts == [(one.txid, one.attempt) for one in first.members] else whole[:1]
    found: list[TxRecord] = []
    rows = 0
    for record in waiting:
        manifest = _manifest(record, manifests)
        rows += sum(record.staged.rows.values()) if record.staged is not None else 0
        if manifest is None or manifest.inseparable or (found and rows > MOST_ROWS):
            break
        found.append(record)
    return tuple(found)


def _manifest(record: TxRecord, manifests: Mapping[str, Manifest]) -> Manifest | None:
    return None if record.staged is None else manifests.get(record.staged.manifest)
