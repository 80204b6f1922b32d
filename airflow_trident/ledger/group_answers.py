"""Arguments and answers of the verbs of groups, besides those of one transaction."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.ledger.begin_result import BeginManyResult, Begun, NotBegun
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
class CommittedAndBegun:
    """`begun` is empty if the same step could begin nothing; `why_not` says why, None if the step was full or there
    were no claims."""

    committed: tuple[TxRecord, ...]
    begun: tuple[Begun, ...]
    why_not: NotBegun | None = None

    @classmethod
    def of(cls, committed: tuple[TxRecord, ...], begun: BeginManyResult) -> CommittedAndBegun:
        if isinstance(begun, tuple):
            return cls(committed=committed, begun=begun)
        return cls(committed=committed, begun=(), why_not=begun)
