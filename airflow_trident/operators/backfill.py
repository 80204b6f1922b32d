"""The backfill task: replays transactions that are not committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.operators.base import airflow_outcome, is_known, listed, owner
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.runtime.drains.limits import AUTO, parse_group, require_groups
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.asking_airflow import orphans

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.runtime.backfill import Backfilled, Selection
    from airflow_trident.topology.topology import Topology


REASONS = 10
"""The most failures that the error of the task tells. Its log has all of them."""


class TridentBackfillOperator(EngineOperator):
    """Replays transactions that are not committed, lowest first, each exactly once; one failure does not stop the rest.

    Without `txid`, `first` and `last` it takes all FAILED transactions, all whose replay began and did not end (also
    in a killed try of this task), the processed ones that nobody commits, and those whose tasks have ended without a
    result. Returns the txids that it committed,
    with those that its commit sweep also committed; of more than 100, their count and ranges. Skips when there is
    nothing to do. Fails when a transaction failed again.

    :param topology: the Topology.
    :param txid: one transaction (templated).
    :param first: lowest txid of a range (templated); open when only `last` is given.
    :param last: highest txid of a range (templated); open when only `first` is given.
    :param group: how many transactions are processed and committed together, if there are several above the commit
        pointer: at most this number; ``auto``: chosen by how much there is to read and how long it takes; 1: each
        alone (templated).
    :param retention: committed transactions to keep; None: as the other tasks of the DAG that have this topology, else
        ``[trident] retention``.
    :raises ConfigurationError: `group` is a number, but the topology or one of its states takes one at a time.
    """

    template_fields: Sequence[str] = ("txid", "first", "last", "group", *EngineOperator.template_fields)
    ui_color = "#ecd9ec"
    brings_events = True
    retention_of_others = True
    """Without a number of its own it keeps what others keep: see `tasks.topology_search.retention_of`."""

    def __init__(
        self,
        *,
        topology: Topology,
        txid: Any = None,
        first: Any = None,
        last: Any = None,
        group: int | str = AUTO,
        retention: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(topology=topology, **kwargs)
        if txid is not None and (first is not None or last is not None):
            raise ConfigurationError("txid and a range exclude each other", "Give txid, or first and last.")
        for value in filter(is_known, (txid, first, last)):
            _optional(value)  # raises for one that is no txid
        self.txid = txid
        self.first = first
        self.last = last
        self.group = group
        self.retention = settings.parse_limit("retention", retention)
        self.one_batch = txid is not None
        if is_known(group):
            require_groups(topology.compile(), parse_group(group))

    def execute(self, context: Context) -> list[int] | dict[str, Any]:
        with airflow_outcome(), self.ledger_of_run(context) as ledger:
            self.enlist(ledger, context)
            committed = self.replay(ledger, context)
            asset_events.bring(self, self.topology, ledger, context, owner(context))
            return listed(committed)

    def replay(self, ledger: Ledger, context: Context) -> list[int]:
        """The txids that were committed; the docstring of the class says when the task skips or fails."""
        from airflow_trident.runtime.backfill import Backfill

        results = Backfill(
            ledger=ledger,
            topology=self.topology,
            engine=lambda: self.open_engine(context),
            staging_root=settings.staging_root(self.staging_dir),
            owner=owner(context),
            attempt_timeout_s=self.attempt_timeout_s,
            rows_in_errors=settings.flag(settings.ROWS_IN_ERRORS),
            max_merge_rows=settings.max_merge_rows(),
            max_partition_keys=settings.max_partition_keys(),
            retention=self.retention or self._retention_of_dag(),
            progress=lambda line: self.log.info("%s", line),
            group=parse_group(self.group),
            orphans=lambda records: orphans(ledger, records),
        ).run(self._selection())
        return self._outcome(results)

    def _retention_of_dag(self) -> int:
        from airflow_trident.tasks.topology_search import retention_of

        tasks = self.dag.tasks if self.has_dag() else []  # type: ignore[no-untyped-call]
        return retention_of(self.topology_name, tasks)

    def _selection(self) -> Selection:
        from airflow_trident.runtime.backfill import Selection

        txid, first, last = (_optional(value) for value in (self.txid, self.first, self.last))
        if txid is not None:
            return Selection(first=txid, last=txid)
        if first is None and last is None:
            return Selection(failed=True)
        return Selection(first=first, last=last)

    def _outcome(self, results: list[Backfilled]) -> list[int]:
        from airflow_trident.runtime.backfill import BackfillOutcome

        if not results:
            raise AirflowSkipException(
                f"topology {self.topology_name} has no unfinished transaction: nothing to replay."
            )
        failed = [backfilled for backfilled in results if backfilled.outcome is BackfillOutcome.FAILED]
        if failed:
            reasons = "; ".join(
                f"transaction {backfilled.txid}: {backfilled.detail}" for backfilled in failed[:REASONS]
            )
            reasons += f"; and {len(failed) - REASONS} more" if len(failed) > REASONS else ""
            raise AirflowException(f"{len(failed)} of {len(results)} transactions failed again: {reasons}")
        committed = {backfilled.txid for backfilled in results if backfilled.outcome is BackfillOutcome.COMMITTED}
        committed.update(*(backfilled.also_committed for backfilled in results))
        self.current_txids = sorted(committed)
        return sorted(committed)


def _optional(value: Any) -> int | None:
    """None if a template gave no value."""
    return None if value is None or str(value).strip() in ("", "None") else settings.parse_txid(value)
