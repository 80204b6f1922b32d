"""The protocol in one process: finishes unfinished transactions, then runs one after another until nothing is new.

For notebooks, tests and small jobs. Ledger, promises and states are the same as in Airflow; the only difference is that
nobody else is at work.
"""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from airflow_trident.engine.engine import Engine, quiet
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.object_stores import require_place
from airflow_trident.io.paths import AnyPath
from airflow_trident.ledger.ledger import Ledger, MemoryLedger, topology_names
from airflow_trident.names import DEFAULT_RETENTION, Redo
from airflow_trident.protocol.decide import Blocked
from airflow_trident.protocol.partitions import OnMissing
from airflow_trident.protocol.records import Claim, OnFailure, Owner, Status, TxRecord
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.keys import AskedPartitions
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.outcomes import ask_for_events, register, telling
from airflow_trident.runtime.partitions import bound_to
from airflow_trident.runtime.phases import Attempts, Progress, coordinate, process
from airflow_trident.runtime.waiting import blocked
from airflow_trident.runtime.workers import at_work
from airflow_trident.states.memory import MemoryState
from airflow_trident.topology.topology import Topology

_PROGRAM = "LocalRunner"


def _rule(rule: OnMissing | str | None) -> OnMissing | None:
    return None if rule is None else OnMissing(rule)


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

    def run(
        self,
        *,
        max_transactions: int | None = None,
        partitions: Iterable[str] | None = None,
        redo: Redo | str = Redo.ASKED,
        gone: OnMissing | str | None = None,
        empty: OnMissing | str | None = None,
    ) -> list[int]:
        """Commits everything that is there, with at most `max_transactions` new transactions. Returns the txids that it
        committed.

        :param partitions: of a bound topology: the keys to do, in this order. They are processed in groups if the
            topology permits it. One that fails does not stop the others: its error is raised at the end.
        :param redo: ``"asked"``: do a partition that is COMMITTED again; ``"changed"``: only if its sources have
            changed.
        :param gone: instead of that of `Partitions`, for these keys.
        :param empty: instead of that of `Partitions`, for these keys.
        :raises BlockedError: a lower transaction is FAILED.
        :raises ConfigurationError: a bound topology without keys, or keys of another one.
        """
        if partitions is not None:
            bound_to(self.topology)
        elif self.topology.partitions is not None:
            raise ConfigurationError(
                f"topology {self.topology.name!r} is bound to partitions, and no key was named",
                'Name the keys, as in run(partitions=["2026-11-24"]).',
            )
        self._begin_anew()
        if partitions is not None:
            asked = AskedPartitions(
                keys=tuple(partitions), redo=Redo(redo) is Redo.ASKED, gone=_rule(gone), empty=_rule(empty)
            )
            return self._run_partitions(asked, max_transactions)
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
                outcome = coordinate(
                    self.ledger, self.topology, [claim], max_pending=1, attempt_by=me, coordinators=coordinators
                )
                if isinstance(outcome, Blocked):
                    raise blocked(self.topology.name, outcome)
                if not isinstance(outcome, tuple):
                    break
                for begun in outcome:
                    done += self._finish(me, begun.txid, begun.record if begun.new else None)
        return done

    def _run_partitions(self, asked: AskedPartitions, max_transactions: int | None) -> list[int]:
        drain = Drain(
            ledger=self.ledger,
            topology=self.topology,
            engine=self.engine,
            staging_root=str(self.staging_root),
            attempts=Attempts(owner=owner_of_this_process(_PROGRAM), on_failure=OnFailure.SKIP),
            claim=Claim(key=f"local/{uuid.uuid4().hex}"),
            limits=DrainLimits(max_transactions=max_transactions, tries=1),
            retention=self.retention,
            progress=self.progress,
            partitions=asked,
        )
        committed = list(drain.run().committed)
        for error in drain.errors:
            raise error
        return committed

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
        # Partitions do not need each other: one that fails lets the others pass.
        on_failure = OnFailure.BLOCK if self.topology.partitions is None else OnFailure.SKIP
        attempts = Attempts(owner=me, last_try=True, on_failure=on_failure)
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
        swept = committer.commit(txid, take_over=True)
        if isinstance(swept.own, Blocked) and (tx is None or tx.status is not Status.SKIPPED):
            raise blocked(self.topology.name, swept.own)
        return list(swept.committed)
