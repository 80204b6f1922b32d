"""What the verbs of groups are given and answer, besides what those of one transaction are."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.ledger.begin_result import Begun
from airflow_trident.protocol.records import StagedRef, TxRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """An attempt that ended well, and what it staged."""

    txid: int
    attempt: int
    staged: StagedRef


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedAndBegun:
    """`begun` is empty if nothing could be begun by the same step: :meth:`Ledger.begin_many` says why."""

    committed: tuple[TxRecord, ...]
    begun: tuple[Begun, ...]
