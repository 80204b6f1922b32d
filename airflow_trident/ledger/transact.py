"""Reads, decides and writes as one step: this makes the ledger's verbs atomic over any :class:`ZNodes`.

A verb is a pure function from a :class:`Snapshot` to a :class:`Change` (what to write) or :class:`Unchanged` (nothing
to write). The transactor sends the change as one `multi` together with a check of **everything the verb looked at**. So
ZooKeeper refuses a decision that was made on an outdated view, and the verb decides again on a new one.

Makes a method of :class:`~airflow_trident.ledger.ledger.Ledger` from a verb, which is a pure function.

Each verb has one place: its function in `ledger/verbs` has the signature, the promises and the decision. The ledger's
class has one line for it.

What a verb is going to read, as far as it is known: all of it is read in one round trip.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeAlias, TypeVar, overload

from airflow_trident.errors import (
    CorruptRecordError,
    FencedError,
    LedgerUnavailableError,
    OutcomeUnknownError,
    TridentError,
    UnknownTopologyError,
)
from airflow_trident.ledger.answers import NextBatches, StagedAttempt
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.snapshot import Cache, Snapshot, Write
from airflow_trident.ledger.znodes import Check, Op, WriteRefusedError, ZNodes
from airflow_trident.protocol import codec
from airflow_trident.protocol.partition_keys import PartitionEntry
from airflow_trident.protocol.records import Claim, CommitTicket, Owner, StagedRef, TxRecord

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

    def fresh(self, ledger_paths: LedgerPaths, paths: Iterable[str] = (), folders: Iterable[str] = ()) -> Snapshot:
        """A snapshot that is at least as new as this call. It is not one moment: later paths may be newer.

        :raises UnknownTopologyError: the topology is gone.
        :raises FencedError: it was deleted and created again.
        """
        self.cache.forget()
        self.cache.fetch([ledger_paths.topology, *paths], folders)
        node = self.cache.node(ledger_paths.topology)
        name = ledger_paths.topology.rpartition("/")[2]
        if node is None:
            raise UnknownTopologyError(f"there is no ledger of a topology {name!r}", "Run its coordinator first.")
        incarnation = self.cache.decoded(ledger_paths.topology, node.data, codec.decode_topology).incarnation
        if incarnation != ledger_paths.incarnation:
            self.cache.forget()
            raise another_incarnation(name, incarnation, ledger_paths.incarnation)
        return Snapshot(ledger_paths, self.cache, self._clock_ms())

    def remembered(self, ledger_paths: LedgerPaths, paths: Sequence[str]) -> Snapshot:
        """A snapshot of remembered records; it reads the others."""
        if not self.cache.has([ledger_paths.topology], ()):
            return self.fresh(ledger_paths, paths)
        self.cache.fetch(paths)
        return Snapshot(ledger_paths, self.cache, self._clock_ms())

    def run(
        self, ledger_paths: LedgerPaths, decide: Decide[T], *, paths: Iterable[str] = (), folders: Iterable[str] = ()
    ) -> T:
        """Decides and writes, and decides again as long as others write in between.

        A refusal, or an answer without a write, never rests on a remembered view: the records are read again first.

        :raises OutcomeUnknownError: the answer of the write was lost, and nothing answered before the deadline.
        :raises LedgerUnavailableError: others were faster until the deadline.
        """
        deadline = time.monotonic() + self._deadline_s
        remembered = self.cache.has([ledger_paths.topology, *paths], folders)
        while True:
            snapshot = (
                Snapshot(ledger_paths, self.cache, self._clock_ms())
                if remembered
                else self.fresh(ledger_paths, paths, folders)
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
                    f"others kept changing {ledger_paths.topology} for {self._deadline_s:g} s",
                    "Run the same step again.",
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


def another_incarnation(topology: str, incarnation: str, expected: str) -> FencedError:
    return FencedError(
        f"topology {topology!r} was deleted and created again: it is now {incarnation}, this was {expected}",
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


P = ParamSpec("P")
R = TypeVar("R")
LedgerListener = Callable[[Any, str, object], None]
"""Called after each verb that changed something or was refused, with the ledger, the verb's name, and the answer or the
error."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """The reads of a verb that are known beforehand: all of them are one round trip."""

    paths: Sequence[str] = ()
    folders: Sequence[str] = ()


class RunsVerbs(Protocol):
    """The part of a ledger that a verb needs."""

    transactor: Transactor
    listener: LedgerListener | None

    def paths(self) -> LedgerPaths: ...

    def run(self, decide: Decide[R], ahead: Prefetch) -> R: ...


class Verb(Generic[P, R]):
    """``decide(snapshot, ...)`` as a method: with the same arguments after the snapshot, and the same docstring.

    :param decide: the verb. It is called again if somebody else wrote meanwhile, so it has no side effects.
    :param reads: called with the ledger and the arguments, which come by position wherever the verb allows it.
    :param then: called with the ledger and the answer, after the write.
    """

    def __init__(
        self,
        decide: Callable[Concatenate[Snapshot, P], Change[R] | Unchanged[R]],
        reads: Callable[..., Prefetch],
        *,
        then: Callable[[Any, R], None] | None = None,
    ) -> None:
        self.decide = decide
        self._reads = reads
        self._then = then
        self.name = decide.__name__
        self.__doc__ = decide.__doc__

    @overload
    def __get__(self, ledger: None, owner: type) -> Verb[P, R]: ...

    @overload
    def __get__(self, ledger: RunsVerbs, owner: type) -> Callable[P, R]: ...

    def __get__(self, ledger: RunsVerbs | None, owner: type) -> Verb[P, R] | Callable[P, R]:
        return self if ledger is None else functools.partial(self.call, ledger)

    def call(self, ledger: RunsVerbs, /, *args: P.args, **kwargs: P.kwargs) -> R:
        changes = False

        def decide(snap: Snapshot) -> Change[R] | Unchanged[R]:
            nonlocal changes
            decided = self.decide(snap, *args, **kwargs)
            changes = isinstance(decided, Change)
            return decided

        moved, named = _places(self.decide, len(args), tuple(kwargs))
        ahead = self._reads(ledger, *args, *[kwargs[name] for name in moved], **{name: kwargs[name] for name in named})
        try:
            answer = ledger.run(decide, ahead)
        except TridentError as error:
            _tell(ledger, self.name, error)
            raise
        if self._then is not None:
            self._then(ledger, answer)
        if changes:
            _tell(ledger, self.name, answer)
        return answer


@functools.cache
def _places(verb: Callable[..., Any], positional: int, names: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Which of the named arguments of a call come by position, and which by name.

    :raises TypeError: the verb does not take these arguments.
    """
    bound = inspect.signature(verb).bind(None, *([None] * positional), **{name: name for name in names})
    return bound.args[1 + positional :], list(bound.kwargs)


