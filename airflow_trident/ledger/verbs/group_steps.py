"""Several decisions in one step: the verbs that take members are made of these.

A group is a run of transactions that one owner begins, processes and commits together. A group is not durable: every
transaction keeps its own record, claim, attempt and status. Only the writes go together. A step of a group does what
the steps of its members would do one after the other, or nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from airflow_trident.errors import ConfigurationError, TridentError
from airflow_trident.ledger.snapshot import Snapshot, Write
from airflow_trident.ledger.transact import Change, Decide, Unchanged
from airflow_trident.ledger.znodes import Create, Delete, Set

T = TypeVar("T")

GROUP_BYTES = 450 * 1024
"""A step takes no more members when its records have this many bytes: half of what ZooKeeper takes in one request."""


class Together:
    """Decisions that see the writes of earlier ones and become one :class:`Change`.

    The step checks everything that any of them depends on.
    """

    def __init__(self, snap: Snapshot) -> None:
        self._snap = snap
        self._writes: dict[str, Write] = {}
        self._used: dict[str, int] = {}
        self._checked: set[str] = set()
        self._witness = ""
        self.bytes = 0

    def then(self, decide: Decide[T]) -> T:
        """Takes one more decision and returns its answer."""
        part, decided = self._decided(decide)
        self._take(part, decided)
        return decided.result

    def while_they_fit(self, decisions: Iterable[Decide[T]]) -> tuple[T, ...]:
        """Takes one decision after the other until the step is full, the first one in any case. Returns the answers of
        those that it took."""
        results: list[T] = []
        for decide in decisions:
            part, decided = self._decided(decide)
            if results and self.bytes + self._grows_by(decided) > GROUP_BYTES:
                break
            self._take(part, decided)
            results.append(decided.result)
        return tuple(results)

    def change(self, outcome: T, *, witness: str = "") -> Change[T] | Unchanged[T]:
        """All decisions as one step.

        :param witness: used instead of the witness of the first decision.
        """
        if not self._writes:
            return Unchanged(outcome)
        unchecked = self._used.keys() - self._checked - self._snap.used.keys()
        self._tell(self._used)
        writes = tuple(self._writes.values())
        return Change(writes=writes, witness=witness or self._witness, result=outcome, unchecked=frozenset(unchecked))

    def _decided(self, decide: Decide[T]) -> tuple[Snapshot, Change[T] | Unchanged[T]]:
        part = self._snap.after(self._writes)
        try:
            return part, decide(part)
        except TridentError:
            # What it refuses may have moved since it was read: whoever asks has to know all that was looked at.
            self._tell(self._used)
            self._tell(part.used)
            raise

    def _tell(self, used: Mapping[str, int]) -> None:
        """The whole step depends on what its decisions looked at, in the version that was seen first."""
        for path, version in used.items():
            self._snap.used.setdefault(path, version)

    def _grows_by(self, decided: Change[T] | Unchanged[T]) -> int:
        writes = decided.writes if isinstance(decided, Change) else ()
        return sum(size(write) - size(self._writes.get(write.path)) for write in writes)

    def _take(self, part: Snapshot, decided: Change[T] | Unchanged[T]) -> None:
        unchecked: frozenset[str] = frozenset()
        if isinstance(decided, Change):
            unchecked = decided.unchecked
            self._witness = self._witness or decided.witness
            self.bytes += self._grows_by(decided)
            for write in decided.writes:
                self._put(write)
        for path, version in part.used.items():
            self._used.setdefault(path, version)
        self._checked |= part.used.keys() - unchecked

    def _put(self, write: Write) -> None:
        """Merges writes to the same path into one, with the condition of the first."""
        before = self._writes.get(write.path)
        if before is None or (isinstance(before, Set) and isinstance(write, Set)):
            self._writes[write.path] = write
        elif isinstance(before, Create) and isinstance(write, Set):
            self._writes[write.path] = Create(write.path, write.data)
        elif isinstance(before, Create) and isinstance(write, Delete):
            del self._writes[write.path]
        elif isinstance(before, Set) and isinstance(write, Delete):
            self._writes[write.path] = Delete(write.path, before.version)
        elif isinstance(before, Delete) and isinstance(write, Create):
            # The chunks of metadata have its digest in their names. An earlier member took a batch away, and a later
            # one decided on the same again.
            self._writes[write.path] = self._snap.put(write.path, write.data)
        else:
            raise AssertionError(f"{before} and then {write}: no step does that to a node")


def size(write: Write | None) -> int:
    return len(write.data) if isinstance(write, Create | Set) else 0


def require_order(txids: Sequence[int]) -> None:
    """:raises ConfigurationError: the txids do not rise."""
    if any(later <= earlier for earlier, later in pairwise(txids)):
        raise ConfigurationError(
            f"a group is given in the order of its txids, each once, and not as {list(txids)}", "Sort them."
        )
