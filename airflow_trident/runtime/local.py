"""The protocol in one process: finishes unfinished transactions, then runs one after another until nothing is new.

For notebooks, tests and small jobs. Ledger, promises and states are the same as in Airflow; the only difference is that
nobody else is at work.
"""

from __future__ import annotations

import getpass
import os
import socket
from dataclasses import dataclass

from airflow_trident.engine.engine import Engine, quiet
from airflow_trident.io.object_stores import require_place
from airflow_trident.io.paths import AnyPath
from airflow_trident.ledger.ledger import Ledger, MemoryLedger, topology_names
from airflow_trident.names import DEFAULT_RETENTION
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.records import Claim, Owner, Status, TxRecord
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.outcomes import ask_for_events, register, telling
from airflow_trident.runtime.phases import Attempts, Progress, coordinate, process
from airflow_trident.runtime.waiting import blocked
from airflow_trident.runtime.workers import at_work
from airflow_trident.states.memory import MemoryState
from airflow_trident.topology.topology import Topology

_PROGRAM = "LocalRunner"


def owner_of_this_process(program: str = "") -> Owner:
    """User, host and process.

    :param program: the name that the program gives itself.
    """
    return Owner(program=program, user=getpass.getuser(), host=socket.gethostname(), pid=os.getpid())


@dataclass(frozen=True, kw_only=True)
class LocalRunner:
    """Runs a topology here.

    >>> with MemoryLedger("wc") as ledger, LocalEngine() as engine:
    ...     LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root="staging").run()
    """

    ledger: Ledger
    topology: Topology
    engine: Engine
    staging_root: AnyPath
    retention: int = DEFAULT_RETENTION
    progress: Progress = quiet

    def __post_init__(self) -> None:
        """:raises ConfigurationError: `staging_root` is no path of a file system and no URI of an object store."""
        object.__setattr__(self, "staging_root", require_place("the staging folder", self.staging_root))

    def run(self, *, max_transactions: int | None = None) -> list[int]:
        """Commits everything that is there, with at most `max_transactions` new transactions. Returns their txids.

        :raises BlockedError: a lower transaction is FAILED.
        """
        self._begin_anew()
        with telling(self.ledger, Claim(key="local")):
            register(self.ledger, self.topology)
        for note in self.topology.compile().notes:
            self.progress(note)
        with at_work(self.ledger, owner_of_this_process(_PROGRAM)) as me:
            return self._run(me, max_transactions)

    def _begin_anew(self) -> None:
        """With a new ledger in memory, states in memory are new, too: no ledger of this process goes on with what an
        earlier run left in them."""
        if isinstance(self.ledger, MemoryLedger) and not topology_names(self.ledger.znodes):
            for spec in self.topology.states.values():
                if isinstance(spec.factory, MemoryState):
                    spec.factory.forget(self.topology.name)

    def _run(self, me: Owner, max_transactions: int | None) -> list[int]:
        done = self._recover(me)
        with OpenCoordinators(self.topology, self.ledger) as coordinators:
            while max_transactions is None or len(done) < max_transactions:
                claim = Claim(key=f"local/{self.ledger.view(0, ahead=True).next_txid}")
                result = coordinate(
                    self.ledger, self.topology, [claim], max_pending=1, attempt_by=me, coordinators=coordinators
                )
                if isinstance(result, Blocked):
                    raise blocked(self.topology.name, result)
                if not isinstance(result, tuple):
                    break
                for begun in result:
                    done += self._finish(me, begun.txid, begun.record if begun.new else None)
        return done

    def recover(self) -> list[int]:
        """Finishes every transaction that was begun and not committed, lowest first."""
        ask_for_events(self.ledger, self.topology)
        with at_work(self.ledger, owner_of_this_process(_PROGRAM)) as me:
            return self._recover(me)

    def finish(self, txid: int) -> list[int]:
        """Processes and commits this transaction. Returns the txids that were committed with it.

        :raises BlockedError: a lower transaction is FAILED.
        """
        with at_work(self.ledger, owner_of_this_process(_PROGRAM)) as me:
            return self._finish(me, txid)

    def _recover(self, me: Owner) -> list[int]:
        view = self.ledger.view(0)
        done: list[int] = []
        for txid in range(view.pointer.committed + 1, view.next_txid):
            if txid not in done:
                done += self._finish(me, txid)
        return done

    def _finish(self, me: Owner, txid: int, begun: TxRecord | None = None) -> list[int]:
        """:param begun: its record with the attempt that began with it."""
        tx = begun or self.ledger.view(txid).tx
        attempts = Attempts(owner=me, last_try=True)
        if tx is not None and tx.status is Status.PROCESSING:
            root = str(self.staging_root)
            process(self.ledger, self.topology, txid, self.engine, root, attempts, self.progress, started=begun)
        committer = Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=str(self.staging_root),
            attempts=attempts,
            engine=lambda: self.engine,
            retention=self.retention,
            progress=self.progress,
        )
        result = committer.commit(txid, take_over=True)
        if isinstance(result.own, Blocked) and (tx is None or tx.status is not Status.SKIPPED):
            raise blocked(self.topology.name, result.own)
        return list(result.committed)
