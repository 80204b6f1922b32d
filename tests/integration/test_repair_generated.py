"""`repair` after random lives of a topology: what it does not refuse leaves every record in every state once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import event, given, note, settings
from hypothesis import strategies as st

from airflow_trident import Count, MemoryState, Topology
from airflow_trident.errors import CorruptError, TransitionError
from airflow_trident.ledger.memory_znodes import MemoryTree
from airflow_trident.runtime.repair import repair
from tests.fixtures.repairs import NAME, RepairWorld
from tests.fixtures.runtime import copy_of
from tests.fixtures.spout import FolderSpout, OpaqueFolderSpout, append

STATES = ("first", "second", "third")


@dataclass(frozen=True)
class Step:
    """A transaction: how many rows each stream gets before it, and what becomes of it."""

    rows: tuple[int, int]
    end: str = "committed"


@dataclass(frozen=True)
class Life:
    """`last`: what the streams get before the last transaction; `dies`: its committer, after that state; `again`: after
    that the batch is gone, and a committer that emits another one dies after that state; `lost`: how many copies of the
    ledger back, or all."""

    opaque: bool
    streams: str
    states: int
    steps: tuple[Step, ...]
    last: tuple[int, int]
    dies: int | None
    again: int | None
    lost: int


steps = st.builds(
    Step,
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.sampled_from(["committed", "skipped", "skipped", "late"]),
)
lives = st.builds(
    Life,
    opaque=st.booleans(),
    streams=st.sampled_from(["a", "ab"]),
    states=st.integers(2, 3),
    steps=st.lists(steps, max_size=5).map(tuple),
    last=st.sampled_from([(1, 0), (3, 0), (1, 2)]),
    dies=st.none() | st.integers(0, 2),
    again=st.none() | st.integers(0, 2),
    lost=st.sampled_from([0, 1, 2, 3, 5, 8, 99]),
)


@dataclass
class Lived:
    """`copies`: of the ledger, the latest last; `skipped`: rows that no state needs to have."""

    life: Life
    world: RepairWorld
    copies: list[MemoryTree] = field(default_factory=list)
    given: set[str] = field(default_factory=set)
    skipped: dict[int, set[str]] = field(default_factory=dict)

    def live(self) -> None:
        self.world.ledger.register(self.world.make().definition())
        self._copy()
        for step in self.life.steps:
            self._transaction(step)
        if self.life.dies is not None:
            self._give(self.life.last)
            self._die(self.life.dies % self.life.states)

    def _transaction(self, step: Step) -> None:
        self._give(step.rows)
        before = self.world.ledger.view(0).next_txid
        self._begin()
        txid = self.world.ledger.view(0).next_txid - 1
        if txid < before:
            return  # nothing new
        if step.end == "skipped":
            self.world.ledger.skip(txid, "poison")
            self.skipped[txid] = set(self._rows_of(txid))
        else:
            self._commit(txid)
            if step.end == "late" and self.skipped:
                late = min(self.skipped)
                self._commit(late)
                self.skipped.pop(late)
        self._copy()

    def _commit(self, txid: int) -> None:
        self.world.process(txid)
        self._copy()
        self.world.commit(txid)

    def _die(self, state: int) -> None:
        before = self.world.ledger.view(0).next_txid
        self._begin()
        txid = self.world.ledger.view(0).next_txid - 1
        assert txid == before
        self.world.process(txid)
        self._copy()
        self.world.die_after(STATES[state], txid)
        if self.life.again is not None:
            self._copy()
            self.world.forget_batches()
            self.world.die_after(STATES[min(self.life.again, state)], txid, at_once=3)

    def _begin(self) -> None:
        self.world.begin(f"run-{len(self.copies)}-{len(self.given)}")
        self._copy()

    def _give(self, rows: tuple[int, int]) -> None:
        for stream, number in zip(self.life.streams, rows, strict=False):
            new = [(len(self.given) + one, f"{stream}{len(self.given) + one}") for one in range(number)]
            append(self.world.folder / stream, "part", new)
            self.given |= {row for _, row in new}

    def _rows_of(self, txid: int) -> Iterator[str]:
        for stream, metadata in self.world.ledger.transactions(txid, txid)[0].metadata.items():
            lines = (self.world.folder / stream / "part").read_text().splitlines()
            for part in metadata["parts"].values():
                yield from (line.split('"')[1] for line in lines[part["from"] : part["to"]])

    def _copy(self) -> None:
        self.copies.append(copy_of(self.world.tree))


def make_world(life: Life, folder: Path) -> RepairWorld:
    def make(at_once: int = 2) -> Topology:
        topology, spout = Topology(NAME), OpaqueFolderSpout if life.opaque else FolderSpout
        parts = [topology.new_stream(name, spout(folder / name, at_once=at_once)) for name in life.streams]
        rows = (topology.merge(parts) if len(parts) > 1 else parts[0]).group_by("name")
        for name in STATES[: life.states]:
            rows.persistent_aggregate(MemoryState(str(folder)), Count(), name)
        return topology

    for name in life.streams:
        (folder / name).mkdir()
    return RepairWorld(folder, make)


@contextmanager
def world_of(life: Life) -> Iterator[RepairWorld]:
    with TemporaryDirectory() as folder:
        try:
            yield make_world(life, Path(folder))
        finally:
            MemoryState(folder).forget()


@settings(max_examples=60)
@given(life=lives)
def test_a_repair_counts_every_record_once_or_refuses(life: Life) -> None:
    with world_of(life) as world:
        lived = Lived(life, world)
        lived.live()
        world.tree = lived.copies[-1 - life.lost] if life.lost < len(lived.copies) else MemoryTree()
        before = world.contents()
        try:
            seed = repair(world.ledger, world.make(), world.staging, progress=note, take_over="the ledger was deleted")
        except (CorruptError, TransitionError) as error:
            event(f"refused: {type(error).__name__}")
            note(error.message)
            assert world.contents() == before
            return
        event("repaired, " + ("a transaction is replayed" if seed.unfinished_txids else "nothing is replayed"))
        world.replay_and_go_on(world.ledger, *seed.unfinished_txids)
        found = world.contents()
        assert all(one == found[0] for one in found), found
        assert set(found[0].values()) <= {1}
        missing = lived.given - found[0].keys()
        assert missing <= set[str]().union(*lived.skipped.values()), missing
