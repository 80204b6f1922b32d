"""The trigger of a drain whose driver runs in a cluster: it waits for the driver's end, without a worker slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from airflow.triggers.base import TriggerEvent

from airflow_trident.errors import TridentError
from airflow_trident.tasks.drivers import ClusterKind, Driver, DriverCluster
from airflow_trident.triggers.shared_watch import Hub
from airflow_trident.triggers.transaction import SETTLE_S, TridentTrigger

MISSES = 60
"""So many looks without an answer end the wait: the triggerer may lack a right, a way or a client that the task has."""


class TridentDriverTrigger(TridentTrigger):
    """Asks the cluster about the driver, and logs how far the topology's ledger is.

    :param topology: name of the topology.
    :param driver_id: the cluster's name for the driver.
    :param masters: REST addresses of the cluster's masters, or of YARN's resource manager; the namespace of a pod.
    :param cluster: ``standalone``, ``yarn`` or ``kubernetes``.
    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    :param poll_s: seconds between two looks.
    """

    connection_tries = 1  # at each look

    def __init__(
        self,
        topology: str,
        driver_id: str,
        masters: list[str],
        zookeeper_conn_id: str | None = None,
        poll_s: float = 5.0,
        cluster: str = ClusterKind.STANDALONE,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.topology = topology
        self.driver_id = driver_id
        self.masters = masters
        self.zookeeper_conn_id = zookeeper_conn_id
        self.poll_s = poll_s
        self.cluster = str(cluster)
        self._misses = 0

    @property
    def driver(self) -> Driver:
        return DriverCluster(kind=ClusterKind(self.cluster), addresses=tuple(self.masters)).driver(self.driver_id)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # An event sooner than SETTLE_S after the worker deferred can fail the task.
        await asyncio.sleep(SETTLE_S)
        async with AsyncExitStack() as stack:
            hub, committed = await self._hub_now(stack), 0
            while await self._active():
                hub = hub or await self._hub_now(stack)
                committed = await self._tell(hub, committed)
                await asyncio.sleep(self.poll_s)
            await self._tell(hub, committed)
        if self._misses:
            self.log.warning(
                "nobody says here whether Spark driver %s of topology %s has ended: the task asks",
                self.driver_id,
                self.topology,
            )
        else:
            self.log.info("Spark driver %s of topology %s has ended", self.driver_id, self.topology)
        yield TriggerEvent({"driver_id": self.driver_id})

    async def _active(self) -> bool:
        try:
            active = await asyncio.to_thread(self.driver.active)
        except TridentError as error:  # a master that restarts, or a client or setting that only the task has
            self.log.warning("%s", error)
            self._misses += 1
            return self._misses < MISSES
        self._misses = 0
        return active

    async def _hub_now(self, stack: AsyncExitStack) -> Hub | None:
        """None: the connection cannot be read now. The ledger is only asked for the log, so that ends no wait."""
        try:
            return await stack.enter_async_context(self.hub())
        except TridentError as error:
            self.log.warning("%s", error)
            return None

    async def _tell(self, hub: Hub | None, before: int) -> int:
        """Log the progress for people. Errors of the ledger are ignored: the driver meets them, too."""
        if hub is None:
            return before
        try:
            view = await hub.ledger(self.topology).call(lambda ledger: ledger.view(0))
        except TridentError:
            return before
        committed = view.pointer.committed
        if committed != before:
            self.log.info("topology %s: transactions up to %d are committed", self.topology, committed)
        return committed

    async def on_kill(self) -> None:
        """Kill the driver when a person ends the deferred task. The ledger stays right even without that."""
        try:
            await asyncio.to_thread(self.driver.kill)
            self.log.warning("Spark driver %s of topology %s is killed", self.driver_id, self.topology)
        except TridentError as error:
            self.log.warning("Spark driver %s was not killed: %s", self.driver_id, error)
