"""A topology that a worker runs: drain after drain, in its own thread, until it is told to finish."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from airflow_trident.engine.base import Engine
from airflow_trident.errors import logged_text, recorded_text
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.begin_result import DEFAULT_RETENTION
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts, Progress
from airflow_trident.topology.topology import Topology

_WAIT_S = 10.0
"""How long a drain waits at its end for transactions that others hold; then the worker looks again whether to go on."""
_CANCEL_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a worker needs to run topologies.

    :param code_of: name -> topology; raises if its code is wrong.
    :param open_ledger: (topology, incarnation) -> its ledger, for one thread, which closes it.
    :param engine_of: called once for each topology.
    :param children_here: see :func:`airflow_trident.storm.workers.initialising.initialise`.
    :param claim: the txid is added to its key.
    :param retention_of: name -> committed transactions to keep, once its code is read.
    """

    code_of: Callable[[str], Topology]
    open_ledger: Callable[[str, str], Ledger]
    engine_of: Callable[[Topology], Engine]
    staging_root: str
    attempts: Attempts
    claim: Claim
    limits: DrainLimits = field(default_factory=DrainLimits)
    retention_of: Callable[[str], int] = lambda _topology: DEFAULT_RETENTION
    children_here: Callable[[Topology], bool] = lambda _: True


class RunningTopology:
    """Runs until :meth:`finish`. What fails is tried again after a pause; its error is reported until a try succeeds.

    :param poll_s: pause after a drain that found nothing new.
    """

    def __init__(
        self, topology: Topology, incarnation: str, engine: Engine, means: Means, *, poll_s: float, progress: Progress
    ) -> None:
        self.error = ""
        """What the worker reports of the last error; its whole text, which may quote rows, is only logged."""
        self._logged = ""
        self._topology, self._incarnation, self._engine, self._means = topology, incarnation, engine, means
        self._poll_s, self._progress = poll_s, progress
        self._finishing = threading.Event()
        # a daemon: a worker that stopped waiting for this thread can end
        self._thread = threading.Thread(target=self._run, name=f"trident-{topology.name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Does this process still work on the topology?"""
        return self._thread.is_alive()

    def finish(self) -> None:
        """Begins no more transactions, and ends when the begun ones are finished."""
        self._finishing.set()

    def join(self, timeout_s: float) -> bool:
        """True: the thread has ended."""
        self._thread.join(max(0.0, timeout_s))
        return not self._thread.is_alive()

    def cancel(self) -> None:
        """Cancels its jobs, best effort: others take up their transactions."""
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
            except BaseException as error:  # noqa: BLE001 - a source, a store or a user's code: the others must go on
                recorded = recorded_text(error, rows=self._means.attempts.rows_in_errors)
                self._say(logged_text(error), recorded)
            self._finishing.wait(self._poll_s)

    def _say(self, error: str, recorded: str = "") -> None:
        if error and error != self._logged:
            self._progress(f"topology {self._topology.name}: {error}")
        self._logged, self.error = error, recorded

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
            retention=means.retention_of(self._topology.name),
            progress=lambda line: self._progress(f"topology {self._topology.name}: {line}"),
            stopping=self._finishing.is_set,
        )
