"""How a topology's coordinator last ended: for people only, no decision reads it.

A coordinator that begins nothing leaves no transaction. Without this record, one that fails each hour, one that is
paused and one whose source is empty would all look healthy.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TypeAlias

from airflow_trident.protocol.records import ERROR_CHARACTERS

Lag: TypeAlias = dict[str, int]
"""What no transaction has claimed yet, unit -> count: ``{"files": 3, "bytes": 1200}``, ``{"records": 17}``."""


class OutcomeKind(StrEnum):
    """How a run of the coordinator ended."""

    BEGUN = "begun"
    """It began the transaction below `next_txid`."""
    NOTHING_NEW = "nothing new"
    WAITING = "waiting"
    """As many transactions are uncommitted as may be."""
    PAUSED = "paused"
    """By a lifecycle command."""
    BLOCKED = "blocked"
    """By a FAILED transaction."""
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorOutcome:
    """`<incarnation>/coordinator`: the last outcome.


    `time_ms`: when it was recorded. `dag_id`, `run_id`: of the coordinating run, empty for a command or program.
    `error`: class and text, if `kind` is error or blocked. `lag`: stream -> what its source had beyond the last
    transaction at `lag_ms` (0: nobody has asked); streams that cannot tell are absent. `picture`: digest of the plan
    whose picture is kept beside it, "" if none is.
    """

    kind: OutcomeKind
    time_ms: int = 0
    dag_id: str = ""
    run_id: str = ""
    error: str = ""
    lag: dict[str, Lag] = field(default_factory=dict)
    lag_ms: int = 0
    picture: str = ""

    @property
    def text(self) -> str:
        """``error at 2026-01-31 12:00:00 UTC in run scheduled__2026-01-31 of DAG words``."""
        when = f" at {datetime.fromtimestamp(self.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if self.time_ms else ""
        run = f" in run {self.run_id} of DAG {self.dag_id}" if self.dag_id else ""
        return f"{self.kind}{when}{run}"

    @property
    def is_bad(self) -> bool:
        """Does nothing new begin until a person acts?"""
        return self.kind in (OutcomeKind.BLOCKED, OutcomeKind.ERROR)

    def after(self, before: CoordinatorOutcome | None, *, now_ms: int) -> CoordinatorOutcome | None:
        """The outcome to keep in place of `before`; None: `before` says the same, as a run that waits says so once.

        An outcome without a lag keeps the last one known, unless it says "nothing new".
        """
        who = (self.kind, self.dag_id, self.run_id)
        if (
            self.kind is OutcomeKind.WAITING
            and before is not None
            and who == (before.kind, before.dag_id, before.run_id)
        ):
            return None
        outcome = replace(
            self,
            time_ms=now_ms,
            lag_ms=now_ms,
            error=self.error[:ERROR_CHARACTERS],
            picture=before.picture if before else "",
        )
        if self.lag or self.kind is OutcomeKind.NOTHING_NEW:
            return outcome
        return replace(outcome, lag=before.lag if before else {}, lag_ms=before.lag_ms if before else 0)
