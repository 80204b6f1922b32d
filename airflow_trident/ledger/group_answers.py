"""Arguments and answers of the verbs of emitters and committers."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.ledger.begin_result import Begun, NotBegun
from airflow_trident.protocol.records import CommitTicket, StagedRef, TxRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """An attempt that ended well, and what it staged."""

    txid: int
    attempt: int
    staged: StagedRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Processed:
    """`tickets`: of those whose gate the same step opened."""

    records: tuple[TxRecord, ...]
    tickets: tuple[CommitTicket, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """`begun`: by the same step. `why_not`: why it is empty; None if the step was full, or nothing was to begin."""

    records: tuple[TxRecord, ...]
    begun: tuple[Begun, ...] = ()
    why_not: NotBegun | None = None
