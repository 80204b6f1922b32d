"""`repair` where a spout is opaque: each attempt chooses its batch anew, and states may have batches of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.contracts.state import Marker
from airflow_trident.errors import CorruptError, LedgerBehindStateError
from airflow_trident.ledger.memory_znodes import MemoryTree
from airflow_trident.ledger.recovery import KnownTransactions, seed_from
from airflow_trident.protocol.records import Claim, Status, TxRecord
from airflow_trident.runtime.repair import repair
from tests.fixtures.repairs import NAME, RepairWorld, ledger_on
from tests.fixtures.runtime import copy_of
from tests.fixtures.spout import OpaqueFolderSpout, append

COUNTED = [dict.fromkeys(range(8), 1)] * 2
"""Both states, when each row came once."""


@pytest.fixture
def opaque(tmp_path: Path) -> RepairWorld:
    """Two states that count rows of an opaque spout, `at_once` of them in each transaction."""
    append(tmp_path / "in", "part", [(number, "row") for number in range(8)])

    def make(at_once: int = 2) -> Topology:
        topology = Topology(NAME)
        rows = topology.new_stream("rows", OpaqueFolderSpout(tmp_path / "in", at_once=at_once)).group_by("id")
        for name in ("first", "second"):
            rows.persistent_aggregate(SqliteState(str(tmp_path / f"{name}.db")), Count(), name)
        return topology

    return RepairWorld(tmp_path, make)


def commit_two_batches(world: RepairWorld, txid: int) -> None:
    """Of one transaction, which is not COMMITTED: both states have the first batch, then one has the other."""
    world.process(txid)
    world.die_after("second", txid)
    world.forget_batches()
    world.die_after("first", txid, at_once=3)


def test_an_opaque_transaction_that_only_one_state_has_is_replaced_there_by_another_attempt(
    opaque: RepairWorld,
) -> None:
    opaque.begin("run")
    for _ in range(3):
        opaque.process(1)
    opaque.die_after("first", 1)
    lost = ledger_on(MemoryTree())
    seed = repair(lost, opaque.make(), opaque.staging, take_over="the ledger was deleted")
    assert (seed.unfinished is not None, seed.attempt) == (True, 2)
    opaque.replay_and_go_on(lost, 1)
    assert opaque.contents() == COUNTED


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("txid", [1, 2])
def test_two_batches_of_an_opaque_transaction_are_both_replaced_if_it_is_known_where_it_began(
    opaque: RepairWorld, txid: int, begun: bool
) -> None:
    """Both states have it, and nothing above it: only the ledger that is there knows where it began."""
    opaque.begin("run-1")
    backup = copy_of(opaque.tree)
    if txid == 2:
        opaque.process(1)
        opaque.commit(1)
        backup = copy_of(opaque.tree)
        opaque.begin("run-2")
    if begun:
        backup = copy_of(opaque.tree)
    commit_two_batches(opaque, txid)
    restored = ledger_on(backup)
    seed = repair(restored, opaque.make(), opaque.staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.unfinished_txids, seed.attempt) == (txid - 1, (txid,), 1)
    assert restored.view(0).exceptions.unfinished == (txid,)
    opaque.replay_and_go_on(restored, txid)
    assert opaque.contents() == COUNTED


def test_two_batches_are_refused_where_it_is_not_known_where_the_transaction_began(opaque: RepairWorld) -> None:
    opaque.run("run-1")
    opaque.begin("run-2")
    commit_two_batches(opaque, 2)
    before, lost, another_life = opaque.contents(), ledger_on(MemoryTree()), ledger_on(MemoryTree())
    with pytest.raises(LedgerBehindStateError):
        opaque.begin("run-1", another_life)
    assert another_life.view(0).topology.incarnation, "registered, in a life of which the states know nothing"
    for ledger in (lost, another_life):
        with pytest.raises(CorruptError, match="different batches of transaction 2"):
            repair(ledger, opaque.make(), opaque.staging, take_over="the ledger was deleted")
    assert opaque.contents() == before


@pytest.mark.parametrize("known", [True, False])
def test_what_was_skipped_below_does_not_come_again_if_the_ledger_that_is_there_knows_where_it_ended(
    opaque: RepairWorld, known: bool
) -> None:
    opaque.run("run-1")
    opaque.begin("run-2")
    opaque.ledger.skip(2, "rows 2 and 3 are poison")
    opaque.begin("run-3")
    opaque.process(3)
    backup = copy_of(opaque.tree)
    opaque.die_after("first", 3)
    restored = ledger_on(backup if known else MemoryTree())
    seed = repair(restored, opaque.make(), opaque.staging, take_over="the ledger was deleted")
    assert (seed.committed, seed.unfinished_txids, seed.lost) == (2, (3,), ((2, 2),))
    opaque.replay_and_go_on(restored, 3)
    again = {} if known else {2: 1, 3: 1}
    assert opaque.contents() == [dict.fromkeys((0, 1, 4, 5, 6, 7), 1) | again] * 2


@pytest.mark.parametrize(
    ("incarnation", "committed", "certain"), [("x", 4, True), ("another life", 4, False), ("x", 3, False)]
)
def test_only_the_transaction_below_in_the_same_life_says_where_it_began(
    incarnation: str, committed: int, certain: bool
) -> None:
    below = TxRecord(
        txid=committed, status=Status.COMMITTED, attempt=0, metadata={"s": 3}, claim=Claim(key="run"), op="op"
    )
    newer = Marker(incarnation="x", high=5, fence=9, position={"s": 7}, attempt=2)
    held = {"a": newer, "b": replace(newer, position={"s": 6}, attempt=1)}
    known = KnownTransactions(incarnation=incarnation, committed=below)
    if not certain:
        with pytest.raises(CorruptError, match="different batches of transaction 5"):
            seed_from(held, known)
        return
    seed = seed_from(held, known)
    assert seed is not None
    assert (seed.committed, dict(seed.position), seed.attempt) == (4, {"s": 3}, 2)


FIRST = Marker(incarnation="x", high=1, fence=9, position={"s": 7}, attempt=2)


@pytest.mark.parametrize(
    ("a", "b", "committed", "presumed"),
    [
        (FIRST, replace(FIRST, attempt=1), 0, False),
        (FIRST, FIRST, 1, False),
        (replace(FIRST, high=5), replace(FIRST, high=5, attempt=1), 5, True),
    ],
)
def test_equal_positions_of_different_attempts_are_equal_batches_only_if_nothing_can_replace_them(
    a: Marker, b: Marker, committed: int, presumed: bool
) -> None:
    """What is COMMITTED every state has from one attempt, and a source may give other rows up to the same position."""
    seed = seed_from({"a": a, "b": b})
    assert seed is not None
    assert (seed.committed, len(seed.unfinished_txids), seed.presumed) == (committed, a.high - committed, presumed)
    if presumed:
        assert dict(seed.position) == {"s": 7}


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_the_position_of_what_is_replaced_is_that_of_the_newest_attempt(names: str) -> None:
    """The next begin compares the record with the newest batch, before it is replayed."""
    older, newer = replace(FIRST, position={"s": 6}, attempt=1), FIRST
    seed = seed_from(dict(zip(names, (older, newer), strict=True)))
    assert seed is not None
    assert (seed.attempt, seed.unfinished) == (2, {"s": 7})
