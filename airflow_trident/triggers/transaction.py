"""The trigger of every long wait: it waits for a transaction's turn, without a worker slot.

What all triggers of the package have in common.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSuccessEvent, TriggerEvent

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError, RetryableError, TridentError
from airflow_trident.links import TransactionLink, transaction_url
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.records import LedgerView, TxRecord
from airflow_trident.tasks.waits import (
    Abandoned,
    Asker,
    Over,
    TaskOfRun,
    Until,
    WaitDecision,
    commits_behind,
    decide_wait,
    told_by_dag,
)

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Connection
    from pydantic import JsonValue

    from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
    from airflow_trident.tasks.liveness import Answers
    from airflow_trident.triggers.shared_watch import Hub, SharedLedger

LONGEST_PAUSE_S = 30.0
"""Between two tries to read a connection; less where ``[trident] poll_s`` is less."""


class TridentTrigger(BaseTrigger):
    """A trigger keeps each argument as an attribute of the same name: Airflow makes it again from these."""

    zookeeper_conn_id: str | None
    connection_tries: float = 20
    """How often it is tried to read the connection. A server of Airflow that restarts, or a secrets backend that does
    not answer, ends no wait."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    _ensemble: ZooKeeperSettings | None = None

    @asynccontextmanager
    async def hub(self) -> AsyncIterator[Hub]:
        """The ZooKeeper session that all triggers of the process share. Open it again when ZooKeeper does not answer:
        the connection may have another address or login by now.

        :raises ConfigurationError: the connection is invalid, or cannot be read in :attr:`connection_tries` tries. Once
            it was read, its last valid content serves instead.
        """
        from airflow_trident.hooks.zookeeper import settings_of
        from airflow_trident.triggers.shared_watch import shared_hub

        try:
            self._ensemble = settings_of(await self._connection(1 if self._ensemble else self.connection_tries))
        except ConfigurationError as error:
            if self._ensemble is None:
                raise
            self.log.warning("%s The former connection is used.", error)
        async with shared_hub(self._ensemble, settings.text(settings.ROOT)) as hub:
            yield hub

    async def _connection(self, tries: float) -> Connection:
        from airflow_trident.hooks.zookeeper import ZooKeeperHook

        conn_id = self.zookeeper_conn_id or settings.text(settings.ZOOKEEPER_CONN_ID)
        pause_s = min(LONGEST_PAUSE_S, settings.number(settings.POLL_S, least=0.1))
        tried = 0
        while True:
            try:
                return await ZooKeeperHook.aget_connection(conn_id)
            except Exception as error:
                # Airflow says "not defined" also when nobody answered who could know it.
                tried += 1
                problem = f"the connection {conn_id!r} cannot be read ({type(error).__name__}: {error})"
                if tried >= tries:
                    raise ConfigurationError(
                        f"{problem}; it was tried {tried} times in a triggerer",
                        "Look whether Airflow's API server and the secrets backend answer, or add it: `airflow "
                        f"connections add {conn_id} --conn-type zookeeper --conn-host HOST:2181`. Then clear the task.",
                    ) from error
                self.log.warning("%s. The wait goes on; it is tried again in %g s.", problem, pause_s)
                await asyncio.sleep(pause_s)


SETTLE_S = 6.0
"""If the event comes sooner than this after a worker deferred, it can fail the task: Airflow 3.3 may mistake the end of
the worker for the end of the task that it has queued again."""
RARELY = 4
"""If other waiters are nearer to the transaction that all wait for, only one look in this many asks Airflow."""

_BACKFILL_RUN = "backfill__"
"""So begin the ids of runs that an Airflow backfill has made."""


