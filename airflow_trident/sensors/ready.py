"""The ready sensor: does the source have a new batch?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseSensorOperator

from airflow_trident.ledger.answers import NextBatches
from airflow_trident.links import TransactionLink
from airflow_trident.operators.base import (
    COORDINATE,
    LedgerTask,
    airflow_outcome,
    owner,
    part_of,
    require_known_conn_id,
    require_takes_new,
    require_topology,
)
from airflow_trident.protocol.records import Claim, Owner, claim_key
from airflow_trident.runtime.open_resources import SourceNotes
from airflow_trident.tasks.asking_airflow import ask
from airflow_trident.tasks.liveness import left_to_anybody, lowest_left_alone
from airflow_trident.tasks.source_lag import first_ready, last_position
from airflow_trident.tasks.waits import Rank

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.topology.topology import Topology


class TridentReadySensor(LedgerTask, BaseSensorOperator):
    """Succeeds when a stream has data that no transaction covers yet; when a transaction is staged, or lost its batch,
    and nobody is left to commit it: the tasks below do that work; or when the run was cleared and has transactions
    already: the tasks below replay these.

    It also succeeds when Airflow keeps the run that is to go on with a transaction in the queue until this run has
    ended (``max_active_runs``). The tasks below do that work, too; but a FAILED one that a person has cleared is left
    to the queued run, and this one ends without new data. Begins no transaction and writes nothing.

    Sources have no watches as ZooKeeper has, so the sensor asks them every `poke_interval`. It holds no slot in
    between, since its default `mode` is ``reschedule``: a slot that it held might be the one in which a task is to
    replay the transaction that all others wait for.

    :param topology: the Topology.
    :param zookeeper_conn_id: connection of type ``zookeeper`` (templated); None: ``[trident] zookeeper_conn_id``.
    """

    template_fields: Sequence[str] = ("zookeeper_conn_id",)
    shallow_copy_attrs: Sequence[str] = ("topology",)
    operator_extra_links = (TransactionLink(),)
    ui_color = "#e6f1f2"

    def __init__(self, *, topology: Topology, zookeeper_conn_id: str | None = None, **kwargs: Any) -> None:
        super().__init__(**{"mode": "reschedule", **kwargs})
        self.topology = require_topology(topology)
        require_takes_new(topology, "this sensor")
        self.topology_name = topology.name
        require_known_conn_id(self, zookeeper_conn_id, "zookeeper_conn_id")
        self.zookeeper_conn_id = zookeeper_conn_id
        self.rank_as(Rank.READY)

    def poke(self, context: Context) -> bool:
        with airflow_outcome():
            with self.open_ledger() as ledger:
                last, position = last_position(ledger)
                notes = SourceNotes.of(ledger)
                has_transactions = self._has_transactions(context, ledger) if last else False
            if has_transactions:
                self.log.info("this run was cleared and has transactions of topology %s already", self.topology_name)
                return True
            if position is None:
                self.log.info("transaction %d of topology %s has to be emitted again first", last, self.topology_name)
            else:
                stream = first_ready(self.topology, position, notes)
                if stream is not None:
                    self.log.info("stream %s has data after transaction %d", stream, last)
                    return True
                self.log.info("no stream of topology %s has data after transaction %d", self.topology_name, last)
            return last > 0 and self._is_one_left(context)

    def _has_transactions(self, context: Context, ledger: Ledger) -> bool:
        """A cleared run replays the transactions that it has, and takes no new ones: it waits for no data."""
        if not context["dag_run"].clear_number:
            return False
        me = owner(context)
        if any(
            (record.claim.dag_id, record.claim.run_id) == (me.dag_id, me.run_id) for record in ledger.transactions()
        ):
            return True
        # Records are pruned long before claims. Where even claims may be, the coordinator says what is wrong.
        run_ms = int(context["dag_run"].run_after.timestamp() * 1000)
        return run_ms < ledger.topology().floor_ms or any(
            _has_claim(ledger, me, coordinator) for coordinator in self._coordinators()
        )

    def _coordinators(self) -> list[str]:
        """The task ids of the coordinators below."""
        below = self.get_flat_relatives(upstream=False) if self.has_dag() else []  # type: ignore[no-untyped-call]
        parts = [part for task in below if (part := part_of(task)) is not None]
        return [part.task_id for part in parts if (part.phase, part.topology_name) == (COORDINATE, self.topology_name)]

    def _is_one_left(self, context: Context) -> bool:
        asker = self.asker(context)
        with self.open_ledger() as ledger:
            record = lowest_left_alone(ledger)
            orphan = left_to_anybody(ledger, record, ask(record, asker), asker) if record is not None else None
        if record is not None and orphan is not None:
            self.log.info("transaction %d is %s, and %s: this run goes on", orphan.by, record.status, orphan.why)
        return orphan is not None


def _has_claim(ledger: Ledger, me: Owner, coordinator: str) -> bool:
    """Has this coordinator a transaction in this run? Asking for one without a batch begins none."""
    for index in dict.fromkeys((-1, me.map_index, 0)):  # a coordinator may be mapped, too
        claim = Claim(key=claim_key(me.dag_id, coordinator, me.run_id, index, 0))
        begun = ledger.begin(NextBatches([claim]))
        if isinstance(begun, tuple) and begun:
            return True
    return False
