"""Reads, decides and writes as one step: this makes the ledger's verbs atomic over any :class:`ZNodes`.

A verb is a pure function from a :class:`Snapshot` to a :class:`Change` (what to write) or :class:`Unchanged` (nothing
to write). The transactor sends the change as one `multi` together with a check of **everything the verb looked at**. So
ZooKeeper refuses a decision that was made on an outdated view, and the verb decides again on a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from airflow_trident.errors import (
    CorruptRecordError,
    FencedError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.ledger.paths import LedgerPaths
from airflow_trident.ledger.snapshot import Cache, Snapshot, Write
from airflow_trident.ledger.znodes import Check, Op, WriteRefusedError, ZNodes
from airflow_trident.protocol import codec

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change(Generic[T]):
    """What a verb wants to write.

    `witness` is the path of a record in it that carries the op id until another operation overwrites it: it tells
    whether a write without an answer was applied. `unchecked`: paths that the decision looked at, but does not depend
    on.
    """

    writes: tuple[Write, ...]
    witness: str
    result: T
    unchecked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Unchanged(Generic[T]):
    """Nothing has to be written."""

    result: T


Decide: TypeAlias = Callable[[Snapshot], "Change[T] | Unchanged[T]"]


class Transactor:
    """Runs verbs. One per ledger.

    :param deadline_s: the longest time of one verb, with lost answers and competition included.
    """

    def __init__(self, znodes: ZNodes, clock_ms: Callable[[], int], deadline_s: float) -> None:
        self._znodes = znodes
        self._clock_ms = clock_ms
        self._deadline_s = deadline_s
        self.cache = Cache(znodes)

    def fresh(self, where: LedgerPaths, paths: Iterable[str] = (), folders: Iterable[str] = ()) -> Snapshot:
        """A snapshot that is at least as new as this call. It is not one moment: later paths may be newer.

        :raises UnknownTopologyError: the topology is gone.
        :raises FencedError: it was deleted and created again.
        """
        self.cache.forget()
        self.cache.fetch([where.topology, *paths], folders)
        node = self.cache.node(where.topology)
        name = where.topology.rpartition("/")[2]
        if node is None:
            raise UnknownTopologyError(f"there is no ledger of a topology {name!r}", "Run its coordinator first.")
        found = self.cache.decoded(where.topology, node.data, codec.decode_topology).incarnation
        if found != where.incarnation:
            self.cache.forget()
            raise another_incarnation(name, found, where.incarnation)
        return Snapshot(where, self.cache, self._clock_ms())

    def remembered(self, where: LedgerPaths, paths: Sequence[str]) -> Snapshot:
        """A snapshot of remembered records; it reads the others."""
        if not self.cache.has([where.topology], ()):
            return self.fresh(where, paths)
        self.cache.fetch(paths)
        return Snapshot(where, self.cache, self._clock_ms())

    def run(
        self, where: LedgerPaths, decide: Decide[T], *, paths: Iterable[str] = (), folders: Iterable[str] = ()
    ) -> T:
        """Decides and writes, and decides again as long as others write in between.

        A refusal, or an answer without a write, never rests on a remembered view: the records are read again first.

        :raises OutcomeUnknownError: the answer of the write was lost, and nothing answered before the deadline.
        :raises LedgerUnavailableError: others were faster until the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        remembered = self.cache.has([where.topology, *paths], folders)
        while True:
            snapshot = (
                Snapshot(where, self.cache, self._clock_ms()) if remembered else self.fresh(where, paths, folders)
            )
            try:
                decided = decide(snapshot)
            except TridentError as error:
                if not remembered and not (isinstance(error, CorruptRecordError) and self._moved(snapshot)):
                    raise
                remembered = False
                continue
            if isinstance(decided, Change):
                if self._submit(decided, snapshot, deadline):
                    return decided.result
            elif not remembered:
                return decided.result
            remembered = False
            if time.monotonic() > deadline:
                raise LedgerUnavailableError(
                    f"others kept changing {where.topology} for {self._deadline_s:g} s", "Run the same step again."
                )

    def _moved(self, snapshot: Snapshot) -> bool:
        """Did others write meanwhile? Then the snapshot mixes two moments, and a record that looks missing may have
        been pruned between two reads."""
        now = self._znodes.read(list(snapshot.used)).nodes
        return any(node is None or node.version != snapshot.used[path] for path, node in now.items())

    def apply(self, ops: Sequence[Op], *, witness: str, op: str) -> bool:
        """Applies conditional writes that no verb decided on. True: applied; False: certainly not."""
        return self._applied(ops, witness, op, time.monotonic() + self._deadline_s)

    def _submit(self, change: Change[T], snapshot: Snapshot, deadline: float) -> bool:
        """True: applied, by this call. False: certainly not applied; decide again."""
        ops = conditional(change, snapshot.used)
        try:
            applied = self._applied(ops, change.witness, snapshot.op, deadline)
        except BaseException:
            self.cache.forget()
            raise
        if applied:
            self.cache.applied(change.writes)
        return applied

    def _applied(self, ops: Sequence[Op], witness: str, op: str, deadline: float) -> bool:
        in_doubt = False
        while True:
            try:
                self._znodes.multi(ops)
                return True
            except WriteRefusedError:
                # After a lost answer, this operation's own first write may be the reason of the refusal.
                return in_doubt and self._is_marked(witness, op, deadline)
            except LedgerUnavailableError as error:  # nothing was sent this time
                if not in_doubt:
                    raise
                if time.monotonic() > deadline:
                    raise _unresolved(witness, error) from error
            except OutcomeUnknownError:
                in_doubt = True
                if self._is_marked(witness, op, deadline):
                    return True
                # Not applied yet. The same conditional write may be sent again: however many of them arrive, and
                # however late, only one can find its conditions met.
                if time.monotonic() > deadline:
                    raise

    def _is_marked(self, witness: str, op: str, deadline: float) -> bool:
        while True:
            try:
                node = self._znodes.read([witness]).nodes[witness]
            except LedgerUnavailableError as error:
                if time.monotonic() > deadline:
                    raise _unresolved(witness, error) from error
            else:
                return node is not None and codec.op_of(node.data, witness) == op


def another_incarnation(topology: str, found: str, known: str) -> FencedError:
    return FencedError(
        f"topology {topology!r} was deleted and created again: it is now {found}, this was {known}",
        "Clear the whole run, its coordinator included.",
    )


def _unresolved(witness: str, error: LedgerUnavailableError) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"the answer to a write of {witness} was lost, and then: {error.message}",
        "Run the same step again: it finds out what happened.",
    )


def conditional(change: Change[T], used: Mapping[str, int]) -> list[Op]:
    """The writes of the change, and a check of everything else that the verb looked at."""
    written = {write.path for write in change.writes}
    checks = [
        Check(path, version) for path, version in used.items() if path not in written and path not in change.unchecked
    ]
    return [*checks, *change.writes]