class TridentTurnTrigger(TridentTrigger):
    """Waits on a ZooKeeper watch. As a safety net it also looks now and then, and asks Airflow whether anybody still
    works on the transaction that all wait for.

    :param topology: name of the topology.
    :param txid: the transaction that waits.
    :param until: the event to wait for, see :class:`Until`.
    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    :param skip_gone: set a transaction whose tasks are gone to SKIPPED, otherwise to FAILED.
    :param ends_task: the event ends the task here, without a worker; otherwise a worker continues and decides anew.
    :param deferred_ms: when a worker deferred the task (Unix milliseconds); None if there was no worker.
    :param poll_s: None: ``[trident] poll_s``.
    :param incarnation: the incarnation of the topology that `txid` belongs to; None: not known, use the present one.
    :param behind: ids of the tasks behind the waiting one; None: the triggerer reads them from the DAG, if it has it.
    :param max_active_runs: of the DAG of the waiting task; None: as `behind`.
    :param commits: see :class:`Asker`; None: as `behind`.
    """

    def __init__(
        self,
        topology: str,
        txid: int | str,
        until: str = Until.TURN,
        zookeeper_conn_id: str | None = None,
        skip_gone: bool = False,
        ends_task: bool = False,
        deferred_ms: int | None = None,
        poll_s: float | None = None,
        incarnation: str | None = None,
        behind: list[str] | None = None,
        max_active_runs: int | None = None,
        commits: bool | None = True,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topology = topology
        self.txid = txid
        self.until = str(until)
        self.zookeeper_conn_id = zookeeper_conn_id
        self.skip_gone = skip_gone
        self.ends_task = ends_task
        self.deferred_ms = deferred_ms
        self.poll_s = poll_s
        self.incarnation = incarnation
        self.behind = behind
        self.max_active_runs = max_active_runs
        self.commits = commits

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            txid = settings.parse_txid(self.txid)
            verdict = await self._wait(txid)
            story = self._story(txid, verdict)
            well = isinstance(verdict, Over | Abandoned)
        except TridentError as error:
            txid, story, well = 0, str(error), False
        (self.log.info if well else self.log.error)("%s", story)
        await self._let_airflow_settle()
        yield self._event(txid, story, well)

    # ---- the wait ----------------------------------------------------------------------------------------------

    async def _wait(self, txid: int) -> WaitDecision | Abandoned:
        poll_s = self.poll_s or settings.number(settings.POLL_S, least=0.1)
        while True:
            try:
                async with self.hub() as hub:
                    ledger = hub.ledger(self.topology, settings.parse_incarnation(self.incarnation))
                    return await self._wait_on(ledger, txid, poll_s)
            except RetryableError as error:
                self.log.warning("%s Transaction %d goes on waiting.", error, txid)
                await asyncio.sleep(poll_s)

    async def _wait_on(self, ledger: SharedLedger, txid: int, poll_s: float) -> WaitDecision | Abandoned:
        from airflow_trident.runtime.waiting import wait

        async def decide() -> tuple[WaitDecision, LedgerView]:
            view = await ledger.view(txid)
            return await self._review(ledger, decide_wait(view, txid, Until(self.until))), view

        async def look(record: TxRecord) -> Abandoned | None:
            return await self._look(ledger, record)

        return await wait(
            ledger,
            self.topology,
            txid,
            decide,
            wait_s=math.inf,
            look_every_s=poll_s,
            look=look,
            say=lambda story: self.log.info("%s", story),
            looks_of_others=RARELY,
        )

    async def _review(self, ledger: SharedLedger, decision: WaitDecision) -> WaitDecision:
        """:func:`unless_replayed`, in the triggerer."""
        from airflow_trident.tasks.liveness import unless_replayed

        if not isinstance(decision, Blocked) or decision.skipped:
            return decision
        record, asker = (await ledger.view(decision.by)).tx, self._asker()
        answers = None if record is None else await self._answers(record, asker)
        return unless_replayed(decision, record, answers, asker)

    async def _look(self, ledger: SharedLedger, record: TxRecord) -> Abandoned | None:
        """Does anybody still work on the transaction that all wait for? If not, the ledger is told."""
        from airflow_trident.tasks.liveness import after_asking

        asker = self._asker()
        answers = await self._answers(record, asker)
        if answers is None:
            return None
        return await ledger.call(lambda here: after_asking(here, record, answers, skip=self.skip_gone, asker=asker))

    async def _answers(self, record: TxRecord, asker: Asker | None) -> Answers | None:
        """Airflow's answers; None: it does not answer now. To ask is only a safety net, so that is no error."""
        try:
            return await self._ask(record, asker)
        except Exception as error:  # noqa: BLE001 - without an answer the wait goes on
            self.log.warning(
                "Airflow does not say whether anybody works on transaction %d (%s: %s): it is asked again.",
                record.txid,
                type(error).__name__,
                error,
            )
            return None

    def _asker(self) -> Asker | None:
        """The waiting task; None if Airflow does not say which task that is."""
        ti = self.task_instance
        if ti is None:
            return None
        task = getattr(self, "task", None)  # triggers have it since Airflow 3.3
        behind, max_runs = told_by_dag(task)
        behind = behind if self.behind is None else frozenset(self.behind)
        if self.max_active_runs is not None:
            max_runs = self.max_active_runs
        elif ti.run_id.startswith(_BACKFILL_RUN):
            max_runs = 1  # as a worker would say, which knows the type of its run
        index = -1 if ti.map_index is None else ti.map_index
        commits = commits_behind(task) if self.commits is None else self.commits
        return Asker(TaskOfRun(ti.dag_id, ti.run_id, ti.task_id, index), behind, max_runs, commits)

    async def _ask(self, record: TxRecord, asker: Asker | None) -> Answers:
        """Ask Airflow in a thread, because its client blocks."""
        from airflow_trident.tasks.asking_airflow import answers_about

        return await asyncio.to_thread(answers_about, record, asker)

    # ---- the end -----------------------------------------------------------------------------------------------

    def _story(self, txid: int, verdict: WaitDecision | Abandoned) -> str:
        from airflow_trident.runtime.waiting import blocked

        subject = f"transaction {txid} of topology {self.topology}"
        if isinstance(verdict, Over):
            return f"{subject} is committed already" if verdict.committed else f"the turn of {subject} has come"
        if isinstance(verdict, Abandoned):
            return f"the turn of {subject} has come: transaction {verdict.by} is left, and {verdict.why}"
        if isinstance(verdict, Blocked):
            return str(blocked(self.topology, verdict))
        return f"{subject} was never begun. See `airflow trident ledger list {self.topology}`."

    async def _let_airflow_settle(self) -> None:
        if self.deferred_ms is None or self.ends_task:
            return
        since_s = time.time() - self.deferred_ms / 1000
        await asyncio.sleep(min(SETTLE_S, max(0.0, SETTLE_S - since_s)))

    def _event(self, txid: int, story: str, well: bool) -> TriggerEvent:
        if not self.ends_task:
            return TriggerEvent({"well": well, "story": story})
        link: dict[str, JsonValue] = {
            TransactionLink().xcom_key: transaction_url(self.topology, *([txid] if txid else []))
        }
        if well:
            return TaskSuccessEvent(xcoms={"return_value": txid, **link})
        return TaskFailedEvent(xcoms=link)
