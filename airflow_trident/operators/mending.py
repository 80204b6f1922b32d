"""The task behind the page's buttons: actions that need the topology's code run in a worker, like all other work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import BaseOperator

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError
from airflow_trident.names import Redo
from airflow_trident.operators.backfill import TridentBackfillOperator
from airflow_trident.operators.base import LISTED, airflow_outcome, owner
from airflow_trident.operators.engine_operator import EngineOperator
from airflow_trident.protocol.diagnosis import PageAction
from airflow_trident.protocol.txids import Txids
from airflow_trident.tasks import asset_events
from airflow_trident.tasks.mending_order import MendingOrder

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context

    from airflow_trident.ledger.ledger import Ledger
    from airflow_trident.topology.topology import Topology

_TAKEN = ("spark_conn_id", "engine", "spark_conf", "staging_dir", "zookeeper_conn_id", "attempt_timeout")


class TridentMendingOperator(BaseOperator):
    """Does the action in the run's ``conf`` (`MendingOrder`): backfill, accept a definition or a source, bisect.

    The task finds the topology in the DAG that the order names. It works as that DAG's own tasks do: with their engine,
    connections, staging folder and retention. Returns lines for people, which the page shows.
    """

    ui_color = "#ecd9ec"
    _work: TridentBackfillOperator | None = None

    def execute(self, context: Context) -> list[str]:
        from airflow_trident.tasks.topology_search import topology_and_tasks

        with airflow_outcome():
            order = MendingOrder.of(context["dag_run"].conf)
            self.log.info(
                "%s of topology %s, asked for by %s: %s", order.action, order.topology, order.by, order.reason
            )
            topology, tasks = topology_and_tasks(order.topology, dag_id=order.dag_id)
            self._work = _worker(topology, tasks, order)
            with self._work.open_ledger(order.incarnation) as ledger:
                if order.txid is not None and order.seen is not None:
                    record = ledger.view(order.txid).tx
                    if record is not None:
                        order.seen.require(record)
                return self._mend(ledger, topology, order, context)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """The lineage of the replayed transactions; see :class:`TridentOperator`."""
        return None if self._work is None else self._work.get_openlineage_facets_on_complete(task_instance)

    def on_kill(self) -> None:
        """Cancel the running job."""
        if self._work is not None:
            self._work.on_kill()

    def _mend(self, ledger: Ledger, topology: Topology, order: MendingOrder, context: Context) -> list[str]:
        assert self._work is not None
        if order.action is PageAction.BACKFILL:
            self._work.enlist(ledger, context)
            txids = self._work.replay(ledger, context)
            asset_events.bring(self, topology, ledger, context, owner(context))
            return [f"committed: {_named(txids)}"]
        if order.action is PageAction.ACCEPT:
            from airflow_trident.runtime.repair import accept_definition

            return self._said(accept_definition(ledger, topology).lines(topology.name))
        assert order.txid is not None
        if order.action is PageAction.ACCEPT_SOURCE:
            from airflow_trident.runtime.repair import accept_source

            record = accept_source(ledger, topology, order.txid, order.signed, seen=order.seen)
            return self._said([f"transaction {order.txid} takes its source as it is now and is {record.status}"])
        if order.action is PageAction.BISECT:
            from airflow_trident.runtime.debugging import bisect, poison_lines

            with self._work.open_engine(context) as engine:
                poison = bisect(ledger, topology, order.txid, engine, lambda line: self.log.info("%s", line))
            self._said(poison_lines(order.txid, poison))
            # What is returned is an XCom, which more people see than this log.
            return poison_lines(order.txid, poison, rows=settings.flag(settings.ROWS_IN_ERRORS))
        raise ConfigurationError(f"{order.action} needs no run of a DAG", "Ask for it on the page.")

    def _said(self, lines: list[str]) -> list[str]:
        for line in lines:
            self.log.info("%s", line)
        return lines


def _named(txids: list[int]) -> str:
    """``2, 3``; many as ranges, ``2 to 900``."""
    return (", ".join(map(str, txids)) if len(txids) <= LISTED else str(Txids.of(*txids))) or "none"


def _worker(topology: Topology, tasks: list[Any], order: MendingOrder) -> TridentBackfillOperator:
    """A task with the engine settings and the retention of the topology's tasks in its DAG; the task itself is in no
    DAG."""
    from airflow_trident.tasks.topology_search import retention_of

    taken: dict[str, Any] = {}
    for task in tasks:
        arguments = getattr(task, "partial_kwargs", None) or (vars(task) if isinstance(task, EngineOperator) else {})
        if "engine" in arguments or "spark_conn_id" in arguments:
            taken = {name: arguments[name] for name in _TAKEN if arguments.get(name) not in (None, "", {})}
            break
    templated = sorted(name for name, value in taken.items() if "{{" in str(value))
    if templated:
        raise ConfigurationError(
            f"{', '.join(templated)} of the tasks of topology {topology.name!r} in DAG {order.dag_id!r} are templates, "
            "which only their own runs can fill in",
            f"Use the command: `{order.command}`.",
        )
    if order.partition:
        taken |= {
            "first": order.partition,
            "last": order.to or order.partition,
            "partitions": order.choice or None,
            "redo": Redo.CHANGED if order.choice else Redo.ASKED,
            "gone": order.gone or None,
            "empty": order.empty or None,
            "reason": order.signed,
        }
    else:
        taken |= {"txid": order.txid, "first": order.first, "last": order.last}
    return TridentBackfillOperator(
        task_id="mend",
        topology=topology,
        retention=retention_of(topology.name, tasks),
        **taken,
    )
