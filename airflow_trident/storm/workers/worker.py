"""A named worker: registers, and obeys the commands of the deployments that name it, until all of them are shut down.

It does only what :mod:`airflow_trident.storm.workers.deployment` says. Nothing here is needed for exactly once:
if a worker is lost, or two workers take each other for lost, the ledger fences them.

A topology that a worker runs: drain after drain, in its own thread, until it is told to finish.

A worker initialises a topology: it finds everything that can be wrong before the first batch.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from airflow_trident.engine.engine import Engine
from airflow_trident.errors import (
    ConfigurationError,
    LedgerAuthError,
    NameTakenError,
    Outcome,
    RetryableError,
    TridentError,
    guarded,
    logged_text,
    recorded_text,
)
from airflow_trident.ledger.ledger import SLOW_POLL_S, Ledger
from airflow_trident.ledger.workers import own_process_ids
from airflow_trident.names import DEFAULT_RETENTION, require_name
from airflow_trident.protocol.records import Claim, Command, Owner
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts, Progress
from airflow_trident.runtime.state_agreement import require_agreement
from airflow_trident.storm.components.bolt import BoltNode, ChildBolt
from airflow_trident.storm.components.bolt_sink import BoltSink
from airflow_trident.storm.components.component_trial import try_bolt
from airflow_trident.storm.workers.deployment import (
    MAX_ERROR,
    Acknowledgement,
    DeploymentCommand,
    Doing,
    Duty,
    Registration,
    Roster,
    WorkerStatus,
    duty,
    next_command,
    placed,
)
from airflow_trident.storm.workers.deployments import Deployed, Deployments
from airflow_trident.topology.topology import Topology
from airflow_trident.types import names_of

_WAIT_S = 10.0
"""How long a drain waits at its end for transactions that others hold; then the worker looks again whether to go on."""
_CANCEL_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a worker needs to run topologies.

    :param code_of: name -> topology; raises if its code is wrong.
    :param open_ledger: (topology, incarnation) -> its ledger, for one thread, which closes it.
    :param engine_of: called once for each topology.
    :param children_here: see :func:`airflow_trident.storm.workers.worker.initialise`.
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


def initialise(topology: Topology, ledger: Ledger, *, children_here: bool) -> None:
    """Compiles the topology, compares its definition with the ledger's, asks its states, and starts and stops each of
    its bolts in other programs once.

    Spouts in other programs are not started: a started one may take something from its source.

    :param children_here: bolts of the processing phase run on this machine, not on the machines of a cluster.
    :raises DefinitionChangedError: the ledger belongs to another definition.
    :raises LedgerBehindStateError, StateBehindLedgerError, StoreUnavailableError: the states are not as they must be.
    :raises ConfigurationError, ChildError, UserCodeError: a bolt cannot be started.
    """
    topology.compile()
    ledger.register(topology.definition())
    require_agreement(ledger, topology)
    for bolt, fields in bolts_of(topology, children_here=children_here):
        try_bolt(bolt, fields, (), _unheard)


def bolts_of(topology: Topology, *, children_here: bool = True) -> Iterator[tuple[ChildBolt, tuple[str, ...]]]:
    """The bolts in other programs that run on this machine, with the fields that they read."""
    plan = topology.compile()
    processing = plan.stages if children_here else ()
    for stage in (*processing, *(stage for level in plan.commit for stage in level.stages)):
        for node in stage.nodes:
            if isinstance(node, BoltNode):
                yield node.bolt, node.reads
    for spec in topology.states.values():
        if isinstance(spec.factory, BoltSink):
            yield spec.factory.bolt, names_of(spec.staged)


def _unheard(_said: dict[str, Any]) -> None:
    """Drops what the bolt says: nobody asked for it."""


_ANSWERS = {
    Duty.REGISTER: WorkerStatus.REGISTERED,
    Duty.CONFIRM: WorkerStatus.INITIALIZED,
    Duty.DRAIN: WorkerStatus.RUNNING,
    Duty.STAND_BY: WorkerStatus.STANDBY,
    Duty.REST: WorkerStatus.PAUSED,
    Duty.LEAVE: WorkerStatus.STOPPED,
}


Doings: TypeAlias = dict[str, tuple[Doing, str, bool]]
"""Topology -> what the worker does for it, the error of its drain, and whether a failed start is due again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds. `poll_s`: between looks at a source without news. `look_s`: between looks at the worker's own threads,
    and at deployments while one of them has a step to take. `reread_s`: between looks at deployments that no watch
    reports as changed. `wait_s`: for a deployment that names the worker, and for the name to be free. `stop_s`: for
    begun work when the worker must end."""

    poll_s: float = 5.0
    look_s: float = 1.0
    reread_s: float = SLOW_POLL_S
    wait_s: float = 0.0
    stop_s: float = 30.0


@dataclass(kw_only=True)
class _Served:
    """One topology in this process. `failed`: the epoch in which its initialisation failed; `retry_at`: when it is
    tried again (None: with the next command)."""

    topology: Topology | None = None
    engine: Engine | None = None
    running: RunningTopology | None = None
    initialised: bool = False
    error: str = ""
    failed: int = 0
    retry_at: float | None = None
    has_left: bool = False

    @property
    def doing(self) -> Doing:
        draining = self.running is not None and self.running.is_alive
        return Doing(initialised=self.initialised, draining=draining)


@dataclass(kw_only=True)
class NamedWorker:
    """A worker; each object is used once. `run` blocks; `stop` may be called from a signal handler.

    :param deployments: closed at the end, which frees the name.
    :param only: serve these topologies; empty: all that are deployed on the name, also later ones.
    :param owner: who runs it, as in the owner of an attempt.
    """

    name: str
    deployments: Deployments
    means: Means
    owner: Owner
    progress: Progress
    only: Collection[str] = ()
    patience: Patience = field(default_factory=Patience)

    def __post_init__(self) -> None:
        """:raises PlanError: a worker cannot have such a name."""
        require_name("worker", self.name)
        self._stopping = threading.Event()
        self._served: dict[str, _Served] = {}
        self._silent = ""
        self.registration = Registration(
            worker=self.name,
            session=uuid.uuid4().hex,
            host=self.owner.host,
            pid=self.owner.pid,
            task=self.owner.who,
            since_ms=time.time_ns() // 1_000_000,
            process_ids=own_process_ids(),
        )

    def run(self) -> bool:
        """Serves until all topologies are shut down or taken away, or until :meth:`stop`.

        :returns: False if something was left unfinished, for others.
        :raises ConfigurationError: no deployment names the worker, or not all of `only` do.
        :raises NameTakenError: another process has the name.
        :raises LedgerUnavailableError: ZooKeeper does not answer at the start. Later the worker waits for it.
        """
        finished = True
        try:
            self._join()
            while not self._stopping.is_set() and self._look():
                pass
        finally:
            finished = self._wind_down()
            self.deployments.znodes.close()
        return finished

    def stop(self) -> None:
        """Finishes what was begun, and ends. The other workers keep the topologies."""
        self._stopping.set()

    # ---- register ----------------------------------------------------------------------------------------------

    def _join(self) -> None:
        deadline = time.monotonic() + self.patience.wait_s
        while not self._stopping.is_set():
            try:
                require_named(self.deployments.read(self.only or None), self.name, self.only)
                self.deployments.register(self.registration)
            except ConfigurationError as error:
                if isinstance(error, LedgerAuthError) or time.monotonic() >= deadline:
                    raise
                self._say_once(f"worker {self.name} waits: {error}")
                self._stopping.wait(self.patience.look_s)
            else:
                self.progress(f"worker {self.name} is registered ({self.owner})")
                return

    def _require_name(self, deployed: Deployed) -> None:
        """:raises NameTakenError: the session was lost for long, and another process took the name meanwhile."""
        holder = deployed.live.get(self.name)
        if holder is None:
            self.deployments.register(self.registration)
        elif holder.session != self.registration.session:
            raise NameTakenError(
                f"worker {self.name!r} lost its session with ZooKeeper, and process {holder.pid} on {holder.host} has "
                "the name now",
                "Nothing is to be done if that is the worker's next start.",
            )

    # ---- serve -------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Looks at everything once; False when there is nothing more to do here."""
        rosters: list[Roster] = []
        doings = self._doings()
        try:
            deployed = self.deployments.read()
            self._require_name(deployed)
            rosters = [
                roster for roster in deployed.of(self.name) if not self.only or roster.deployment.topology in self.only
            ]
            self._drop({roster.deployment.topology for roster in rosters}, deployed.unreadable)
            changed = [self._serve(roster) for roster in rosters]
            changed += [self._lead(roster, deployed) for roster in rosters]
            self._silent = ""
            if self._is_done():
                return False
            if not any(changed):
                self._rest(deployed, rosters, doings)
        except RetryableError as error:  # running drains notice it; the session may go on, or a new one begins
            self._say_once(f"worker {self.name} cannot read its deployments: {error}")
            self._stopping.wait(self.patience.look_s)
        return True

    def _rest(self, deployed: Deployed, rosters: Sequence[Roster], doings: Doings) -> None:
        """Waits until a record changes, or something in this process does.

        :param doings: as they were before the look, so a thread that ended during the look is not missed.
        """
        is_due = any(next_command(roster, Command.RUN) is not None for roster in rosters)
        deadline = time.monotonic() + (self.patience.look_s if is_due else self.patience.reread_s)
        while not self._stopping.is_set() and self._doings() == doings:
            rest_s = deadline - time.monotonic()
            if rest_s <= 0:
                return
            if self.deployments.wait_for_change(deployed, min(self.patience.look_s, rest_s), worker=self.name):
                return

    def _doings(self) -> Doings:
        """What a look at the topologies of this process depends on, beside the records."""
        now = time.monotonic()
        return {
            topology: (
                served.doing,
                served.running.error if served.running is not None else "",
                served.retry_at is not None and served.retry_at <= now,
            )
            for topology, served in self._served.items()
        }

    def _is_done(self) -> bool:
        return all(served.has_left and not served.doing.draining for served in self._served.values())

    def _drop(self, still: set[str], unreadable: Mapping[str, str]) -> None:
        """Finishes topologies that are no longer deployed here. An unreadable one may still be deployed: nothing more
        is begun until a person deploys it again."""
        for name in still:
            self._served.setdefault(name, _Served())
        for name, served in self._served.items():
            if name in still or served.has_left:
                continue
            if served.running is not None:
                served.running.finish()
            error = unreadable.get(name, "")
            if not error:
                self.progress(f"topology {name} is no longer deployed on worker {self.name}")
                served.has_left = True
            elif error != served.error:
                self.progress(f"topology {name}: {error}")
                served.error = error

    def _serve(self, roster: Roster) -> bool:
        """Does the next thing for a topology; True: look again at once."""
        served = self._served[roster.deployment.topology]
        due = duty(roster, self.name, served.doing)
        if due is not Duty.LEAVE:  # it may have been deployed here before
            served.has_left = False
        if due is Duty.FINISH:
            if served.running is not None:
                served.running.finish()
            return False
        if due is Duty.INITIALISE:
            return self._initialise(roster, served)
        if due is Duty.REGISTER:
            served.initialised, served.failed = False, 0
        running = served.running if due is Duty.DRAIN else None
        if self._answer(roster, _ANSWERS[due], running.error if running is not None else ""):
            return True
        served.has_left = due is Duty.LEAVE
        if due is Duty.DRAIN and not served.doing.draining and self._has_answered(roster, WorkerStatus.RUNNING):
            self._start(roster, served)
        return False

    def _start(self, roster: Roster, served: _Served) -> None:
        assert served.topology is not None
        assert served.engine is not None
        served.running = RunningTopology(
            served.topology,
            roster.deployment.incarnation,
            served.engine,
            self.means,
            poll_s=self.patience.poll_s,
            progress=self.progress,
        )

    def _initialise(self, roster: Roster, served: _Served) -> bool:
        deployment = roster.deployment
        if served.failed == deployment.epoch and (served.retry_at is None or time.monotonic() < served.retry_at):
            return self._answer(roster, WorkerStatus.INIT_FAILED, served.error)
        try:
            with guarded(f"the code of topology {deployment.topology!r}"):
                topology = self.means.code_of(deployment.topology)
            with self.means.open_ledger(deployment.topology, deployment.incarnation) as ledger:
                initialise(topology, ledger, children_here=self.means.children_here(topology))
            served.engine = served.engine or self.means.engine_of(topology)
        except Exception as error:  # noqa: BLE001 - whatever it is: report it, and go on with the other topologies
            again = isinstance(error, TridentError) and error.outcome is Outcome.RETRY
            served.error = recorded_text(error, rows=self.means.attempts.rows_in_errors)
            served.retry_at = time.monotonic() + self.patience.poll_s if again else None
            if served.failed != deployment.epoch:
                self.progress(f"topology {deployment.topology}: {logged_text(error)}")
            served.failed = deployment.epoch
            return self._answer(roster, WorkerStatus.INIT_FAILED, served.error)
        served.topology, served.initialised, served.failed = topology, True, 0
        return True

    def _answer(self, roster: Roster, status: WorkerStatus, error: str = "") -> bool:
        """Acknowledges, if that was not done yet; True: look again."""
        if self._has_answered(roster, status) and roster.acknowledged[self.name].error == error[:MAX_ERROR]:
            return False
        deployment = roster.deployment
        acknowledgement = Acknowledgement(
            worker=self.name,
            session=self.registration.session,
            epoch=deployment.epoch,
            status=status,
            error=error,
        )
        if self.deployments.acknowledge(roster, acknowledgement):
            self.progress(f"topology {deployment.topology}: {status} (epoch {deployment.epoch})")
        return True

    def _has_answered(self, roster: Roster, status: WorkerStatus) -> bool:
        return roster.answered(self.name, status)

    def _lead(self, roster: Roster, deployed: Deployed) -> bool:
        """Writes what any worker may write (the first one does): the command that is due, and who runs the topology."""
        if self._served[roster.deployment.topology].has_left:
            return False
        if self.deployments.advance(roster, by=self.name):
            return True
        if roster.deployment.command is not DeploymentCommand.RUN:
            return False
        worker = placed(deployed.rosters.values()).get(roster.deployment.topology, "")
        if not worker or worker == roster.deployment.placed:
            return False
        self.deployments.place(roster, worker)
        return True  # whether it was done or not, the next look shows who runs it

    # ---- end ---------------------------------------------------------------------------------------------------

    def _wind_down(self) -> bool:
        running = list(self._running())
        for running_topology in running:
            running_topology.finish()
        deadline = time.monotonic() + self.patience.stop_s
        unfinished = [
            running_topology for running_topology in running if not running_topology.join(deadline - time.monotonic())
        ]
        for running_topology in unfinished:
            running_topology.cancel()
        if unfinished:
            self.progress(f"worker {self.name}: not finished within {self.patience.stop_s:g} s; others take it up")
            return False
        for served in self._served.values():
            if served.engine is not None:
                with suppress(Exception):  # the work is done, and the process ends
                    served.engine.close()
        if self._served:
            self.progress(f"worker {self.name} has ended")
        return True

    def _running(self) -> Iterator[RunningTopology]:
        return (
            served.running for served in self._served.values() if served.running is not None and served.running.is_alive
        )

    def _say_once(self, line: str) -> None:
        if line != self._silent:
            self.progress(line)
        self._silent = line


