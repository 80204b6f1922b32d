"""Makes a method of :class:`~airflow_trident.ledger.base.Ledger` from a verb, which is a pure function.

Each verb has one place: its function in `ledger/verbs` has the signature, the promises and the decision. The ledger's
class has one line for it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from airflow_trident.errors import TridentError
from airflow_trident.ledger.paths import LedgerPaths
from airflow_trident.ledger.snapshot import Snapshot
from airflow_trident.ledger.transact import Change, Decide, Transactor, Unchanged

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
            result = ledger.run(decide, ahead)
        except TridentError as error:
            _tell(ledger, self.name, error)
            raise
        if self._then is not None:
            self._then(ledger, result)
        if changes:
            _tell(ledger, self.name, result)
        return result


@functools.cache
def _places(verb: Callable[..., Any], positional: int, names: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Which of the named arguments of a call come by position, and which by name.

    :raises TypeError: the verb does not take these arguments.
    """
    given = inspect.signature(verb).bind(None, *([None] * positional), **{name: name for name in names})
    return given.args[1 + positional :], list(given.kwargs)


def _tell(ledger: RunsVerbs, verb: str, answer: object) -> None:
    """An error of a listener does not concern the ledger."""
    if ledger.listener is not None:
        with suppress(Exception):
            ledger.listener(ledger, verb, answer)
