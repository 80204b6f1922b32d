"""What a person saw when they asked for an action: if it has changed since, the action is refused. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_trident.errors import TransitionError
from airflow_trident.protocol.records import NO_ATTEMPT, TopologyRecord, TxRecord
from airflow_trident.protocol.statuses import Status


@dataclass(frozen=True, slots=True)
class SeenTransaction:
    """A transaction as it was shown; `attempt` is NO_ATTEMPT for one that was never attempted."""

    status: Status
    attempt: int = NO_ATTEMPT

    def require(self, tx: TxRecord) -> None:
        """:raises TransitionError: the transaction has changed since; the text names its status now."""
        if (tx.status, tx.attempt) != (self.status, self.attempt):
            raise TransitionError(
                f"transaction {tx.txid} has moved: it is {tx.status}{_attempt(tx.attempt)} now, and was "
                f"{self.status}{_attempt(self.attempt)} when this was asked for; nothing was changed",
                "Look at it again.",
            )


@dataclass(frozen=True, slots=True)
class SeenTopology:
    """A topology as it was shown: the epoch of its lifecycle command."""

    epoch: int

    def require(self, topology: TopologyRecord) -> None:
        """:raises TransitionError: it was given another command since."""
        if topology.epoch != self.epoch:
            raise TransitionError(
                f"topology {topology.name!r} was given another command meanwhile: it is {str(topology.command)!r} now; "
                "nothing was changed",
                "Look at it again.",
            )


def _attempt(attempt: int) -> str:
    return "" if attempt == NO_ATTEMPT else f", attempt {attempt}"
