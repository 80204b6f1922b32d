"""The production client of ZooKeeper on a server that lags behind. Only kazoo is replaced, so the requests that the
client sends before it reads decide how new its answers are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from kazoo import exceptions as kz

from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.ledger.memory_znodes import MemoryTree
from airflow_trident.ledger.znodes import Check, Create, Delete, Op, Refusal, Set, WriteRefusedError
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from tests.simulation.pieces import AT_ONCE, SimTree, SimZNodes

SETTINGS = ZooKeeperSettings(hosts="simulated:2181", op_deadline_s=30)
LAGS = (0, 0, 0, 1, 3, 10)
REFUSED = {
    Refusal.BAD_VERSION: kz.BadVersionError,
    Refusal.NODE_EXISTS: kz.NodeExistsError,
    Refusal.NO_NODE: kz.NoNodeError,
    Refusal.NOT_EMPTY: kz.NotEmptyError,
}


class Follower:
    """A server that applies the writes of its leader later."""

    def __init__(self, leader: SimTree) -> None:
        self.leader = leader
        self.own = MemoryTree()
        self.applied = 0

    def catch_up(self, writes: int | None = None) -> None:
        """:param writes: apply at most this number; None: all."""
        upto = len(self.leader.log) if writes is None else self.applied + writes
        for ops in self.leader.log[self.applied : upto]:
            self.own.apply(ops)
            self.applied += 1


class FollowerZNodes(ZooKeeperZNodes):
    """One client."""

    def __init__(self, follower: Follower, leader: SimZNodes) -> None:
        super().__init__(SETTINGS)
        self._kazoo: Any = SimKazoo(follower, leader)
        self._leader = leader

    def _ready(self, deadline: float) -> Any:
        return self._kazoo

    def _replace(self, client: Any) -> None:
        """Does nothing: another client is as good as this one."""

    def wait_for_change(self, *watched: Any) -> bool:
        return self._leader.wait_for_change(*watched)

    def close(self) -> None:
        self._leader.close()


class Answer:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: float | None = None) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class SimKazoo:
    """The part of KazooClient that :class:`ZooKeeperZNodes` calls: reads from the follower, writes to the leader."""

    client_state = "CONNECTED"

    def __init__(self, follower: Follower, leader: SimZNodes) -> None:
        self.follower = follower
        self.leader = leader
        self._scheduler = leader.scheduler
        self._slowly = False

    def sync_async(self, _path: str) -> Answer:
        self._scheduler.step()
        if self._scheduler.random.random() < self._scheduler.faults.unavailable:
            return Answer(kz.ConnectionLoss())
        self._slowly = self._scheduler.random.random() < AT_ONCE
        self.follower.catch_up()
        return Answer(None)

    def get_async(self, path: str) -> Answer:
        self._lag()
        node = self.follower.own.get(path)
        return Answer(kz.NoNodeError() if node is None else (node.data, SimpleNamespace(version=node.version)))

    def exists_async(self, path: str, watch: object = None) -> Answer:
        self._lag()
        node = self.follower.own.get(path)
        return Answer(None if node is None else SimpleNamespace(version=node.version))

    def get_children_async(self, path: str) -> Answer:
        self._lag()
        names = self.follower.own.children(path)
        return Answer(kz.NoNodeError() if names is None else sorted(names))

    def transaction(self) -> SimTransaction:
        return SimTransaction(self)

    def _lag(self) -> None:
        self.follower.catch_up(self._scheduler.random.choice(LAGS))
        if self._slowly:
            self._scheduler.step()


class SimTransaction:
    def __init__(self, client: SimKazoo) -> None:
        self._client = client
        self._ops: list[Op] = []

    def check(self, path: str, version: int) -> None:
        self._ops.append(Check(path, version))

    def create(self, path: str, value: bytes, *, ephemeral: bool = False) -> None:
        self._ops.append(Create(path, value, ephemeral=ephemeral))

    def delete(self, path: str, version: int = -1) -> None:
        self._ops.append(Delete(path, version))

    def set_data(self, path: str, value: bytes, version: int = -1) -> None:
        self._ops.append(Set(path, value, version))

    def commit_async(self) -> Answer:
        try:
            self._client.leader.multi(self._ops)
        except WriteRefusedError as error:
            return Answer(self._refusals(error))
        except OutcomeUnknownError:
            return Answer(kz.ConnectionLoss())
        self._client.follower.catch_up()  # the server that answers a write has applied it
        return Answer([None] * len(self._ops))

    def _refusals(self, error: WriteRefusedError) -> Sequence[Exception]:
        first = next(index for index, op in enumerate(self._ops) if op.path == error.path)
        fillers: list[Callable[[], Exception]] = [kz.RolledBackError] * first
        fillers += [REFUSED[error.refusal]]
        fillers += [kz.RuntimeInconsistency] * (len(self._ops) - first - 1)
        return [kind() for kind in fillers]
