"""One topology that a worker runs: drain after drain, in a thread of its own, until it is told to finish."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_trident.engine.base import Engine
from airflow_trident.errors import TridentError, error_text
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import DEFAULT_RETENTION
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts, Progress
from airflow_trident.topology.topology import Topology

_WAIT_S = 10.0
"""So long a drain waits in its end for what others hold; then the worker looks again whether it is to go on."""
_CANCEL_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a worker runs topologies with.

    :param code_of: name -> topology; raises what is wrong with its code.
    :param open_ledger: (topology, incarnation) -> its ledger, for one thread, which closes it.
    :param engine_of: made once for each topology.
    :param children_here: see :func:`airflow_trident.runtime.deployed.initialising.initialise`.
    :param claim: the txid is added to its key.
    """

    code_of: Callable[[str], Topology]
    open_ledger: Callable[[str, str], Ledger]
    engine_of: Callable[[Topology], Engine]
    staging_root: str
    attempts: Attempts
    claim: Claim
    limits: DrainLimits = field(default_factory=DrainLimits)
    retention: int = DEFAULT_RETENTION
    children_here: bool = True


class RunningTopology:
    """Runs until :meth:`finish`; what fails is tried again after a pause, and told until it is mended.

    :param poll_s: pause after a drain that found nothing new.
    """

    def __init__(
        self, topology: Topology, incarnation: str, engine: Engine, means: Means, *, poll_s: float, progress: Progress
    ) -> None:
        self.error = ""
        self._topology, self._incarnation, self._engine, self._means = topology, incarnation, engine, means
        self._poll_s, self._progress = poll_s, progress
        self._finishing = threading.Event()
        # a daemon: a worker that gave up waiting for it ends all the same
        self._thread = threading.Thread(target=self._run, name=f"trident-{topology.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Is something of the topology in its hands?"""
        return self._thread.is_alive()

    def finish(self) -> None:
        """Begin no more transactions, and end when those that were begun are at their end."""
        self._finishing.set()

    def join(self, timeout_s: float) -> bool:
        """True: it has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancel its jobs, best effort: others take up what they were at."""
        canceller = threading.Thread(target=self._engine.cancel, name="trident-cancel", daemon=True)
        canceller.start()
        canceller.join(_CANCEL_S)

    def _run(self) -> None:
        while not self._finishing.is_set():
            try:
                with self._means.open_ledger(self._topology.name, self._incarnation) as ledger:
                    while not self._finishing.is_set():
                        committed = self._drain(ledger).run().committed
                        self._say("")
                        if not committed:
                            self._finishing.wait(self._poll_s)
            except TridentError as error:
                self._say(str(error))
            except Exception as error:  # noqa: BLE001 - a source, a store or a user's code: the others must go on
                self._say(error_text(error))
            self._finishing.wait(self._poll_s)

    def _say(self, error: str) -> None:
        if error and error != self.error:
            self._progress(f"topology {self._topology.name}: {error}")
        self.error = error

    def _drain(self, ledger: Ledger) -> Drain:
        means = self._means
        return Drain(
            ledger=ledger,
            topology=self._topology,
            engine=self._engine,
            staging_root=means.staging_root,
            attempts=means.attempts,
            claim=means.claim,
            limits=replace(means.limits, wait_s=min(means.limits.wait_s, _WAIT_S)),
            retention=means.retention,
            progress=lambda line: self._progress(f"topology {self._topology.name}: {line}"),
            stopping=self._finishing.is_set,
        )
