"""One topology with everything around it, in one process: a ledger in memory, real stores, no Airflow, no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_trident import Count, FixedBatchSpout, Function, ReducerAggregator, SqliteState, Topology
from airflow_trident.engine.base import Engine
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.base import Begun, Ledger
from airflow_trident.ledger.fake import FakeTree
from airflow_trident.ledger.memory import MemoryLedger
from airflow_trident.ledger.znodes import Create
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.backfill import Backfill
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, ProcessOutcome, coordinate, process

ALL = {"a": 2, "b": 2, "poison": 1, "c": 1, "d": 1, "e": 1}
WORDS = [("a b",), ("b",), ("poison c",), ("d a",), ("e",)]


@dataclass
class Sickness:
    """What the user's function refuses; emptied, it is mended."""

    words: set[str] = field(default_factory=set)


class Split(Function):
    def __init__(self, sickness: Sickness) -> None:
        self.sickness = sickness

    def execute(self, line: str) -> Iterator[str]:
        for word in line.split():
            if word in self.sickness.words:
                raise ValueError(f"cannot stand {word}")
            yield word


class Joined(ReducerAggregator[str]):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: Any) -> str:
        return current + str(values[0])


class World:
    """One topology with everything around it."""

    def __init__(self, folder: Path, *, commutes: bool = True, max_batch_size: int = 1) -> None:
        self.folder = folder
        self.sickness = Sickness()
        self.commutes = commutes
        self.max_batch_size = max_batch_size
        self.ledger: Ledger = MemoryLedger("world")
        self.staging = str(folder / "staging")
        self.topology = self.make()

    def make(self) -> Topology:
        made = Topology("world")
        spout = FixedBatchSpout("line string", WORDS, self.max_batch_size)
        words = made.new_stream("lines", spout).each("line", Split(self.sickness), "word")
        state = SqliteState(str(self.folder / "words.db"))
        if self.commutes:
            words.group_by("word").persistent_aggregate(state, Count(), "count")
        else:
            words.group_by("word").persistent_aggregate(state, "word", Joined(), "count")
        return made

    def attempts(self, **changes: Any) -> Attempts:
        return Attempts(owner="test", **changes)

    def begin(self, key: str, max_pending: int = 10) -> int:
        begun = coordinate(self.ledger, self.topology, Claim(key=key), max_pending=max_pending)
        assert isinstance(begun, Begun)
        return begun.txid

    def process(self, txid: int, engine: Engine | None = None, **changes: Any) -> ProcessOutcome:
        runs = engine or LocalEngine()
        return process(self.ledger, self.topology, txid, runs, self.staging, self.attempts(**changes)).outcome

    def committer(self) -> Committer:
        return Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=self.attempts(),
            engine=LocalEngine,
            retention=50,
        )

    def backfill(self) -> Backfill:
        return Backfill(
            ledger=self.ledger,
            topology=self.topology,
            engine=LocalEngine,
            staging_root=self.staging,
            owner="test",
        )

    def counts(self) -> dict[str, Any]:
        spec = self.topology.states["count"]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}

    def statuses(self) -> list[Status]:
        return [tx.status for tx in self.ledger.transactions()]


def copy_of(tree: FakeTree) -> FakeTree:
    made, waiting = FakeTree(), ["/"]
    while waiting:
        path = waiting.pop()
        node = tree.get(path)
        if path != "/" and node is not None:
            made.apply([Create(path, node.data)])
        waiting += [f"{path.rstrip('/')}/{name}" for name in tree.children(path) or ()]
    return made
