"""A topology with two states of any store and everything around it: what "COMMITTED" has to mean is seen here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_trident import Count, FixedBatchSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.ledger.base import Begun
from airflow_trident.ledger.fake import FakeTree, FakeZNodes
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.plan.states import State, StateFactory, StateSpec
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.spouts import Spout
from airflow_trident.runtime.commit import Committer, OpenStates, SweepResult
from airflow_trident.runtime.phases import Attempts, coordinate, process

WORDS = [("a",), ("b",), ("a",), ("c",), ("a",), ("d",), ("b",), ("e",)]
NAMES = ("one", "two")
TRIES = 40
"""A store that loses every answer wants one more try for each state."""


def two_counts(factory: StateFactory, spout: Spout | None = None, names: tuple[str, ...] = NAMES) -> Topology:
    """One word per transaction, counted in each of the states."""
    topology = Topology("half")
    words = topology.new_stream("words", spout or FixedBatchSpout("word string", WORDS, 1)).group_by("word")
    for name in names:
        words.persistent_aggregate(factory, Count(), name)
    return topology


@dataclass
class Site:
    """The parties of the protocol in one process. Stores that lose their answers are asked again."""

    topology: Topology
    staging: Path
    tree: FakeTree = field(default_factory=FakeTree)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ledger = self.client()
        self.ledger.register(self.topology.definition())

    def client(self) -> ZNodeLedger:
        return ZNodeLedger(FakeZNodes(self.tree), self.topology.name)

    def begin(self, key: str) -> int:
        begun = self.again(lambda: coordinate(self.ledger, self.topology, Claim(key=key), max_pending=10))
        assert isinstance(begun, Begun)
        return begun.txid

    def process(self, txid: int) -> None:
        process(self.ledger, self.topology, txid, LocalEngine(), str(self.staging), Attempts(owner="emitter"))

    def committer(self) -> Committer:
        return Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=str(self.staging),
            attempts=Attempts(owner="committer"),
            engine=LocalEngine,
            progress=self.said.append,
        )

    def commit(self, txid: int, states: OpenStates | None = None) -> SweepResult:
        return self.again(lambda: self.committer().commit(txid, take_over=True, states=states))

    def run(self, count: int = 1) -> list[int]:
        """So many transactions, whole."""
        txids = []
        for _ in range(count):
            txids.append(self.begin(f"run-{self.ledger.view(0).next_txid}"))
            self.process(txids[-1])
            self.commit(txids[-1])
        return txids

    @staticmethod
    def again(act: Callable[[], Any]) -> Any:
        for _ in range(TRIES - 1):
            try:
                return act()
            except StoreUnavailableError:
                continue
        return act()

    def content(self, name: str) -> dict[Any, Any]:
        """Key -> value, each without its tuple."""
        spec = self.topology.states[name]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}


def expected(*txids: int) -> dict[str, int]:
    """What a state holds that has these transactions, of `WORDS` taken one by one."""
    found: dict[str, int] = {}
    for txid in txids:
        (word,) = WORDS[txid - 1]
        found[word] = found.get(word, 0) + 1
    return found


@dataclass(frozen=True)
class Shut(StateFactory):
    """Crippled: the states of these names cannot be opened, each as often as it is told; then they can."""

    inner: StateFactory
    refusals: dict[str, int]

    @property
    def capabilities(self) -> Any:  # type: ignore[override]
        return self.inner.capabilities

    def make_state(self, spec: StateSpec) -> State:
        if self.refusals.get(spec.name, 0) > 0:
            self.refusals[spec.name] -= 1
            raise StoreUnavailableError(f"the store of state {spec.name!r} does not answer", "Wait for it.")
        return self.inner.make_state(spec)

    def describe(self) -> str:
        return self.inner.describe()
