"""The action that a person chose on the page; a run of the mending DAG gets it as its ``conf``."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.decide import SeenTransaction
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.protocol.records import NO_ATTEMPT, Status

MENDING_DAG = "airflow_trident_mending"
"""The id of the DAG for actions that need the topology's code; :func:`airflow_trident.trident_mending_dag` makes it."""


def partition_words(partition: str = "", to: str = "", choice: str = "", **_: Any) -> str:
    """The partitions of an order: ``2026-11-24``, or ``2026-11-01 to 2026-11-24, missing ones``."""
    span = partition if to in ("", partition) else f"{partition} to {to}"
    return f"{span}, {choice} ones" if choice else span


@dataclass(frozen=True, slots=True, kw_only=True)
class MendingOrder:
    """`dag_id`: of the topology's DAG; `incarnation`: of its ledger; `by`: the user. `txid`: one transaction, with the
    status and attempt that the page showed; or `first` and `last`, inclusive; neither: all unfinished ones.

    A redo of a bound topology has the partitions from `partition` to `to`, inclusive. `choice`: only ``"missing"``,
    ``"changed"`` or ``"failed"`` ones; "" all. `gone`, `empty`: see `Partitions`."""

    action: PageAction
    topology: str
    dag_id: str
    incarnation: str
    reason: str
    by: str
    txid: int | None = None
    first: int | None = None
    last: int | None = None
    seen_status: str = ""
    seen_attempt: int = NO_ATTEMPT
    partition: str = ""
    to: str = ""
    choice: str = ""
    gone: str = ""
    empty: str = ""

    @property
    def seen(self) -> SeenTransaction | None:
        return SeenTransaction(Status(self.seen_status), self.seen_attempt) if self.seen_status else None

    @property
    def signed(self) -> str:
        """The reason that the ledger keeps."""
        return f"{self.reason} ({self.action} by {self.by} on the page)"

    @property
    def command(self) -> str:
        """The command that does the same where the topology's code is."""
        selected = "--failed" if self.first is None else f"--from {self.first} --to {self.last}"
        selected = selected if self.txid is None else f"--txid {self.txid}"
        if self.partition:
            options = [f"--to {self.to}"] * bool(self.to) + [f"--{self.choice or 'redo'}"]
            taken = [f"--{name} {value}" for name, value in (("gone", self.gone), ("empty", self.empty)) if value]
            selected = " ".join([f"--partition {self.partition}", *options, *taken])
        reason = shlex.quote(self.reason)
        words = {
            PageAction.BACKFILL: f"backfill {self.topology} {selected}",
            PageAction.ACCEPT: f"ledger accept {self.topology}",
            PageAction.ACCEPT_SOURCE: f"accept-source {self.topology} {self.txid} --reason {reason}",
            PageAction.BISECT: f"bisect {self.topology} {self.txid}",
        }
        return f"airflow trident {words[self.action]}"

    def conf(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None and value != ""}

    @classmethod
    def of(cls, conf: dict[str, Any] | None) -> Self:
        """:raises ConfigurationError: the run's conf is missing or wrong."""
        try:
            arguments = dict(conf or {})
            order = cls(**{**arguments, "action": PageAction(arguments.get("action", ""))})
            order.seen  # noqa: B018 - raises if the status is unknown
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"the run's conf {conf!r} is no order to mend a topology ({error})",
                'Ask for it on the page "Transactions", which starts such runs.',
            ) from error
        if not (order.topology and order.dag_id and order.reason):
            raise ConfigurationError(f"the run's conf {conf!r} lacks topology, dag_id or reason", "Give all three.")
        if order.action.about_one and order.txid is None:
            raise ConfigurationError(f"{order.action} is about one transaction", "Give its txid.")
        return order
