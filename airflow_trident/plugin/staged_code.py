"""Which code staged a transaction, in words: the digests of the code are in its manifest."""

from __future__ import annotations

from airflow_trident import settings
from airflow_trident.errors import TridentError
from airflow_trident.ledger.base import Ledger
from airflow_trident.plan.transform_node import changed_code
from airflow_trident.protocol.records import TxRecord
from airflow_trident.runtime.staged_batches import manifest_of
from airflow_trident.staging.area import StagingArea


def code_words(ledger: Ledger, record: TxRecord) -> str:
    """Each transform with the digest of the code that staged this transaction, and whether the code changed since the
    transaction before. Empty if there is none, or if the page's server cannot see the staged batch. Nothing is read
    from an object store: a page must not wait for one."""
    before = ledger.view(record.txid - 1).tx if record.txid > 1 else None
    now, then = _code(ledger, record), _code(ledger, before)
    changed = changed_code(then, now)
    return "; ".join(
        f"{name} {digest}{': it changed with this transaction' if name in changed else ''}"
        for name, digest in sorted(now.items())
    )


def _code(ledger: Ledger, record: TxRecord | None) -> dict[str, str]:
    staged = None if record is None else record.staged
    if staged is None:
        return {}
    try:
        area = StagingArea(settings.staging_root())
        return manifest_of(area, ledger, staged).code if staged.chunk or area.storage.is_local else {}
    except (TridentError, OSError):
        return {}
