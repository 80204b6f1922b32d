"""The records of named workers: which topology is deployed on whom, what they are told, and what they answered. Pure.

After the coordinator and the workers of qtopology's first protocol, whose messages became records: a command with an
epoch, which every worker acknowledges. Who registers, and who is alive, is an ephemeral node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TypeVar

from airflow_trident.protocol.durable_format import Format


class DeploymentCommand(StrEnum):
    """What the workers of a topology are told."""

    INTRODUCE = "introduce"
    """Register."""
    INIT = "init"
    """All have registered: load the topology, look at its states, try its components."""
    RUN = "run"
    """All have confirmed: begin transactions."""
    PAUSE = "pause"
    """Finish what was begun, and begin nothing."""
    SHUTDOWN = "shutdown"
    """Finish what was begun, and end."""


class WorkerStatus(StrEnum):
    """What a worker last acknowledged of a topology."""

    REGISTERED = "registered"
    INITIALIZED = "initialized"
    """The seed's `init_confirmed`."""
    INIT_FAILED = "init_failed"
    RUNNING = "running"
    """It begins, processes and commits the topology's transactions."""
    STANDBY = "standby"
    """It is ready, and another one runs the topology."""
    PAUSED = "paused"
    """Nothing of the topology is in its hands."""
    STOPPED = "stopped"

    @property
    def is_ready(self) -> bool:
        """Was the topology initialised there?"""
        return self in (WorkerStatus.INITIALIZED, WorkerStatus.RUNNING, WorkerStatus.STANDBY, WorkerStatus.PAUSED)


class Presence(StrEnum):
    """How a worker stands that has not acknowledged anything, or is not there."""

    INTRODUCED = "introduced"
    """It is there, and has not answered yet."""
    MISSING = "missing"
    """Nobody has come under its name yet."""
    LOST = "lost"
    """It answered, and is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`deployments/<topology>`: the workers of a topology and what they are told.

    `incarnation`: of the ledger that is meant. `epoch`: rises by one with every command. `weight` and `affinity`: see
    :mod:`airflow_trident.protocol.placement`. `placed`: the worker that runs the topology, "" before one is chosen.
    `changed_ms`, `changed_by`: who gave the last command, for people.
    """

    topology: str
    incarnation: str
    workers: tuple[str, ...]
    command: DeploymentCommand = DeploymentCommand.INTRODUCE
    epoch: int = 1
    weight: int = 1
    affinity: tuple[str, ...] = ()
    placed: str = ""
    changed_ms: int = 0
    changed_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """`deployments/<topology>/<worker>`: how far a worker is with the command of an epoch.

    `session`: of its registration: what an earlier process of that name acknowledged counts no more. `error`: why it
    cannot go on, "" if nothing is wrong.
    """

    worker: str
    session: str
    epoch: int
    status: WorkerStatus
    error: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """`workers/<name>`, ephemeral: the process that has the name now.

    `session`: a name that no other process ever has. `task`: what runs, as in the owner of an attempt.
    """

    worker: str
    session: str
    host: str
    pid: int
    task: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """A deployment with the answers of its workers, read together: the input of all decisions.

    `version`: of the deployment's node, on which what is decided is conditional. `acknowledged` and `live`: by worker;
    `live` only has those of this deployment.
    """

    deployment: Deployment
    version: int = 0
    acknowledged: Mapping[str, Acknowledgement] = field(default_factory=dict)
    live: Mapping[str, Registration] = field(default_factory=dict)

    def status(self, worker: str) -> WorkerStatus | None:
        """The last status from the process that has the name now, in any epoch; None: no answer, or no process."""
        said, process = self.acknowledged.get(worker), self.live.get(worker)
        return said.status if said and process and said.session == process.session else None

    def answered(self, worker: str, status: WorkerStatus) -> bool:
        """Did the process that has the name now acknowledge the command of this epoch with `status`?"""
        said = self.acknowledged.get(worker)
        return self.status(worker) is status and said is not None and said.epoch == self.deployment.epoch

    def standing(self, worker: str) -> WorkerStatus | Presence:
        """How a worker stands, for people."""
        said = self.acknowledged.get(worker)
        if worker in self.live:
            return self.status(worker) or Presence.INTRODUCED
        if said is None:
            return Presence.MISSING
        return WorkerStatus.STOPPED if said.status is WorkerStatus.STOPPED else Presence.LOST

    @property
    def able(self) -> tuple[str, ...]:
        """The workers that could run the topology now, in the deployment's order."""
        found = ((worker, self.status(worker)) for worker in self.deployment.workers)
        return tuple(worker for worker, status in found if status is not None and status.is_ready)

    @property
    def runner(self) -> str:
        """The live worker that says it runs the topology; "" if none does."""
        return next((one for one in self.deployment.workers if self.status(one) is WorkerStatus.RUNNING), "")


# ---- as bytes --------------------------------------------------------------------------------------------------

_CURE = "Deploy the topology again: `airflow trident deploy`."
_FORMATS: Mapping[type, Format] = {
    Deployment: Format(noun="the deployment", version=1, cure=_CURE),
    Acknowledgement: Format(noun="the acknowledgement", version=1, cure=_CURE),
    Registration: Format(noun="the registration", version=1, cure="End the worker of that name and start it again."),
}
T = TypeVar("T", Deployment, Acknowledgement, Registration)


def encode(record: Deployment | Acknowledgement | Registration) -> bytes:
    form = _FORMATS[type(record)]
    return form.dump(asdict(record), form.noun)


def decode(kind: type[T], data: bytes, where: str) -> T:
    """:raises CorruptRecordError, NewerRecordError: it cannot be read."""
    form = _FORMATS[kind]
    return form.build(kind, form.load(data, where)[1], where)
