"""What a drain does with a pass over several transactions, and what becomes of them when it fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_trident.engine.base import Engine, Job
from airflow_trident.ledger.base import Ledger
from airflow_trident.protocol.records import TxRecord
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.timeouts import run_in_time
from airflow_trident.staging.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """What a pass staged, and how long it took, in seconds."""

    manifest: Manifest
    took_s: float


def run_pass(engine: Engine, jobs: Sequence[Job], limit_s: float | None) -> Passed:
    """See :func:`~airflow_trident.runtime.timeouts.run_in_time`."""
    began = time.monotonic()
    manifest = run_in_time(engine, jobs, limit_s)
    return Passed(manifest=manifest, took_s=time.monotonic() - began)


def parts_of(records: Sequence[TxRecord], named_txid: int | None) -> list[list[TxRecord]]:
    """The passes that a failed one is followed by: the one that its error names alone, and the others again; halves if
    it names none. So one bad transaction among n costs at most 2 log2(n) + 1 more passes."""
    alone = [one for one in records if one.txid == named_txid]
    others = [one for one in records if one.txid != named_txid]
    if alone and others:
        return [alone, others]
    half = len(records) // 2
    return [part for part in (list(records[:half]), list(records[half:])) if part]


def still_ours(ledger: Ledger, records: Sequence[TxRecord]) -> list[TxRecord]:
    """Those whose attempt is still the current one, and not ended: nobody has taken, skipped or committed them."""
    attempts = {one.txid: one.attempt for one in records}
    found = ledger.transactions(records[0].txid, records[-1].txid) if records else ()
    return [one for one in found if one.status is Status.PROCESSING and attempts.get(one.txid) == one.attempt]


def named(records: Sequence[TxRecord]) -> str:
    first, last = records[0].txid, records[-1].txid
    return f"transactions {first} to {last} ({len(records)} of them)" if len(records) > 1 else f"transaction {first}"
