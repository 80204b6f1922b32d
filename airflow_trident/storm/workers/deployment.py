"""The records of named workers: where a topology is deployed, the command to its workers, and their answers. Pure.

After the coordinator and the workers of qtopology's first protocol. Its messages became records: a command with an
epoch, which every worker acknowledges. An ephemeral node shows which workers are registered and alive.

How a deployment moves, and what each worker does next: one table, and decisions without effects.

There is no leader: all workers read the same records and decide the same. Each writes its decision on condition that
the deployment has not changed since, so only one of several workers succeeds.

Which worker runs which topology. Pure: all who read the same records get the same answer.

After qtopology's load balancer: a topology goes to the least loaded worker, and to one of its affinity before others.
Unlike there, nothing moves to even out loads: a move costs a start, and the place matters to nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import TypeVar

from airflow_trident.errors import ConfigurationError, TransitionError
from airflow_trident.protocol.diagnosis import Stalled
from airflow_trident.protocol.durable_format import Format
from airflow_trident.protocol.records import Command, TopologyRecord


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
    :mod:`airflow_trident.storm.workers.deployment`. `placed`: the worker that runs the topology, "" before one is
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
        acknowledgement, process = self.acknowledged.get(worker), self.live.get(worker)
        return (
            acknowledgement.status
            if acknowledgement and process and acknowledgement.session == process.session
            else None
        )

    def answered(self, worker: str, status: WorkerStatus) -> bool:
        """Did the process that has the name now acknowledge the command of this epoch with `status`?"""
        acknowledgement = self.acknowledged.get(worker)
        return (
            self.status(worker) is status
            and acknowledgement is not None
            and acknowledgement.epoch == self.deployment.epoch
        )

    def standing(self, worker: str) -> WorkerStatus | Presence:
        """The standing of a worker, for people."""
        acknowledgement = self.acknowledged.get(worker)
        if worker in self.live:
            return self.status(worker) or Presence.INTRODUCED
        if acknowledgement is None:
            return Presence.MISSING
        return WorkerStatus.STOPPED if acknowledgement.status is WorkerStatus.STOPPED else Presence.LOST

    @property
    def able(self) -> tuple[str, ...]:
        """The workers that could run the topology now, in the deployment's order."""
        statuses = ((worker, self.status(worker)) for worker in self.deployment.workers)
        return tuple(worker for worker, status in statuses if status is not None and status.is_ready)

    @property
    def runner(self) -> str:
        """The live worker whose status is RUNNING; "" if there is none."""
        return next((worker for worker in self.deployment.workers if self.status(worker) is WorkerStatus.RUNNING), "")


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


def decode(kind: type[T], data: bytes, path: str) -> T:
    """:raises CorruptRecordError, NewerRecordError: it cannot be read."""
    form = _FORMATS[kind]
    return form.build(kind, form.load(data, path), path)


_INTRODUCE, _INIT, _RUN, _PAUSE, _SHUTDOWN = (
    DeploymentCommand.INTRODUCE,
    DeploymentCommand.INIT,
    DeploymentCommand.RUN,
    DeploymentCommand.PAUSE,
    DeploymentCommand.SHUTDOWN,
)

COMMANDS: dict[DeploymentCommand, frozenset[DeploymentCommand]] = {
    _INTRODUCE: frozenset({_INTRODUCE, _INIT, _SHUTDOWN}),
    # RUN or PAUSE: what the topology's lifecycle says when the last worker confirms
    _INIT: frozenset({_INTRODUCE, _RUN, _PAUSE, _SHUTDOWN}),
    _RUN: frozenset({_INTRODUCE, _PAUSE, _SHUTDOWN}),
    _PAUSE: frozenset({_INTRODUCE, _RUN, _SHUTDOWN}),
    # its workers have ended: the same ones or others register again
    _SHUTDOWN: frozenset({_INTRODUCE}),
}
"""Which command may follow which. INTRODUCE may follow any: the topology is deployed again."""

_OF_LIFECYCLE = {Command.RUN: _RUN, Command.PAUSE: _PAUSE, Command.SHUTDOWN: _SHUTDOWN}
MAX_ERROR = 1000
"""Characters that are kept of an error."""


