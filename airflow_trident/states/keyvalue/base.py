"""The contract of key-value states and of their providers, after Storm's KeyValueState and StateProvider.

Promises of an implementation (`tests/contracts/test_keyvalue_states.py` checks every one over every implementation):

K1   A state has three layers: pending writes in memory, prepared ones and committed data in the store. Reads look in
     them in that order. A deletion hides what lower layers hold. An iterator gives each key once, and none twice
     because somebody writes meanwhile.
K2   `put` and `delete` change the pending layer only: no other instance sees them, and they are gone with this one.
K3   `prepare_commit(txid)` makes the pending writes durable as prepared, in one atomic step, and empties the pending
     layer. Preparing the same txid again, under the same fence, adds to what is prepared.
K4   `commit(txid)` makes what is prepared the committed data, in one atomic step. The txid must be the prepared one.
K5   What is committed already is a success of its own name: `prepare_commit` and `commit` of the last committed txid
     return `Step.ALREADY` and change nothing; `prepare_commit` drops the pending writes, which are a replay's.
K6   The next txid cannot be prepared before the former is committed or rolled back, txids only rise, and a newer
     committer must commit or roll back what it finds prepared before it prepares: TransitionError, nothing changes.
K7   `rollback()` drops pending and prepared writes, as often as it is called; the committed data stays as it was, and
     nothing that is written later can reach it except by commit.
K8   `commit()` without a txid makes the pending writes committed data at once, if nothing is prepared.
K9   Every step carries the fence of the caller's commit ticket. A lower one than any before is refused with FencedError
     and changes nothing; a higher one is recorded in the same atomic step, also when nothing else was to do.
K10  A step costs what was written since the last commit, never what the state holds.
K11  Namespaces do not see each other. Two processes may use one namespace: their steps come one after the other.
K12  Equal keys are keys with equal JSON text: 1, 1.0, True and "1" are four keys. Lists and tuples are one kind, and
     come back as tuples. Values come back as they were put, or are refused by `put`; never pickled, never shared:
     changing a value that was put or got changes no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

from airflow_trident.closing import Closing
from airflow_trident.contracts.state import Capabilities
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.types import Json

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class KeyValueState(Closing, Generic[K, V]):
    """An open state of one namespace. Not for sharing between threads. Use as a context manager."""

    namespace: str

    # ---- what functions use ------------------------------------------------------------------------------------

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    @abstractmethod
    def get(self, key: K, default: Any = None) -> Any:
        """The value of a key, `default` if it has none.

        :raises ValueError: JSON cannot hold the key.
        """

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """:raises ValueError: JSON cannot hold the key or the value."""

    @abstractmethod
    def delete(self, key: K) -> V | None:
        """Remove a key; the value that it had."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[K, V]]:
        """Every key once with its value."""

    # ---- what the checkpoint uses ------------------------------------------------------------------------------

    @abstractmethod
    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        """Keep the pending writes as prepared for `txid`.

        :raises FencedError: a newer committer was here.
        :raises TransitionError: another transaction is prepared, or `txid` is below the committed one.
        :raises StoreUnavailableError: nothing was changed; pending writes are kept.
        :raises OutcomeUnknownError: perhaps it was; the same call again resolves it.
        """

    @abstractmethod
    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        """Make what is prepared for `txid` the committed data; without a txid, the pending writes.

        :raises FencedError, TransitionError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def rollback(self, *, fence: int) -> None:
        """Drop what is pending and prepared.

        :raises FencedError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the pending writes, those of a try that failed; the store is not touched."""

    @abstractmethod
    def marks(self) -> Marks:
        """What the store knows about the namespace now; all zero for one that was never used."""

    @abstractmethod
    def committed_items(self) -> Iterator[tuple[K, V]]:
        """As `iterator`, of the committed data alone."""


class StateProvider(ABC):
    """Opens key-value states by namespace. Made while a DAG is parsed, from keyword arguments: opens nothing, imports
    no driver. Picklable."""

    capabilities: Capabilities

    @abstractmethod
    def new_state(self, namespace: str) -> KeyValueState[Any, Any]:
        """Open the state of a namespace, creating what is missing (Storm: StateProvider.newState).

        :raises ConfigurationError: the store cannot be used as configured.
        :raises StoreUnavailableError: it does not answer.
        """

    @abstractmethod
    def describe(self) -> str:
        """Kind and place, no secrets."""


def namespace_of(component: str, task: int | str) -> str:
    """Storm's ``<component>-<task index>``; the part before it tells topologies apart: ``<topology>/<node>``."""
    return f"{component}-{task}"


ProviderConfig = dict[str, Json]
