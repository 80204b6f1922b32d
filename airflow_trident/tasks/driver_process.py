"""A driver that no cluster can be asked about: a child of spark-submit, or in a cluster without a REST interface. It is
found by its process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

    from airflow_trident.ledger.workers import Worker

RUNNING = "RUNNING"


@dataclass(frozen=True, kw_only=True)
class DriverProcess:
    """:param order: address of the driver's order, which is in its command line.
    :param workers: gives the live workers of the topology; a driver is one of them.
    """

    host: str
    pid: int
    order: str
    workers: Callable[[], Sequence[Worker]]

    @property
    def driver_id(self) -> str:
        return f"process {self.pid} on {self.host}"

    def state(self) -> str:
        """:raises LedgerUnavailableError: the driver is on another machine, and ZooKeeper does not answer."""
        return RUNNING if self.active() else ""

    def active(self) -> bool:
        """Does the driver run? On another machine it does if it has a session with the ledger."""
        if self.host == socket.gethostname():
            return self._runs_here()
        return any((one.host, one.pid) == (self.host, self.pid) for one in self.workers())

    def kill(self) -> None:
        """End the driver if it runs on this machine; best effort."""
        import psutil

        if self.host == socket.gethostname() and self._runs_here():
            with suppress(psutil.Error):
                own = psutil.Process(self.pid)
                for process in (*self._below(own), own):
                    with suppress(psutil.Error):
                        process.terminate()

    def _below(self, _own: psutil.Process) -> list[psutil.Process]:
        """The processes that do not end by themselves when the driver ends."""
        return []

    def _runs_here(self) -> bool:
        """Does the process run the driver's order? The system reuses process ids, so the command line decides."""
        import psutil

        try:
            return self.order in psutil.Process(self.pid).cmdline()
        except psutil.AccessDenied:
            return True
        except psutil.Error:
            return False


class ClientDriver(DriverProcess):
    """A spark-submit in client mode: a JVM, of which the application is a child. `order`: the setting that names it."""

    def _below(self, own: psutil.Process) -> list[psutil.Process]:
        return own.children(recursive=True)


def find_client_driver(setting: str) -> ClientDriver | None:
    """The spark-submit on this machine with this setting; None if there is none.

    :param setting: :attr:`DriverTags.order_setting`, of one submission.
    """
    import psutil

    for process in psutil.process_iter(["cmdline"]):
        if setting in (process.info["cmdline"] or ()):
            return ClientDriver(host=socket.gethostname(), pid=process.pid, order=setting, workers=tuple)
    return None