class Duty(StrEnum):
    """The one thing that a worker does next for a topology."""

    REGISTER = "acknowledge that it is here"
    INITIALISE = "load and try the topology"
    CONFIRM = "acknowledge that the topology is initialised"
    DRAIN = "run the topology"
    STAND_BY = "acknowledge that another one runs it"
    FINISH = "begin nothing more, and finish what was begun"
    REST = "acknowledge that nothing of it is in its hands"
    LEAVE = "acknowledge that it has stopped, and serve the topology no longer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doing:
    """What a worker's process does for a topology now. `initialised`: since it was last told to register."""

    initialised: bool = False
    draining: bool = False


def commanded(deployment: Deployment, command: DeploymentCommand, *, by: str = "", now_ms: int = 0) -> Deployment:
    """The only way from one command to the next; raises the epoch.

    :raises TransitionError: the table has no such step.
    """
    if command not in COMMANDS[deployment.command]:
        raise TransitionError(
            f"the workers of topology {deployment.topology!r} were told to {deployment.command}, and {command} cannot "
            "follow that",
            f"See how far each is with `airflow trident workers {deployment.topology}`.",
        )
    at_ms = now_ms or deployment.changed_ms
    return replace(deployment, command=command, epoch=deployment.epoch + 1, changed_by=by, changed_ms=at_ms)


def obeying(deployment: Deployment, command: Command, *, by: str = "", now_ms: int = 0) -> Deployment:
    """The deployment after a person's lifecycle command; the same one if its workers need not be told.

    :raises TransitionError: `run` before all workers have confirmed: the absent ones would not get it.
    """
    wanted, before = _OF_LIFECYCLE[command], deployment.command
    if wanted is before:
        return deployment
    if wanted is _SHUTDOWN:
        return commanded(deployment, _SHUTDOWN, by=by, now_ms=now_ms)
    if before in (_INTRODUCE, _INIT):
        if wanted is _RUN:
            raise TransitionError(
                f"topology {deployment.topology!r} runs when all of its workers are initialised "
                f"({', '.join(deployment.workers)}), and they are told to {before} so far",
                f"Start those that `airflow trident workers {deployment.topology}` calls missing, or deploy it on "
                "others.",
            )
        return deployment  # what the topology's own record says counts when the last one has confirmed
    if before is _SHUTDOWN:
        if wanted is _PAUSE:
            return deployment
        return replace(commanded(deployment, _INTRODUCE, by=by, now_ms=now_ms), placed="")
    return commanded(deployment, wanted, by=by, now_ms=now_ms)


def next_command(roster: Roster, lifecycle: Command) -> DeploymentCommand | None:
    """The next command, once every worker has acknowledged the last one; None: somebody is still missing.

    :param lifecycle: the topology's own command.
    """
    if not missing(roster):
        if roster.deployment.command is _INTRODUCE:
            return _INIT
        if roster.deployment.command is _INIT:
            return _OF_LIFECYCLE[lifecycle]
    return None


def missing(roster: Roster) -> tuple[str, ...]:
    """Workers that did not acknowledge the command, in order. A worker lost later is missing too; the others go on."""
    wanted = {
        _INTRODUCE: (WorkerStatus.REGISTERED,),
        _INIT: (WorkerStatus.INITIALIZED,),
        _RUN: (WorkerStatus.RUNNING, WorkerStatus.STANDBY),
        _PAUSE: (WorkerStatus.PAUSED,),
    }.get(roster.deployment.command)
    if wanted is None:  # who has stopped is not there any more
        return tuple(worker for worker in roster.deployment.workers if not _has_stopped(roster, worker))
    return tuple(
        worker for worker in roster.deployment.workers if not any(roster.answered(worker, status) for status in wanted)
    )


def _has_stopped(roster: Roster, worker: str) -> bool:
    acknowledgement = roster.acknowledged.get(worker)
    answered = (
        acknowledgement is not None
        and acknowledgement.status is WorkerStatus.STOPPED
        and acknowledgement.epoch == roster.deployment.epoch
    )
    return answered or worker not in roster.live


