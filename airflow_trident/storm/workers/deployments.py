"""Deployments and named workers in ZooKeeper: what workers read, and the steps that they write.

Each step is one conditional `multi` and returns whether it was done. An unknown outcome counts as "no": the caller
reads again and sees. So no step is repeated blindly, and none needs a mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_trident.contracts.wing import WingRecords
from airflow_trident.errors import CorruptError, NameTakenError, OutcomeUnknownError
from airflow_trident.ledger.layout import DEFAULT_ROOT, deployments_folder, registrations_folder, topology_path
from airflow_trident.ledger.transact import Verb, the_deployment
from airflow_trident.ledger.workers import has_ended
from airflow_trident.ledger.znodes import Check, Create, Delete, Op, Set, WriteRefusedError, ZNode, ZNodes, version_of
from airflow_trident.protocol import codec
from airflow_trident.protocol.diagnosis import Stalled
from airflow_trident.protocol.records import TopologyRecord
from airflow_trident.storm.workers import deploying
from airflow_trident.storm.workers.deployment import (
    MAX_ERROR,
    Acknowledgement,
    Deployment,
    Registration,
    Roster,
    commanded,
    decode,
    encode,
    next_command,
    standstill,
)

_REGISTER_TRIES = 3

deploy = Verb(deploying.deploy, the_deployment).call
undeploy = Verb(deploying.undeploy, the_deployment).call
"""Both get the ledger first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed(WingRecords):
    """All deployments below a root now. `rosters`: by topology; `unreadable`: topology -> why its records cannot be
    read; `live`: all live named workers; `versions`, `folders`: of what was read, by path."""

    rosters: Mapping[str, Roster]
    unreadable: Mapping[str, str]
    live: Mapping[str, Registration]
    versions: Mapping[str, int | None] = field(default_factory=dict)
    folders: Mapping[str, frozenset[str] | None] = field(default_factory=dict)

    def of(self, worker: str) -> list[Roster]:
        """The rosters that name the worker, sorted by topology."""
        return [roster for _, roster in sorted(self.rosters.items()) if worker in roster.deployment.workers]

    def rows(self, topology: str) -> list[dict[str, Any]]:
        """:func:`rows_of` the topology; empty if it is not deployed, or its deployment cannot be read."""
        roster = self.rosters.get(topology)
        return rows_of(roster) if roster else []

    def standstill(self, topology: TopologyRecord) -> Stalled | None:
        """:func:`airflow_trident.storm.workers.deployment.standstill` of a topology; None if it is not deployed.
        Workers begin nothing of one whose deployment cannot be read."""
        roster = self.rosters.get(topology.name)
        if roster is not None:
            return standstill(roster, topology)
        error = self.unreadable.get(topology.name)
        return None if error is None else Stalled(error)


