"""The records of named workers: where a topology is deployed, the command to its workers, and their answers. Pure.

After the coordinator and the workers of qtopology's first protocol. Its messages became records: a command with an
epoch, which every worker acknowledges. An ephemeral node shows which workers are registered and alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TypeVar

from airflow_trident.protocol.durable_format import Format


class DeploymentCommand(StrEnum):
    """The command to the workers of a topology."""

    INTRODUCE = "introduce"
    """Register."""
    INIT = "init"
    """All have registered: load the topology, check its states, try its components."""
    RUN = "run"
    """All have confirmed: begin transactions."""
    PAUSE = "pause"
    """Finish what was begun, and begin nothing."""
    SHUTDOWN = "shutdown"
    """Finish what was begun, and end."""


class WorkerStatus(StrEnum):
    """The last status that a worker acknowledged for a topology."""

    REGISTERED = "registered"
    INITIALIZED = "initialized"
    """qtopology's `init_confirmed`."""
    INIT_FAILED = "init_failed"
    RUNNING = "running"
    """It begins, processes and commits the topology's transactions."""
    STANDBY = "standby"
    """It is ready, and another worker runs the topology."""
    PAUSED = "paused"
    """It has no work of the topology in hand."""
    STOPPED = "stopped"

    @property
    def is_ready(self) -> bool:
        """Has the worker initialised the topology?"""
        return self in (WorkerStatus.INITIALIZED, WorkerStatus.RUNNING, WorkerStatus.STANDBY, WorkerStatus.PAUSED)


class Presence(StrEnum):
    """The standing of a worker that has not answered yet or is gone."""

    INTRODUCED = "introduced"
    """It has registered but not answered yet."""
    MISSING = "missing"
    """No process has registered under its name yet."""
    LOST = "lost"
    """It answered, and is gone now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`deployments/<topology>`: the workers of a topology and their command.

    `incarnation`: the ledger's. `epoch`: rises by one with every command. `weight` and `affinity`: see
    :mod:`airflow_trident.storm.workers.placement`. `placed`: the worker that runs the topology, "" before one is
    chosen.
    `changed_ms`, `changed_by`: when and by whom the last command was given, for people.
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


    `session`: that of its registration; answers from an earlier process of that name do not count. `error`: why it
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


    `session`: unique to this process. `task`: what runs, as in the owner of an attempt. `process_ids`: whose ids `pid`
    is one of, "" if it does not say.
    """

    worker: str
    session: str
    host: str
    pid: int
    task: str = ""
    since_ms: int = 0
    process_ids: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """A deployment with the answers of its workers, read together: the input of all decisions.


    `version`: that of the deployment's node; a decision is written only if it is still the same. `acknowledged` and
    `live`: by worker; `live` has only workers of this deployment.
    """

    deployment: Deployment
    version: int = 0
    acknowledged: Mapping[str, Acknowledgement] = field(default_factory=dict)
    live: Mapping[str, Registration] = field(default_factory=dict)

    def status(self, worker: str) -> WorkerStatus | None:
        """The last status from the process that has the name now, in any epoch; None: no answer, or no such process."""
        said, process = self.acknowledged.get(worker), self.live.get(worker)
        return said.status if said and process and said.session == process.session else None

    def answered(self, worker: str, status: WorkerStatus) -> bool:
        """Did the process that has the name now acknowledge the command of this epoch with `status`?"""
        said = self.acknowledged.get(worker)
        return self.status(worker) is status and said is not None and said.epoch == self.deployment.epoch

    def standing(self, worker: str) -> WorkerStatus | Presence:
        """The standing of a worker, for people."""
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
        """The live worker whose status is RUNNING; "" if there is none."""
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
    return form.build(kind, form.load(data, where), where)
