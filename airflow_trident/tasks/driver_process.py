"""A driver without a cluster to ask: a child of spark-submit, or in a cluster that tells nothing. It is found by its
process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_trident.ledger.workers import Worker

RUNNING = "RUNNING"


@dataclass(frozen=True, kw_only=True)
class DriverProcess:
    """:param order: address of the order that it has, which is in its command line.
    :param workers: the live workers of the topology, of which a driver is one.
    """

    host: str
    pid: int
    order: str
    workers: Callable[[], Sequence[Worker]]

    @property
    def driver_id(self) -> str:
        return f"process {self.pid} on {self.host}"

    def state(self) -> str:
        """:raises LedgerUnavailableError: it is on another machine, and ZooKeeper does not answer."""
        return RUNNING if self.active() else ""

    def active(self) -> bool:
        """As far as can be seen. On another machine the ledger says so, as long as the driver has a session with it."""
        if self.host == socket.gethostname():
            return self._runs_here()
        return any((one.host, one.pid) == (self.host, self.pid) for one in self.workers())

    def kill(self) -> None:
        """Best effort, and on this machine only."""
        import psutil

        if self.host == socket.gethostname() and self._runs_here():
            with suppress(psutil.Error):
                psutil.Process(self.pid).terminate()

    def _runs_here(self) -> bool:
        """Process ids are given anew: the command line says whether it is the one."""
        import psutil

        try:
            return self.order in psutil.Process(self.pid).cmdline()
        except psutil.AccessDenied:
            return True
        except psutil.Error:
            return False
