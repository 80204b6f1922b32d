"""A ZooKeeper in memory, with faults on demand: for notebooks, for tests, for simulation. Not durable."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum

from airflow_trident.errors import LedgerUnavailableError, OutcomeUnknownError
from airflow_trident.ledger.znodes import (
    Check,
    Create,
    Delete,
    Op,
    ReadResult,
    Refusal,
    Set,
    WriteRefusedError,
    ZNode,
    refused,
    require_sizes,
)


class Fault(StrEnum):
    """What happens to one `multi`. To its caller all three look the same: the outcome is unknown."""

    LOST_BEFORE = "lost before it was applied"
    LOST_AFTER = "applied, and the answer was lost"
    LATE = "held in the network, applied when the tree's `release()` is called"


FaultOf = Callable[[Sequence[Op]], Fault | None]
"""Decides about each `multi` before it is applied."""


class MemoryTree:
    """The server: nodes by path. Thread-safe; several clients may share it."""

    def __init__(self) -> None:
        self._nodes: dict[str, ZNode] = {"/": ZNode(b"", 0)}
        self._children: dict[str, set[str]] = {"/": set()}
        self._held: list[tuple[Op, ...]] = []
        self.changed = threading.Condition()

    def get(self, path: str) -> ZNode | None:
        return self._nodes.get(path)

    def children(self, path: str) -> frozenset[str] | None:
        names = self._children.get(path)
        return None if names is None else frozenset(names)

    def apply(self, ops: Sequence[Op]) -> None:
        """All or nothing, as the server does: each operation sees those before it.

        :raises WriteRefusedError: a condition did not hold.
        """
        with self.changed:
            undo: list[tuple[str, ZNode | None]] = []
            try:
                for op in ops:
                    self._apply_one(op, undo)
            except BaseException:
                for path, before in reversed(undo):
                    self._put(path, before)
                raise
            self.changed.notify_all()

    def hold(self, ops: Sequence[Op]) -> None:
        """Keep a request as if it were still under way in the network."""
        self._held.append(tuple(ops))

    def release(self) -> list[bool]:
        """Deliver what was held, in order; says for each whether it was applied or refused."""
        held, self._held = self._held, []
        return [self._delivered(ops) for ops in held]

    def _delivered(self, ops: Sequence[Op]) -> bool:
        try:
            self.apply(ops)
        except WriteRefusedError:
            return False
        return True

    def _apply_one(self, op: Op, undo: list[tuple[str, ZNode | None]]) -> None:
        found = self._nodes.get(op.path)
        if isinstance(op, Create):
            if found is not None:
                raise refused(op, Refusal.NODE_EXISTS)
            if _parent(op.path) not in self._nodes:
                raise refused(op, Refusal.NO_NODE)
            after: ZNode | None = ZNode(op.data, 0)
        else:
            if found is None:
                raise refused(op, Refusal.NO_NODE)
            if op.version not in (-1, found.version):
                raise refused(op, Refusal.BAD_VERSION)
            if isinstance(op, Check):
                return
            after = ZNode(op.data, found.version + 1) if isinstance(op, Set) else None
            if isinstance(op, Delete) and self._children[op.path]:
                raise refused(op, Refusal.NOT_EMPTY)
        undo.append((op.path, found))
        self._put(op.path, after)

    def _put(self, path: str, node: ZNode | None) -> None:
        siblings = self._children[_parent(path)]
        name = path.rsplit("/", 1)[-1]
        if node is None:
            del self._nodes[path], self._children[path]
            siblings.discard(name)
        else:
            self._nodes[path] = node
            self._children.setdefault(path, set())
            siblings.add(name)


class MemoryZNodes:
    """A client of a :class:`MemoryTree` (its own, unless one is given).

    :param fault_of: is asked about each `multi`; the default never faults.
    """

    def __init__(self, tree: MemoryTree | None = None, *, fault_of: FaultOf | None = None) -> None:
        self.tree = tree or MemoryTree()
        self.fault_of = fault_of
        self.round_trips = 0
        self.unavailable = False
        """While true nothing is answered: reads are unavailable, writes are lost before they arrive."""
        self._ephemeral: list[str] = []

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.round_trips += 1
        if self.unavailable:
            raise LedgerUnavailableError(f"{self.describe()} does not answer", "Try again later.")
        with self.tree.changed:
            return ReadResult(
                {path: self.tree.get(path) for path in paths}, {path: self.tree.children(path) for path in folders}
            )

    def multi(self, ops: Sequence[Op]) -> None:
        require_sizes(ops)
        self.round_trips += 1
        fault = Fault.LOST_BEFORE if self.unavailable else self.fault_of(ops) if self.fault_of else None
        if fault is Fault.LATE:
            self.tree.hold(ops)
        elif fault is not Fault.LOST_BEFORE:
            self.tree.apply(ops)  # a refusal is heard; that it gets lost is the same as the request being lost
            self._ephemeral.extend(op.path for op in ops if isinstance(op, Create) and op.ephemeral)
        if fault is not None:
            raise OutcomeUnknownError("the answer of the ledger was lost", "Run the same step again.")

    def post(self, ops: Sequence[Op]) -> None:
        if not self.unavailable:
            with suppress(WriteRefusedError):
                self.tree.apply(ops)
                self._ephemeral.extend(op.path for op in ops if isinstance(op, Create) and op.ephemeral)

    def ensure(self, path: str) -> None:
        self.round_trips += 1
        steps = path.strip("/").split("/") if path.strip("/") else []
        for depth in range(1, len(steps) + 1):
            one = "/" + "/".join(steps[:depth])
            with self.tree.changed:
                if self.tree.get(one) is None:
                    self.tree.apply([Create(one)])

    def wait_for_change(self, seen: Mapping[str, int | None], timeout_s: float) -> bool:
        def differs() -> bool:
            return any(_version(self.tree.get(path)) != version for path, version in seen.items())

        self.round_trips += 1
        with self.tree.changed:
            return self.tree.changed.wait_for(differs, timeout_s)

    def describe(self) -> str:
        return "the ledger in memory"

    def close(self) -> None:
        for path in self._ephemeral:
            with self.tree.changed:
                if self.tree.get(path) is not None:
                    self.tree.apply([Delete(path)])
        self._ephemeral.clear()


def _version(node: ZNode | None) -> int | None:
    return None if node is None else node.version


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"