class Deployments:
    """Over any :class:`~airflow_trident.ledger.znodes.ZNodes`. Not for sharing between threads.

    :param root: the folder of all ledgers.
    """

    def __init__(
        self,
        znodes: ZNodes,
        root: str = DEFAULT_ROOT,
        *,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.znodes = znodes
        self._root = root
        self._clock_ms = clock_ms

    # ---- reading -----------------------------------------------------------------------------------------------

    def ensure_folder(self) -> None:
        """Creates the folder of deployments if it is missing; needed before the first `Ledger.deploy`."""
        self.znodes.ensure(deployments_folder(self._root))

    def read(self, topologies: Collection[str] | None = None) -> Deployed:
        """What is deployed, and which workers are there, in three round trips.

        :param topologies: only these; None: all.
        :raises LedgerUnavailableError: ZooKeeper does not answer.
        """
        folders = [deployments_folder(self._root), registrations_folder(self._root)]
        listed = self.znodes.read([], folders).folders
        names = sorted(listed[folders[0]] or ())
        if topologies is not None:
            names = [name for name in names if name in topologies]
        workers = [self._worker(name) for name in sorted(listed[folders[1]] or ())]
        # Deployments are read before answers, so the answers are of the same epoch or a later one.
        nodes = self.znodes.read([*map(self._path, names), *workers]).nodes
        live = self._live(nodes[path] for path in workers)
        deployments: dict[str, tuple[Deployment, int]] = {}
        unreadable: dict[str, str] = {}
        for name in names:
            with self._noted(name, unreadable):
                node = nodes[self._path(name)]
                if node is not None:
                    deployments[name] = decode(Deployment, node.data, self._path(name)), node.version
        paths = [self._answer(name, worker) for name, (made, _) in deployments.items() for worker in made.workers]
        answers = self.znodes.read(paths).nodes if paths else {}
        rosters: dict[str, Roster] = {}
        for name, (deployment, version) in deployments.items():
            with self._noted(name, unreadable):
                rosters[name] = self._roster(deployment, version, answers, live)
        return Deployed(
            rosters=rosters,
            unreadable=unreadable,
            live=live,
            versions={path: version_of(node) for path, node in {**nodes, **answers}.items()},
            folders=listed,
        )

    def roster(self, topology: str) -> Roster | None:
        """The roster of one topology; None if it is not deployed.

        :raises CorruptRecordError, NewerRecordError: it cannot be read.
        """
        deployed = self.read([topology])
        if topology in deployed.unreadable:
            raise CorruptError(deployed.unreadable[topology])
        return deployed.rosters.get(topology)

    def wait_for_change(self, deployed: Deployed, timeout_s: float, *, worker: str) -> bool:
        """Blocks until something differs from what was read, at most `timeout_s` seconds. Deployments are watched, and
        the answers and registrations of those that name the worker. Waiting again for the same costs no request."""
        about = [name for roster in deployed.of(worker) for name in self._about(roster)]
        paths = [*map(self._path, [*deployed.rosters, *deployed.unreadable]), *about, self._worker(worker)]
        seen = {path: deployed.versions.get(path) for path in dict.fromkeys(paths)}
        folder = deployments_folder(self._root)
        return self.znodes.wait_for_change(seen, timeout_s, {folder: deployed.folders.get(folder)})

    def _about(self, roster: Roster) -> list[str]:
        """Where the answers and the registrations of a deployment's workers are."""
        workers, topology = roster.deployment.workers, roster.deployment.topology
        return [path for name in workers for path in (self._answer(topology, name), self._worker(name))]

    # ---- what a worker writes ----------------------------------------------------------------------------------

    def register(self, registration: Registration) -> None:
        """Takes the name until the session of `znodes` ends.

        Deletes the node of a process of this machine that is gone; else it would stay until its session ends. A client
        that was refused goes on trying by itself until it is closed.

        :raises NameTakenError: another process has it.
        """
        path = self._worker(registration.worker)
        self.znodes.ensure(registrations_folder(self._root))
        create = Create(path, encode(registration), ephemeral=True)
        by: Registration | None = None
        for _ in range(_REGISTER_TRIES):
            if self._done([create]):
                return
            node = self.znodes.read([path]).nodes[path]
            if node is None:  # the answer was lost, or who had the name has left just now
                continue
            by = decode(Registration, node.data, path)
            if by.session == registration.session:
                return
            if not has_ended(by.host, by.pid, by.process_ids):
                break
            if self._done([Delete(path, node.version), create]):
                return
        raise NameTakenError(
            f"the name {registration.worker!r} is taken by process {by.pid} on {by.host}"
            if by is not None
            else f"it could not be found out whether somebody has the name {registration.worker!r}",
            "Choose another name, or end that worker. The name of one that was killed on another machine is free when "
            "its session ends, after half a minute: wait for it with `--wait-s 60`.",
        )

    def acknowledge(self, roster: Roster, acknowledgement: Acknowledgement) -> bool:
        """Acknowledges the deployment as it was read. False: it has changed since, or the outcome is unknown."""
        path = self._answer(roster.deployment.topology, acknowledgement.worker)
        node = self.znodes.read([path]).nodes[path]
        data = encode(replace(acknowledgement, error=acknowledgement.error[:MAX_ERROR], at_ms=self._clock_ms()))
        write = Create(path, data) if node is None else Set(path, data, node.version)
        return self._done([Check(self._path(roster.deployment.topology), roster.version), write])

    def advance(self, roster: Roster, *, by: str) -> bool:
        """Gives the next command if the workers' answers have made it due. False: nothing was written, also if the
        record of the topology cannot be read: whoever works on it says so, and a worker goes on with its others."""
        path = topology_path(self._root, roster.deployment.topology)
        node = self.znodes.read([path]).nodes[path]
        if node is None:
            return False
        try:
            topology = codec.decode_topology(node.data, path)
        except CorruptError:
            return False
        command = next_command(roster, topology.command)
        if command is None or topology.incarnation != roster.deployment.incarnation:
            return False
        after = commanded(roster.deployment, command, by=by, now_ms=self._clock_ms())
        # The lifecycle that was read is checked too: a person's pause must not be lost.
        return self._done([Check(path, node.version), self._replaced(roster, after)])

    def place(self, roster: Roster, worker: str) -> bool:
        """Records which worker runs the topology, if that worker is still there."""
        after = replace(roster.deployment, placed=worker)
        return self._done([Check(self._worker(worker), 0), self._replaced(roster, after)])

    # ---- parts -------------------------------------------------------------------------------------------------

    def _done(self, ops: Sequence[Op]) -> bool:
        with suppress(WriteRefusedError, OutcomeUnknownError):
            self.znodes.multi(ops)
            return True
        return False

    def _replaced(self, roster: Roster, after: Deployment) -> Set:
        return Set(self._path(after.topology), encode(after), roster.version)

    @staticmethod
    @contextmanager
    def _noted(topology: str, unreadable: dict[str, str]) -> Iterator[None]:
        """Notes why the topology's records cannot be read."""
        try:
            yield
        except CorruptError as error:
            unreadable[topology] = str(error)

    def _roster(
        self,
        deployment: Deployment,
        version: int,
        answers: Mapping[str, ZNode | None],
        live: Mapping[str, Registration],
    ) -> Roster:
        paths = {worker: self._answer(deployment.topology, worker) for worker in deployment.workers}
        nodes = {worker: answers[path] for worker, path in paths.items()}
        return Roster(
            deployment=deployment,
            version=version,
            acknowledged={
                worker: decode(Acknowledgement, node.data, paths[worker])
                for worker, node in nodes.items()
                if node is not None
            },
            live={worker: live[worker] for worker in deployment.workers if worker in live},
        )

    def _live(self, nodes: Iterable[ZNode | None]) -> dict[str, Registration]:
        """Leaves out what cannot be read: a newer version may have written it."""
        registrations: dict[str, Registration] = {}
        for node in nodes:
            with suppress(CorruptError):
                if node is not None:
                    registration = decode(Registration, node.data, registrations_folder(self._root))
                    registrations[registration.worker] = registration
        return registrations

    def _path(self, topology: str) -> str:
        return f"{deployments_folder(self._root)}/{topology}"

    def _answer(self, topology: str, worker: str) -> str:
        return f"{self._path(topology)}/{worker}"

    def _worker(self, name: str) -> str:
        return f"{registrations_folder(self._root)}/{name}"


def rows_of(roster: Roster) -> list[dict[str, Any]]:
    """A row for each worker of the topology, in the deployment's order.

    `status`: of the worker; `epoch`: of the command that it acknowledged last, None if none; `told`: the command to all
    workers, with its epoch; `host`, `pid`, `task`, `since_ms`: the process with this name, None if there is none;
    `error`: why the worker cannot continue.
    """
    deployment = roster.deployment
    rows: list[dict[str, Any]] = []
    for name in deployment.workers:
        acknowledgement, process = roster.acknowledged.get(name), roster.live.get(name)
        rows.append(
            {
                "topology": deployment.topology,
                "worker": name,
                "status": str(roster.standing(name)),
                "epoch": acknowledgement.epoch if acknowledgement is not None else None,
                "told": f"{deployment.command} {deployment.epoch}",
                "host": process.host if process is not None else None,
                "pid": process.pid if process is not None else None,
                "task": process.task if process is not None else None,
                "since_ms": process.since_ms if process is not None else None,
                "error": acknowledgement.error if acknowledgement is not None else "",
            }
        )
    return rows
