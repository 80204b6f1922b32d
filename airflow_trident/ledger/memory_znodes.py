"""A ZooKeeper in memory, for notebooks and tests. Not durable."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

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
    version_of,
)


class MemoryTree:
    """The server: nodes by path. Thread-safe; several clients may share it."""

    def __init__(self) -> None:
        self._nodes: dict[str, ZNode] = {"/": ZNode(b"", 0)}
        self._children: dict[str, set[str]] = {"/": set()}
        self.changed = threading.Condition()

    def get(self, path: str) -> ZNode | None:
        return self._nodes.get(path)

    def children(self, path: str) -> frozenset[str] | None:
        names = self._children.get(path)
        return None if names is None else frozenset(names)

    def apply(self, ops: Sequence[Op]) -> None:
        """All or nothing, like the server: each operation sees the effects of those before it.

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

    def _apply_one(self, op: Op, undo: list[tuple[str, ZNode | None]]) -> None:
        before = self._nodes.get(op.path)
        if isinstance(op, Create):
            if before is not None:
                raise refused(op, Refusal.NODE_EXISTS)
            if _parent(op.path) not in self._nodes:
                raise refused(op, Refusal.NO_NODE)
            after: ZNode | None = ZNode(op.data, 0)
        else:
            if before is None:
                raise refused(op, Refusal.NO_NODE)
            if op.version not in (-1, before.version):
                raise refused(op, Refusal.BAD_VERSION)
            if isinstance(op, Check):
                return
            after = ZNode(op.data, before.version + 1) if isinstance(op, Set) else None
            if isinstance(op, Delete) and self._children[op.path]:
                raise refused(op, Refusal.NOT_EMPTY)
        undo.append((op.path, before))
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
    """A client of a :class:`MemoryTree` (its own, unless one is given)."""

    def __init__(self, tree: MemoryTree | None = None) -> None:
        self.tree = tree or MemoryTree()
        self.round_trips = 0
        self._ephemeral: list[str] = []
        self._armed: object = None

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.round_trips += 1
        with self.tree.changed:
            return ReadResult(
                {path: self.tree.get(path) for path in paths}, {path: self.tree.children(path) for path in folders}
            )

    def multi(self, ops: Sequence[Op]) -> None:
        require_sizes(ops)
        self.round_trips += 1
        self.tree.apply(ops)
        self._ephemeral.extend(op.path for op in ops if isinstance(op, Create) and op.ephemeral)

    def post(self, ops: Sequence[Op]) -> None:
        with suppress(WriteRefusedError):
            self.tree.apply(ops)
            self._ephemeral.extend(op.path for op in ops if isinstance(op, Create) and op.ephemeral)

    def ensure(self, path: str) -> None:
        self.round_trips += 1
        steps = path.strip("/").split("/") if path.strip("/") else []
        for depth in range(1, len(steps) + 1):
            prefix = "/" + "/".join(steps[:depth])
            with self.tree.changed:
                if self.tree.get(prefix) is None:
                    self.tree.apply([Create(prefix)])

    def wait_for_change(
        self,
        seen: Mapping[str, int | None],
        timeout_s: float,
        folders: Mapping[str, frozenset[str] | None] | None = None,
    ) -> bool:
        listed = dict(folders or {})

        def differs() -> bool:
            return any(version_of(self.tree.get(path)) != version for path, version in seen.items()) or any(
                self.tree.children(path) != names for path, names in listed.items()
            )

        watched = dict(seen), listed
        if self._armed != watched:
            self.round_trips += 1
        with self.tree.changed:
            changed = self.tree.changed.wait_for(differs, timeout_s)
        self._armed = None if changed else watched
        return changed

    def describe(self) -> str:
        return "the ledger in memory"

    def close(self) -> None:
        for path in self._ephemeral:
            with self.tree.changed:
                if self.tree.get(path) is not None:
                    self.tree.apply([Delete(path)])
        self._ephemeral.clear()


def _parent(path: str) -> str:
    return path.rsplit("/", 1)[0] or "/"
