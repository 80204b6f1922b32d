"""The trigger for event-driven scheduling: it starts a run when the source has a batch, and only then."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.tasks.connections import install_resolver
from airflow_trident.tasks.source_lag import first_ready, last_position
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.topology.topology import Topology
from airflow_trident.triggers.shared_watch import Hub
from airflow_trident.triggers.trident_trigger import TridentTrigger


class TridentBatchTrigger(TridentTrigger, BaseEventTrigger):
    """For an ``AssetWatcher``: sends an event when a stream has data that no transaction covers yet. All such triggers
    in a process, and those that wait for a turn, share one ZooKeeper session.

    An event is only a hint. It is sent once for each transaction that can begin, and again after `again_s` if no
    transaction began. A triggerer that restarts may send it twice; the second run then begins nothing and is skipped.

    :param topology: name of the topology.
    :param place: the topology's code, as the triggerer finds it: ``module:attribute``, or
        ``/path/to/file.py:attribute``.
    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    :param poll_s: seconds between two looks at the sources.
    :param again_s: seconds after which the event is sent again if nothing began.
    :raises ConfigurationError: `place` has no attribute, or a number is not above 0.
    """

    def __init__(
        self,
        topology: str,
        place: str,
        zookeeper_conn_id: str | None = None,
        poll_s: float = 30.0,
        again_s: float = 600.0,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if ":" not in place:
            raise ConfigurationError(
                f"the place {place!r} of topology {topology!r} names no attribute",
                "Write it like orders_dag:topology, or /dags/orders_dag.py:topology.",
            )
        for name, value in (("poll_s", poll_s), ("again_s", again_s)):
            if value <= 0:
                raise ConfigurationError(f"{name} = {value!r}", "Give more than 0 seconds.")
        self.topology = topology
        self.place = place
        self.zookeeper_conn_id = zookeeper_conn_id
        self.poll_s = poll_s
        self.again_s = again_s

    async def run(self) -> AsyncIterator[TriggerEvent]:
        install_resolver()
        told, told_s = -1, 0.0
        async with self.hub() as hub:
            while True:
                last, stream = await self._look(hub)
                if stream and (last != told or time.monotonic() - told_s >= self.again_s):
                    told, told_s = last, time.monotonic()
                    self.log.info("stream %s of topology %s has data after transaction %d", stream, self.topology, last)
                    yield TriggerEvent({"topology": self.topology, "after": last, "stream": stream})
                await asyncio.sleep(self.poll_s)

    async def _look(self, hub: Hub) -> tuple[int, str | None]:
        """The last transaction, and a stream with data after it. An error is logged and the next look asks again:
        Airflow never restarts an event trigger that has ended."""
        try:
            topology = await asyncio.to_thread(self._topology)
            last, position = await hub.ledger(self.topology).call(last_position)
            if position is None:
                return last, None
            return last, await asyncio.to_thread(first_ready, topology, position)
        except TridentError as error:
            self.log.warning("topology %s: %s", self.topology, error)
            return 0, None

    def _topology(self) -> Topology:
        if self._found is None:
            self._found = topology_named(self.topology, dag_file=self.place)
        return self._found

    _found: Topology | None = None
