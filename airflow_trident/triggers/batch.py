"""The trigger for event-driven scheduling: it starts a run when the source has a batch, and only then."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_trident import settings
from airflow_trident.errors import ConfigurationError, LedgerUnavailableError, TridentError, guarded
from airflow_trident.runtime.open_resources import SourceNotes
from airflow_trident.tasks.asking_airflow import ask
from airflow_trident.tasks.engines import install_resolver
from airflow_trident.tasks.liveness import left_to_anybody, lowest_left_alone
from airflow_trident.tasks.source_lag import first_ready, last_position
from airflow_trident.tasks.topology_search import topology_named
from airflow_trident.topology.topology import Topology
from airflow_trident.triggers.shared_watch import Hub, SharedLedger
from airflow_trident.triggers.transaction import TridentTrigger


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A stream with data after transaction `after`, or a transaction that is `left`, and why."""

    after: int
    stream: str | None = None
    left: int = 0
    why: str = field(default="", compare=False)

    def __str__(self) -> str:
        if self.stream is not None:
            return f"stream {self.stream} has data after transaction {self.after}"
        return f"transaction {self.left} waits to be committed, and {self.why}"


class TridentBatchTrigger(TridentTrigger, BaseEventTrigger):
    """For an ``AssetWatcher``: sends an event when a stream has data that no transaction covers yet, or when a
    transaction is staged, or lost its batch, and nobody is left to commit it: the run does that. All such triggers in a
    process, and those that wait for a turn, share one ZooKeeper session.

    An event is only a hint. It is sent once for each transaction that can begin or is left, and again after `again_s`
    if nothing came of it. Its `stream` is None for one that is left. A triggerer that restarts may send it twice; the
    second run then begins nothing and is skipped.

    :param topology: name of the topology.
    :param place: the topology's code, as the triggerer finds it: ``module:attribute``, or
        ``/path/to/file.py:attribute``.
    :param zookeeper_conn_id: None: ``[trident] zookeeper_conn_id``.
    :param poll_s: seconds between two looks at the sources.
    :param again_s: seconds after which the event is sent again if nothing began.
    :raises ConfigurationError: `place` has no attribute, or a number is not above 0.
    """

    connection_tries = math.inf  # it is no task's wait: its end would end all runs

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
        announced, announced_s = _Found(after=-1), 0.0
        while True:
            try:
                async with self.hub() as hub:
                    while True:
                        reason = await self._look(hub)
                        if reason is not None and (
                            reason != announced or time.monotonic() - announced_s >= self.again_s
                        ):
                            announced, announced_s = reason, time.monotonic()
                            self.log.info("topology %s: %s", self.topology, reason)
                            yield TriggerEvent(
                                {"topology": self.topology, "after": reason.after, "stream": reason.stream}
                            )
                        await asyncio.sleep(self.poll_s)
            except LedgerUnavailableError as error:
                self.log.warning("topology %s: %s", self.topology, error)
                await asyncio.sleep(self.poll_s)

    async def _look(self, hub: Hub) -> _Found | None:
        """What a run could begin with. Any error, also one of a spout's own code, is logged and the next look asks
        again: an error that ended the trigger would end all runs, or with a trigger that Airflow starts anew the memory
        of what was told.

        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        try:
            topology = await asyncio.to_thread(self._topology)
            ledger = hub.ledger(self.topology)
            last, position = await ledger.call(last_position)
            stream = None
            if position is not None:
                notes = await ledger.call(lambda here: SourceNotes.of(here, settings.sources_root()))
                stream = await asyncio.to_thread(first_ready, topology, position, notes)
            if stream is not None or not last:
                return _Found(after=last, stream=stream) if stream is not None else None
            return await self._left(ledger, last)
        except LedgerUnavailableError:
            raise
        except TridentError as error:
            self.log.warning("topology %s: %s", self.topology, error)
        except Exception:
            self.log.exception("topology %s: the look for a batch has failed; the next one comes", self.topology)
        return None

    async def _left(self, ledger: SharedLedger, last: int) -> _Found | None:
        """A transaction that is staged, or lost its batch, if nobody is left to commit it."""
        record = await ledger.call(lowest_left_alone)
        if record is None:
            return None
        answers = await asyncio.to_thread(ask, record)
        orphan = await ledger.call(lambda here: left_to_anybody(here, record, answers, None))
        return None if orphan is None else _Found(after=last, left=orphan.by, why=orphan.why)

    def _topology(self) -> Topology:
        """The topology, read again when its file has changed: Airflow goes on with the same trigger then. What the file
        imports is read once."""
        stamp = _stamp_of(self.place)
        if self._found is None or stamp not in (None, self._stamp):
            with guarded(self.place):  # whatever ends a process by itself would end all triggers of this one
                self._found = topology_named(self.topology, dag_file=self.place)
            self._stamp = stamp
        return self._found

    _found: Topology | None = None
    _stamp: tuple[int, ...] | None = None


def _stamp_of(place: str) -> tuple[int, ...] | None:
    """Differs when the file of a place does; None: it is a module, or not there now."""
    file = place.rpartition(":")[0]
    if not file.endswith(".py"):
        return None
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
