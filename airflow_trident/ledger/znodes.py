"""What the ledger needs from ZooKeeper, and no more: a tree of versioned nodes, synced reads, conditional writes.

Two implementations: :class:`~airflow_trident.ledger.zookeeper.client.ZooKeeperZNodes` (a real ensemble) and
:class:`~airflow_trident.ledger.memory_znodes.MemoryZNodes` (in memory).

Nodes that exist as long as a client does: they go with its session, and are created again in its next one.

If the connection is lost for longer than the session timeout, kazoo begins another session. Without this module the
process would then be missing from every list, and would be taken for one that was killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from airflow_trident.errors import ConfigurationError, TransitionError

_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]+)+\Z")
_LONGEST_PATH = 1_000
"""Far above what anybody writes. ZooKeeper drops the connection over a request of many long paths."""


def require_path(subject: str, path: str, example: str) -> None:
    """By ZooKeeper's own rule: to some of what it forbids it does not answer at all.

    :param subject: what has this path, for the error.
    :raises ConfigurationError: no node can have the path.
    """
    if len(path) > _LONGEST_PATH or not _PATH.match(path):
        raise ConfigurationError(
            f"{subject} {path!a:.200} is no path of ZooKeeper",
            f"Write it like {example}: no part is empty, '.' or '..', and no character is a control character.",
        )


RECORD_LIMIT_BYTES = 512 * 1024
"""A larger record is refused before it is sent: ZooKeeper drops the connection of a client that sends more than 1
MB."""
REQUEST_LIMIT_BYTES = 900 * 1024
"""All records of one `multi` together, if larger, are refused, too."""


@dataclass(frozen=True, slots=True)
class ZNode:
    """A node's bytes and how often they were set."""

    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """Go on only if the node is at this version."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node at version 0; refused if it exists or its parent does not.

    `ephemeral`: the node vanishes when the session that created it ends.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Replace the node's bytes if it is at this version. There is deliberately no unconditional form."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the node, at this version if one is given (-1: any)."""

    path: str
    version: int = -1


Op: TypeAlias = Check | Create | Set | Delete


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The answer of :meth:`ZNodes.read`; None stands for a node that does not exist."""

    nodes: Mapping[str, ZNode | None] = field(default_factory=dict)
    folders: Mapping[str, frozenset[str] | None] = field(default_factory=dict)


def version_of(node: ZNode | None) -> int | None:
    return None if node is None else node.version


class Refusal(StrEnum):
    """Why a write was refused."""

    BAD_VERSION = "its version is another one"
    NODE_EXISTS = "it exists already"
    NO_NODE = "it or its parent does not exist"
    NOT_EMPTY = "it has children"


class WriteRefusedError(TransitionError):
    """A condition of a `multi` did not hold. Certainly nothing of the `multi` was applied."""

    def __init__(self, message: str, cure: str = "", *, refusal: Refusal, path: str) -> None:
        super().__init__(message, cure)
        self.refusal = refusal
        self.path = path


def refused(op: Op, refusal: Refusal) -> WriteRefusedError:
    """The error for the first operation of a `multi` whose condition did not hold."""
    wanted = f" version {op.version}" if isinstance(op, Check | Set | Delete) else ""
    return WriteRefusedError(
        f"ZooKeeper refused to {type(op).__name__.lower()} {op.path}{wanted}: {refusal}",
        "Somebody else wrote first; run the same step again.",
        refusal=refusal,
        path=op.path,
    )


def require_sizes(ops: Sequence[Op]) -> None:
    """:raises ConfigurationError: a record, or all records together, are too large to be sent."""
    sizes = {op.path: len(op.data) for op in ops if isinstance(op, Create | Set)}
    path = max(sizes, key=lambda znode_path: sizes[znode_path], default="")
    too_large = sizes.get(path, 0) > RECORD_LIMIT_BYTES
    if too_large or sum(sizes.values()) > REQUEST_LIMIT_BYTES:
        limit = RECORD_LIMIT_BYTES if too_large else REQUEST_LIMIT_BYTES
        raise ConfigurationError(
            f"the ledger record {path} has {sizes[path]} bytes (all of its step: {sum(sizes.values())}); "
            f"at most {limit} are sent",
            "Make the batches smaller: fewer files or partitions in a transaction.",
        )


class ZNodes(Protocol):
    """A client of one tree. Do not share it between threads; a forked child may go on using it.

    Paths begin with ``/``. Every call has its own deadline.
    """

    round_trips: int
    """How often a caller waited for the server."""

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        """Reads nodes and the names of children, in the given order, in one pipelined round trip.

        Whichever server answers, the data are at least as new as the start of the call. Nodes later in the order may be
        newer than those before.

        :raises LedgerUnavailableError: no answer before the deadline.
        :raises LedgerAuthError: the access list forbids it.
        """

    def multi(self, ops: Sequence[Op]) -> None:
        """Applies all operations or none.

        :raises WriteRefusedError: a condition did not hold; nothing was applied.
        :raises OutcomeUnknownError: the answer was lost; the operations may have been applied, or may yet be.
        :raises LedgerAuthError: the credentials or the access list forbid it.
        :raises ConfigurationError: too large to be sent.
        """

    def post(self, ops: Sequence[Op]) -> None:
        """Sends a `multi` with the next request and does not wait for its result. Only for data that people read.

        :raises LedgerUnavailableError: there is no connection to send it by.
        """

    def ensure(self, path: str) -> None:
        """Creates the node and its parents, empty, where they do not exist. Safe to repeat."""

    def wait_for_change(
        self,
        seen: Mapping[str, int | None],
        timeout_s: float,
        folders: Mapping[str, frozenset[str] | None] | None = None,
    ) -> bool:
        """Blocks until a node is not at the version seen (None: does not exist), or a folder has other children.

        Blocks at most `timeout_s` seconds.

        Reads after arming the watch, so a change since `seen` returns at once. Waiting again for the same costs no
        round trip as long as nothing has changed. True: something may have changed; read again. May return early.
        """

    def describe(self) -> str:
        """Names the tree in error texts; contains no secrets."""

    def close(self) -> None:
        """Ends the session, and with it the ephemeral nodes."""


class Ephemerals:
    """The nodes of one client. Kazoo's thread reports sessions and must not wait, so nobody reads the answers to what
    is sent then. A node that exists already is fine."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def sent(self, ops: Iterable[Op], client: Any) -> None:
        """Call after a `multi` with full paths. Answers come in order, so the watches see the nodes as the `multi` left
        them."""
        for op in ops:
            if isinstance(op, Create) and op.ephemeral:
                self._kept[op.path] = op.data
                self._watch(client, op.path)

    def forget(self, ops: Iterable[Op]) -> None:
        """Call before a `multi` is sent: what it deletes must not be created again."""
        for op in ops:
            if isinstance(op, Delete):
                self._kept.pop(op.path, None)

    def clear(self) -> None:
        self._kept.clear()

    def renew(self, client: Any) -> None:
        """Call when a session begins, perhaps a new one."""
        for path in list(self._kept):
            self._create(client, path)

    def _create(self, client: Any, path: str) -> None:
        data = self._kept.get(path)
        if data is not None:
            client.create_async(path, data, ephemeral=True)
            self._watch(client, path)

    def _watch(self, client: Any, path: str) -> None:
        """A former session's node may exist for some time; when it goes, it is created again."""

        def changed(event: Any) -> None:
            if event.type == "DELETED":
                self._create(client, path)

        client.exists_async(path, watch=changed)