def _tell(ledger: RunsVerbs, verb: str, answer: object) -> None:
    """An error of a listener does not concern the ledger."""
    if ledger.listener is not None:
        with suppress(Exception):
            ledger.listener(ledger, verb, answer)


One: TypeAlias = int | TxRecord | CommitTicket | StagedAttempt
About: TypeAlias = One | Sequence[One]
"""What a verb gets as its first argument: a transaction, or the members of a group."""


def the_topology(*_: Any, **__: Any) -> Prefetch:
    """The topology's record, which every step reads."""
    return Prefetch()


def the_deployment(ledger: RunsVerbs, *_: Any, **__: Any) -> Prefetch:
    folder = ledger.paths().deployment
    return Prefetch([folder], [folder])


def the_pointer(ledger: RunsVerbs, *_: Any, **__: Any) -> Prefetch:
    return Prefetch([ledger.paths().commit])


# ---- transactions ----------------------------------------------------------------------------------------------


def transactions(ledger: RunsVerbs, about: About, *_: Any, **__: Any) -> Prefetch:
    return _about(ledger, _txids(about))


def with_what_is_kept(ledger: RunsVerbs, about: About, *_: Any, **__: Any) -> Prefetch:
    """For commits, which prune."""
    return _and_what_is_kept(ledger, _txids(about))


def staged(ledger: RunsVerbs, done: Sequence[StagedAttempt], *, gate_by: Owner | str = "") -> Prefetch:
    """With what the commit after it reads, if the same step opens the gate."""
    ahead = with_what_is_kept(ledger, done) if gate_by else transactions(ledger, done)
    return _and_chunks(ledger, ahead, [attempt.staged for attempt in done])


# ---- claims ----------------------------------------------------------------------------------------------------


def of_claims(ledger: RunsVerbs, batches: NextBatches, **_: Any) -> Prefetch:
    """With the claims' keys, and with the folders, where the commit after it looks for what to prune."""
    paths, cache = ledger.paths(), ledger.transactor.cache
    keys, shared = [paths.claim(claim.key) for claim in batches.claims], paths.about(0)
    requests = batches.partitions.values()
    bound = dict.fromkeys(paths.period(request.partition.key) for request in requests)
    last = [paths.tx(request.seen.tx) for request in requests if request.seen.tx]
    if cache.has([paths.topology, *shared], ()):
        # A process that goes from one transaction to the next need not read the node of a new claim: creating it shows
        # whether it exists.
        for key in keys:
            cache.assume_missing(key)
    return Prefetch([*shared, *keys, *bound, *last], paths.pruned())


def of_partition(
    ledger: RunsVerbs, seen: PartitionEntry, key: str, *_: Any, claim: Claim | None = None, **__: Any
) -> Prefetch:
    """For the unfinished transaction of a partition key."""
    paths = ledger.paths()
    claims = [] if claim is None else [paths.claim(claim.key)]
    return Prefetch([*paths.about(0), paths.period(key), *claims, paths.tx(seen.tx)])


def tickets_and_claims(
    ledger: RunsVerbs, tickets: Sequence[CommitTicket], *, then: NextBatches | None = None, **_: Any
) -> Prefetch:
    """For commits, which prune, and of what begins in the same step."""
    ahead = with_what_is_kept(ledger, tickets)
    return ahead if then is None else Prefetch([*ahead.paths, *of_claims(ledger, then).paths], ahead.folders)


# ---- all of them -----------------------------------------------------------------------------------------------


def _txids(about: About) -> list[int]:
    members = about if isinstance(about, Sequence) else [about]
    return [member if isinstance(member, int) else member.txid for member in members]


def _about(ledger: RunsVerbs, txids: Iterable[int]) -> Prefetch:
    """What decides about these transactions, in reading order: see :meth:`LedgerPaths.about`."""
    paths = ledger.paths()
    return Prefetch([*paths.about(0), *(paths.tx(txid) for txid in txids if txid >= 1)])


def _and_what_is_kept(ledger: RunsVerbs, txids: Iterable[int]) -> Prefetch:
    return Prefetch(_about(ledger, txids).paths, ledger.paths().pruned())


def _and_chunks(ledger: RunsVerbs, ahead: Prefetch, staged: Iterable[StagedRef]) -> Prefetch:
    """With the chunks that the step creates: creating them shows whether they exist."""
    chunks = list(dict.fromkeys(ledger.paths().chunk(ref.chunk) for ref in staged if ref.content))
    for path in chunks:
        ledger.transactor.cache.assume_missing(path)
    return Prefetch([*ahead.paths, *chunks], ahead.folders)