def standstill(roster: Roster, topology: TopologyRecord) -> Stalled | None:
    """Why no worker runs a topology that is to run, and the cure; None if a worker does, or will
    without a person: those that are there may still be loading it, and another one replaces one that was lost."""
    deployment, name = roster.deployment, topology.name
    if topology.command is not Command.RUN:
        return None
    if deployment.incarnation != topology.incarnation:
        return Stalled(
            "it is deployed on workers for an earlier life of its ledger, so they do nothing",
            f"Deploy it again: `airflow trident deploy {name} --workers {','.join(deployment.workers)}`",
        )
    cannot = [worker for worker in deployment.workers if roster.status(worker) is WorkerStatus.INIT_FAILED]
    absent = [worker for worker in deployment.workers if worker not in roster.live]
    needs_all = deployment.command in (_INTRODUCE, _INIT)
    out = len(cannot) + len(absent)
    if out < (1 if needs_all else len(deployment.workers)):
        return None
    whys = [f"{', '.join(absent)} {'are' if absent[1:] else 'is'} not there"] if absent else []
    whys += [f"{', '.join(cannot)} cannot load it"] if cannot else []
    whys[-1] += ", and it runs when all of its workers are ready" if needs_all else ""
    cure = f"Start `airflow trident worker {absent[0]}`" if absent else f"See `airflow trident workers {name}`"
    return Stalled(
        f"no worker runs it: {' and '.join(whys)}",
        f"{cure}; or, if it runs otherwise, `airflow trident undeploy {name}`",
    )


def duty(roster: Roster, worker: str, doing: Doing) -> Duty:
    """What the registered `worker` has to do next."""
    command = roster.deployment.command
    if command is _INTRODUCE:
        return Duty.FINISH if doing.draining else Duty.REGISTER
    if command is _SHUTDOWN:
        return Duty.FINISH if doing.draining else Duty.LEAVE
    if not doing.initialised:
        return Duty.INITIALISE
    if command is _RUN and roster.deployment.placed == worker and roster.runner in ("", worker):
        return Duty.DRAIN
    if doing.draining:
        return Duty.FINISH
    return {_INIT: Duty.CONFIRM, _PAUSE: Duty.REST}.get(command, Duty.STAND_BY)


def require_workers(topology: str, workers: Iterable[str], affinity: Iterable[str] = (), weight: int = 1) -> None:
    """:raises ConfigurationError: no workers, one named twice, an affinity to a stranger, or a weight below 1."""
    names = tuple(workers)
    if not names:
        raise ConfigurationError(
            f"topology {topology!r} is deployed on no worker", "Name them, as in --workers w1,w2; one is enough."
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"worker {twice[0]!r} of topology {topology!r} is named twice", "Name each once.")
    if strangers := [name for name in affinity if name not in names]:
        raise ConfigurationError(
            f"topology {topology!r} has an affinity to {', '.join(map(repr, strangers))}, which is none of its workers",
            f"Its workers are {', '.join(names)}: name some of them, or deploy it on the others, too.",
        )
    if weight < 1:
        raise ConfigurationError(f"the weight of topology {topology!r} is {weight}", "Give a whole number from 1 on.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementHints:
    """What a topology's author says about its workers; whoever deploys it may override it."""

    workers: tuple[str, ...] = ()
    weight: int = 1
    affinity: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeable:
    """A topology that needs a worker.

    `able`: the workers that can run it now; `affinity`: those that it prefers; `placed`: where it is now, "" nowhere;
    `weight`: above 0, in the same unit for all.
    """

    topology: str
    able: frozenset[str]
    affinity: frozenset[str] = frozenset()
    placed: str = ""
    weight: int = 1

    @property
    def choice(self) -> frozenset[str]:
        """The workers that it may be placed on."""
        return self.able & self.affinity or self.able

    @property
    def stays(self) -> bool:
        return self.placed in self.choice


def placement(topologies: Iterable[Placeable]) -> dict[str, str]:
    """Topology -> worker, for each topology that some worker can run.

    A topology stays where it is if it can. The others go to the worker with the least load, the heaviest first; names
    break ties.
    """
    every = sorted(topologies, key=lambda topology: (-topology.weight, topology.topology))
    placements = {topology.topology: topology.placed for topology in every if topology.stays}
    loads = Counter[str]()
    for topology in every:
        if topology.stays:
            loads[topology.placed] += topology.weight
    for topology in every:
        if not topology.stays and topology.choice:
            worker = min(topology.choice, key=lambda name: (loads[name], name))
            placements[topology.topology] = worker
            loads[worker] += topology.weight
    return placements


def placed(rosters: Iterable[Roster]) -> dict[str, str]:
    """:func:`placement` of all deployments that are to run."""
    running = [roster for roster in rosters if roster.deployment.command is DeploymentCommand.RUN]
    return placement(
        Placeable(
            topology=roster.deployment.topology,
            able=frozenset(roster.able),
            affinity=frozenset(roster.deployment.affinity),
            placed=roster.deployment.placed,
            weight=roster.deployment.weight,
        )
        for roster in running
    )
