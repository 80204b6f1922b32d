"""A restored ledger that gives out again, unnoticed, the txids and fences that a state has seen: numbers alone do not
tell any more that it is behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import HeldError, LedgerBehindStateError, TransitionError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.backfill import BackfillOutcome, Selection
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.repair import accept_definition, repair, take_back
from airflow_trident.staging.area import StagingArea
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.runtime import World, copy_of
from tests.fixtures.spout import FolderSpout, append

ROWS = [(number, f"name {number}") for number in range(9)]


class Restored(World):
    """Transactions 1 (rows 0 and 1) and 2 (row 2) are committed; then the ledger is restored to where it had only 1.
    Coordinators that had looked at the states before begin 2 (rows 2 to 4) and 3 (rows 5 and 6)."""

    def __init__(self, folder: Path, known: int = 1) -> None:
        super().__init__(folder)
        tree = MemoryTree()
        self.ledger = ZNodeLedger(MemoryZNodes(tree), "world")
        self.ledger.register(self.topology.definition())
        self.come(0, 2)
        backup = copy_of(tree) if known == 0 else tree
        self.commit(1, "run-1")
        backup = copy_of(tree) if known == 1 else backup
        self.come(2, 3)
        self.commit(2, "run-2")
        self.ledger, self.staging = ZNodeLedger(MemoryZNodes(backup), "world"), str(folder / "empty")
        self.come(3, 5)
        self.begin_unseen("late-1")
        self.come(5, 7)
        self.begin_unseen("late-2")

    def make(self) -> Topology:
        made = Topology("world")
        stream = made.new_stream("rows", FolderSpout(self.folder / "rows", at_once=10))
        state = SqliteState(str(self.folder / "rows.db"))
        stream.group_by("id").persistent_aggregate(state, Count(), "count")
        return made

    def come(self, first: int, last: int) -> None:
        append(self.folder / "rows", "part", ROWS[first:last])

    def commit(self, txid: int, key: str) -> None:
        assert self.begin(key) == txid
        self.process(txid)
        assert self.committer().commit(txid).committed == (txid,)

    def begin_unseen(self, key: str) -> int:
        coordinator = self.topology.spouts["rows"].coordinator()

        def metadata_of(txid: int, position: dict[str, Json]) -> dict[str, Json] | None:
            return {"rows": coordinator.initialize_transaction(txid, position.get("rows"))}

        begun = single.begin(self.ledger, Claim(key=key), metadata_of, max_pending=10)
        assert isinstance(begun, Begun)
        return begun.txid

    def rows(self) -> dict[int, int]:
        """How often each row was counted."""
        spec = self.topology.states["count"]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}

    def repaired(self) -> None:
        """After the cure every row is counted once."""
        with LocalEngine() as engine:
            repair(self.ledger, self.topology, self.staging, take_over="the ledger was deleted")
            self.come(7, 9)
            LocalRunner(ledger=self.ledger, topology=self.topology, engine=engine, staging_root=self.staging).run()
        assert self.rows() == {number: 1 for number, _ in ROWS}


def test_p11_a_skip_does_not_let_a_restored_ledger_pass_what_a_state_has(tmp_path: Path) -> None:
    """Else transaction 3 would be committed, and 2, replayed later, would be taken for the 2 that the state has."""
    world = Restored(tmp_path)
    world.ledger.skip(2, "nobody needs it")
    world.process(3)
    single.gate(world.ledger, 3, owner="who had looked before the restore, too")
    with pytest.raises(LedgerBehindStateError, match="holds 2, which the ledger has as SKIPPED"):
        world.committer().commit(3, take_over=True)
    with pytest.raises(LedgerBehindStateError, match="airflow trident repair world"):
        world.begin("another run")
    assert world.rows() == {0: 1, 1: 1, 2: 1}
    world.repaired()


@pytest.mark.parametrize("known", [0, 1])
def test_p11_fences_that_are_given_out_again_do_not_hide_that_a_ledger_is_behind(tmp_path: Path, known: int) -> None:
    """Commits were refused, and each try gave out a fence, until those of the state were reached."""
    world = Restored(tmp_path, known)
    txid = known + 1
    world.process(txid)
    for number in range(3):
        single.gate(world.ledger, txid, owner=f"try {number}")
    with pytest.raises(LedgerBehindStateError, match="airflow trident repair world"):
        world.begin("another run")
    with pytest.raises(LedgerBehindStateError, match="airflow trident repair world"):
        world.committer().commit(txid, take_over=True)
    assert world.rows() == {0: 1, 1: 1, 2: 1}
    world.repaired()


def test_p11_a_late_transaction_is_not_taken_for_another_one_that_a_state_has(tmp_path: Path) -> None:
    """A committer without the rules above has committed 3 over 2, which is skipped; 2 is replayed now."""
    world = Restored(tmp_path)
    world.ledger.skip(2, "nobody needs it")
    world.process(3)
    ticket = single.gate(world.ledger, 3, owner="an older version")
    spec = world.topology.states["count"]
    with spec.factory.make_state(spec) as state:
        area = StagingArea(world.staging)
        state.apply(ticket, area.read(area.load(ticket.staged), "count", spec.staged))
    single.committed(world.ledger, ticket, retention=50)
    (replayed,) = world.backfill().run(Selection(first=2, last=2))
    assert replayed.outcome is BackfillOutcome.FAILED
    assert "holds 2, which the ledger has not begun to commit" in replayed.detail
    assert world.rows() == dict.fromkeys((0, 1, 2, 5, 6), 1)


def test_what_a_state_held_before_it_came_back_to_its_topology_says_nothing_of_the_ledger(tmp_path: Path) -> None:
    """It left in the middle of a commit that went on without it, and comes back with its old store."""

    def made_of(*names: str) -> Topology:
        made = Topology("world")
        stream = made.new_stream("s", FixedBatchSpout("line string", [(str(row),) for row in range(12)], 2))
        for name in names:
            stream.persistent_aggregate(SqliteState(str(tmp_path / f"{name}.db")), Count(), name)
        return made

    world = World(tmp_path / "unused")
    ledger = world.ledger = ZNodeLedger(MemoryZNodes(MemoryTree()), "world")
    world.staging, world.topology = str(tmp_path / "staging"), made_of("a", "b")

    def run() -> list[int]:
        with LocalEngine() as engine:
            runner = LocalRunner(ledger=ledger, topology=world.topology, engine=engine, staging_root=world.staging)
            return runner.run(max_transactions=1)

    assert run() == [1]
    world.begin("run-2")
    world.process(2)
    ticket, spec = single.gate(ledger, 2, owner="dies between two states"), world.topology.states["a"]
    with spec.factory.make_state(spec) as state:
        area = StagingArea(world.staging)
        state.apply(ticket, area.read(area.load(ticket.staged), "a", spec.staged))
    world.topology = made_of("b")
    accept_definition(ledger, world.topology)
    with pytest.raises(HeldError, match="may hold it"):
        take_back(ledger, world.topology, 2, owner="person", reason="a is gone")
    assert run() == [2]
    assert run() == [3]
    world.topology = made_of("a", "b")
    accept_definition(ledger, world.topology)
    assert run() == [4]
    with pytest.raises(TransitionError, match="is not behind"):
        repair(ledger, world.topology, world.staging, take_over="the ledger was deleted")
