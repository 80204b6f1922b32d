"""The contract of key-value states and of their providers, after Storm's KeyValueState and StateProvider.

Promises of an implementation (`tests/contracts/test_keyvalue_states.py` checks each for every implementation):

K1   A state has three layers: pending writes in memory, prepared writes and committed data in the store. Reads look in
     them in that order. A deletion hides what lower layers hold. An iterator gives each key exactly once, even if
     somebody writes meanwhile.
K2   `put` and `delete` change the pending layer only: no other instance sees it, and it is gone with this instance.
K3   `prepare_commit(txid)` makes the pending writes durable as prepared, in one atomic step, and empties the pending
     layer. Preparing the same txid again, under the same fence, adds to the prepared writes.
K4   `commit(txid)` makes the prepared writes committed data, in one atomic step. The txid must be the prepared one.
K5   "Already committed" is a success: `prepare_commit` and `commit` of the last committed txid return `Step.ALREADY`
     and change nothing; `prepare_commit` drops the pending writes, which belong to a replay.
K6   TransitionError, with nothing changed, if the next txid is prepared before the previous one is committed or rolled
     back, if a txid is lower, or if a newer committer prepares before it has committed or rolled back what it finds.
K7   `rollback()` drops pending and prepared writes and may be repeated. Committed data stays unchanged; later writes
     reach it only by commit.
K8   `commit()` without a txid makes the pending writes committed data at once, if nothing is prepared.
K9   Every step carries the fence of the caller's commit ticket. A lower fence than any before is refused with
     FencedError and changes nothing; a higher one is recorded in the same atomic step, even if nothing else changes.
K10  The cost of a step depends on the writes since the last commit, never on the size of the state.
K11  Namespaces do not see each other. Two processes may use one namespace: their steps come one after the other.
K12  Keys are equal if their JSON texts are equal: 1, 1.0, True and "1" are four keys. Lists and tuples are one
     kind, and come back as tuples. Values come back as they were put, or `put` refuses them. They are never pickled
     and never shared: changing a value after `put` or `get` changes no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, overload

from airflow_trident.closeable import Closing
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
        """Remove a key and return its value."""

    @abstractmethod
    def iterator(self) -> Iterator[tuple[K, V]]:
        """Every key once, with its value."""

    # ---- what the checkpoint uses ------------------------------------------------------------------------------

    @abstractmethod
    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        """Keep the pending writes as prepared for `txid`.

        :raises FencedError: a newer committer was here.
        :raises TransitionError: another transaction is prepared, or `txid` is below the committed one.
        :raises StoreUnavailableError: nothing was changed; pending writes are kept.
        :raises OutcomeUnknownError: a change is possible; the same call again resolves it.
        """

    @abstractmethod
    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        """Turn the prepared writes of `txid` into committed data; without a txid, the pending writes.

        :raises FencedError, TransitionError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def rollback(self, *, fence: int) -> None:
        """Drop pending and prepared writes.

        :raises FencedError, StoreUnavailableError, OutcomeUnknownError: as above.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the pending writes of a failed try; the store is not touched."""

    @abstractmethod
    def marks(self) -> Marks:
        """What the store knows about the namespace now; all zero if it was never used."""

    @abstractmethod
    def committed_items(self) -> Iterator[tuple[K, V]]:
        """Like `iterator`, for committed data only."""


class StateProvider(ABC):
    """Opens key-value states by namespace. Made from keyword arguments while a DAG is parsed, so it opens nothing and
    imports no driver. Picklable."""

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
    """Storm's ``<component>-<task index>``; the component ``<topology>/<node>`` tells topologies apart."""
    return f"{component}-{task}"


ProviderConfig = dict[str, Json]
