"""What became of a topology's coordinator when it last ran: for people only, no decision reads it.

A coordinator that begins nothing leaves no transaction, so without this record one that fails each hour, one that is
paused and one whose source is empty would all look like a topology at which all is well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

ERROR_CHARACTERS = 4_000
"""Longer error texts are cut: the whole text is in the task's log."""
Lag: TypeAlias = dict[str, int]
"""What no transaction has claimed yet, unit -> count: ``{"files": 3, "bytes": 1200}``, ``{"records": 17}``."""


class OutcomeKind(StrEnum):
    """How a coordinator's look at its sources ended."""

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

    `time_ms`: when it was said; `next_txid`: the next txid at that moment: a higher one now means that an older version
    of this package, which says nothing, has begun transactions since. `dag_id`, `run_id`: of the run that
    coordinated, empty for a command or program. `error`: class and text, where `kind` says error or blocked.
    `lag`: stream -> what its source had beyond the last transaction at `lag_ms`; a stream that cannot say is not in it;
    0: nobody has asked. `picture`: digest of the plan whose picture is kept beside, "" if none is.
    """

    kind: OutcomeKind
    time_ms: int = 0
    next_txid: int = 1
    dag_id: str = ""
    run_id: str = ""
    error: str = ""
    lag: dict[str, Lag] = field(default_factory=dict)
    lag_ms: int = 0
    picture: str = ""

    @property
    def is_bad(self) -> bool:
        """Does nothing new come in until a person does something about it?"""
        return self.kind in (OutcomeKind.BLOCKED, OutcomeKind.ERROR)

    def now(self, next_txid: int) -> CoordinatorOutcome:
        """The outcome as it looks later: transactions begun since then, by those who note nothing, are known, but not
        when and by whom."""
        if next_txid <= self.next_txid:
            return self
        return CoordinatorOutcome(kind=OutcomeKind.BEGUN, next_txid=next_txid, lag=self.lag, lag_ms=self.lag_ms)

    def after(self, before: CoordinatorOutcome | None, *, next_txid: int, now_ms: int) -> CoordinatorOutcome | None:
        """As it is to be kept in place of `before`; None: that says it already, since a run that waits says so once.

        Whoever did not ask the sources keeps what was known of their lag, unless nothing new is the answer.
        """
        who = (self.kind, self.dag_id, self.run_id)
        if (
            self.kind is OutcomeKind.WAITING
            and before is not None
            and who == (before.kind, before.dag_id, before.run_id)
        ):
            return None
        said = replace(
            self,
            next_txid=next_txid,
            time_ms=now_ms,
            lag_ms=now_ms,
            error=self.error[:ERROR_CHARACTERS],
            picture=before.picture if before else "",
        )
        if self.lag or self.kind is OutcomeKind.NOTHING_NEW:
            return said
        return replace(said, lag=before.lag if before else {}, lag_ms=before.lag_ms if before else 0)
