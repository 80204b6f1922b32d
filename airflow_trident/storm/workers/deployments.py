"""Deployments and named workers in ZooKeeper: what workers read, and the steps that they write.

Each step is one conditional `multi` and returns whether it was done. An unknown outcome counts as "no": the caller
reads again and sees. So no step is repeated blindly, and none needs a mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from airflow_trident.errors import CorruptError, NameTakenError, OutcomeUnknownError
from airflow_trident.ledger.paths import DEFAULT_ROOT, deployments_folder, registrations_folder, topology_path
from airflow_trident.ledger.workers import has_ended
from airflow_trident.ledger.znodes import Check, Create, Delete, Op, Set, WriteRefusedError, ZNode, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import TopologyRecord
from airflow_trident.storm.workers.deployment import Acknowledgement, Deployment, Registration, Roster, decode, encode
from airflow_trident.storm.workers.deployment_steps import MAX_ERROR, next_command, standstill, told

_REGISTER_TRIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """All deployments below a root now. `rosters`: by topology; `unreadable`: topology -> why its records cannot be
    read; `live`: all live named workers."""

    rosters: Mapping[str, Roster]
    unreadable: Mapping[str, str]
    live: Mapping[str, Registration]

    def of(self, worker: str) -> list[Roster]:
        """The rosters that name the worker, sorted by topology."""
        return [one for _, one in sorted(self.rosters.items()) if worker in one.deployment.workers]

    def standstill(self, topology: TopologyRecord) -> str:
        """:func:`airflow_trident.storm.workers.deployment_steps.standstill` of a topology; "" if it is not deployed.
        Workers begin nothing of one whose deployment cannot be read."""
        roster = self.rosters.get(topology.name)
        return standstill(roster, topology) if roster else self.unreadable.get(topology.name, "")


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
        found = self.znodes.read([*map(self._path, names), *workers], [self._path(name) for name in names])
        live = self._live(found.nodes[path] for path in workers)
        said = [f"{path}/{name}" for path, names in found.folders.items() for name in sorted(names or ())]
        answers = self.znodes.read(said).nodes if said else {}
        rosters: dict[str, Roster] = {}
        unreadable: dict[str, str] = {}
        for name in names:
            node = found.nodes[self._path(name)]
            try:
                if node is not None:
                    rosters[name] = self._roster(name, node, answers, live)
            except CorruptError as error:
                unreadable[name] = str(error)
        return Deployed(rosters=rosters, unreadable=unreadable, live=live)

    def roster(self, topology: str) -> Roster | None:
        """The roster of one topology; None if it is not deployed.

        :raises CorruptRecordError, NewerRecordError: it cannot be read.
        """
        found = self.read([topology])
        if topology in found.unreadable:
            raise CorruptError(found.unreadable[topology])
        return found.rosters.get(topology)

    def wait_for_change(self, rosters: Iterable[Roster], timeout_s: float) -> bool:
        """Blocks until a deployment or a registration differs from what was read, at most `timeout_s` seconds. Answers
        are not watched: the next read shows them."""
        seen: dict[str, int | None] = {}
        for roster in rosters:
            path = self._path(roster.deployment.topology)
            seen[path] = roster.version
            seen |= {self._worker(name): 0 if name in roster.live else None for name in roster.deployment.workers}
        if not seen:
            seen = {deployments_folder(self._root): 0}
        return self.znodes.wait_for_change(seen, timeout_s)

    # ---- what a worker writes ----------------------------------------------------------------------------------

    def register(self, mine: Registration) -> None:
        """Takes the name until the session of `znodes` ends.

        Deletes the node of a process of this machine that is gone; else it would stay until its session ends. A client
        that was refused goes on trying by itself until it is closed.

        :raises NameTakenError: another process has it.
        """
        path = self._worker(mine.worker)
        self.znodes.ensure(registrations_folder(self._root))
        create = Create(path, encode(mine), ephemeral=True)
        by: Registration | None = None
        for _ in range(_REGISTER_TRIES):
            if self._done([create]):
                return
            node = self.znodes.read([path]).nodes[path]
            if node is None:  # the answer was lost, or who had the name has left just now
                continue
            by = decode(Registration, node.data, path)
            if by.session == mine.session:
                return
            if not has_ended(by.host, by.pid, by.process_ids):
                break
            if self._done([Delete(path, node.version), create]):
                return
        raise NameTakenError(
            f"the name {mine.worker!r} is taken by process {by.pid} on {by.host}"
            if by is not None
            else f"it could not be found out whether somebody has the name {mine.worker!r}",
            "Choose another name, or end that worker. The name of one that was killed on another machine is free when "
            "its session ends, after half a minute: wait for it with `--wait-s 60`.",
        )

    def acknowledge(self, roster: Roster, mine: Acknowledgement) -> bool:
        """Acknowledges the deployment as it was read. False: it has changed since, or the outcome is unknown."""
        path = f"{self._path(roster.deployment.topology)}/{mine.worker}"
        node = self.znodes.read([path]).nodes[path]
        data = encode(replace(mine, error=mine.error[:MAX_ERROR], at_ms=self._clock_ms()))
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
        after = told(roster.deployment, command, by=by, now_ms=self._clock_ms())
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

    def _roster(
        self, name: str, node: ZNode, answers: Mapping[str, ZNode | None], live: Mapping[str, Registration]
    ) -> Roster:
        path = self._path(name)
        deployment = decode(Deployment, node.data, path)
        said = {one: answers.get(f"{path}/{one}") for one in deployment.workers}
        return Roster(
            deployment=deployment,
            version=node.version,
            acknowledged={
                one: decode(Acknowledgement, answer.data, f"{path}/{one}")
                for one, answer in said.items()
                if answer is not None
            },
            live={one: live[one] for one in deployment.workers if one in live},
        )

    def _live(self, nodes: Iterable[ZNode | None]) -> dict[str, Registration]:
        """Leaves out what cannot be read: a newer version may have written it."""
        found: dict[str, Registration] = {}
        for node in nodes:
            with suppress(CorruptError):
                if node is not None:
                    one = decode(Registration, node.data, registrations_folder(self._root))
                    found[one.worker] = one
        return found

    def _path(self, topology: str) -> str:
        return f"{deployments_folder(self._root)}/{topology}"

    def _worker(self, name: str) -> str:
        return f"{registrations_folder(self._root)}/{name}"