def require_named(deployed: Deployed, worker: str, only: Collection[str]) -> None:
    """
    :raises ConfigurationError: a topology of `only` is not deployed, or not on this worker; or `only` is empty and no
        topology is deployed on it. The error names the cure.
    """
    for topology in only:
        if topology in deployed.unreadable:
            raise ConfigurationError(deployed.unreadable[topology])
        roster = deployed.rosters.get(topology)
        if roster is None:
            raise ConfigurationError(
                f"topology {topology!r} is not deployed",
                f"Run `airflow trident deploy {topology} --workers {worker}`, or wait for somebody to do so with "
                "`--wait-s 60`.",
            )
        workers = roster.deployment.workers
        if worker not in workers:
            raise ConfigurationError(
                f"{worker!r} is none of the workers of topology {topology!r}, which are {', '.join(workers)}",
                f"Take one of these names, or deploy it anew: `airflow trident deploy {topology} --workers "
                f"{','.join([*workers, worker])}`.",
            )
    if not only and not deployed.of(worker):
        deployments = [
            f"{name} on {', '.join(deployed_roster.deployment.workers)}"
            for name, deployed_roster in sorted(deployed.rosters.items())
        ]
        raise ConfigurationError(
            f"no topology is deployed on worker {worker!r}; deployed: {'; '.join(deployments) or 'none'}",
            f"Run `airflow trident deploy TOPOLOGY --workers {worker}`, or wait for somebody to do so with "
            "`--wait-s 60`.",
        )
