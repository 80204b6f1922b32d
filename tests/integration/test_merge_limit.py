"""A batch that is too large for a state which takes it whole is an error before anything is committed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident import Count, DeltaTable, FixedBatchSpout, MemoryState, ReducerAggregator, SqliteState, Topology
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.interfaces import CombinerAggregator
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.merge_limit import require_mergeable
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, TableRewrite
from tests.fixtures.object_store import CONN_ID, Lake

WORDS = ["a", "b", "c", "d", "e", "f"]


class Last(ReducerAggregator[str]):
    def init(self) -> str:
        return ""

    def reduce(self, current: str, *values: str) -> str:
        return values[0]


def topology_of(
    state: StateFactory,
    what: ReducerAggregator[str] | CombinerAggregator[int],
    batch: int,
    *,
    told: StateFactory | None = None,
) -> Topology:
    topology = Topology("large")
    words = topology.new_stream("words", FixedBatchSpout("word string", WORDS, batch)).group_by("word")
    fields = () if isinstance(what, CombinerAggregator) else ("word",)
    kept = words.persistent_aggregate(state, *fields, what, "kept")
    if told is not None:
        kept.new_values_stream().group_by("word").persistent_aggregate(told, Count(), "again")
    return topology


def kept(topology: Topology) -> dict[str, object]:
    spec = topology.states["kept"]
    with spec.factory.make_state(spec) as state:
        return {key[0]: value[0] for key, value in state.items()}


@pytest.mark.parametrize("place", ["a folder", "a bucket"])
def test_it_is_refused_before_it_is_committed_and_goes_on_where_the_limit_is_raised(
    place: str, tmp_path: Path, lake: Lake
) -> None:
    topology, ledger = topology_of(SqliteState(str(tmp_path / "s.db")), Last(), 6), MemoryLedger("l")
    staging = str(tmp_path) if place == "a folder" else f"s3://{CONN_ID}@{lake.name}/staging"
    ledger.register(topology.definition())
    coordinate(ledger, topology, [Claim(key="r")])
    few, enough = (Attempts(owner="test", last_try=True, max_merge_rows=most) for most in (5, 6))
    with pytest.raises(ConfigurationError) as refused:
        process(ledger, topology, 1, LocalEngine(), staging, few)
    assert refused.value.message == (
        "transaction 1 has 6 rows for state kept, which takes its batch whole: more than the 5 of [trident] "
        "max_merge_rows"
    )
    assert "Raise max_merge_rows" in refused.value.cure
    assert [tx.status for tx in ledger.transactions()] == [Status.FAILED]
    process(ledger, topology, 1, LocalEngine(), staging, enough)
    Committer(ledger=ledger, topology=topology, staging_root=staging, attempts=enough, engine=LocalEngine).commit(1)
    assert kept(topology) == {word: word for word in WORDS}


@pytest.mark.parametrize("case", ["in pieces", "in memory", "told to others"])
def test_what_goes_in_piece_by_piece_has_no_limit(tmp_path: Path, case: str) -> None:
    """Unless the commit phase reads it itself."""
    store = MemoryState() if case == "in memory" else SqliteState(str(tmp_path / "s.db"))
    topology = topology_of(store, Count(), 6, told=MemoryState() if case == "told to others" else None)
    ledger = MemoryLedger("l")
    ledger.register(topology.definition())
    coordinate(ledger, topology, [Claim(key="r")])
    attempts = Attempts(owner="test", max_merge_rows=5)
    if case == "in pieces":
        process(ledger, topology, 1, LocalEngine(), str(tmp_path), attempts)
        return
    with pytest.raises(ConfigurationError, match="6 rows for state kept"):
        process(ledger, topology, 1, LocalEngine(), str(tmp_path), attempts)


def test_what_is_too_large_together_goes_alone(tmp_path: Path) -> None:
    topology, said = topology_of(SqliteState(str(tmp_path / "s.db")), Last(), 1), list[str]()
    done = Drain(
        ledger=MemoryLedger("large"),
        topology=topology,
        engine=LocalEngine(),
        staging_root=str(tmp_path / "staging"),
        attempts=Attempts(owner="drain", max_merge_rows=2),
        claim=Claim(key="drain"),
        limits=DrainLimits(group=3),
        progress=said.append,
    ).run()
    assert done.committed == tuple(range(1, 7))
    assert kept(topology) == {word: word for word in WORDS}
    assert any("transactions 1 to 3 together have 3 rows for state kept" in line for line in said), said


def test_rows_that_replace_others_have_a_limit_where_the_processing_phase_did_not_look(tmp_path: Path) -> None:
    """Then the committer has the keys of all of them in memory."""
    topology = Topology("large")
    rows = topology.new_stream("rows", FixedBatchSpout("id long, word string", [], 1))
    rows.persist_table(DeltaTable(str(tmp_path)), mode="rewrite", keys="id", name="rows")
    plan = topology.compile()
    looked = Manifest(
        slot=Slot(topology="large", incarnation="i", txid=1, attempt=0),
        files=(StagedFile(state="rows", path="any", rows=6, bytes=1),),
        rows_read=6,
        sinks=plan.staged_fields,
        rewrites=(TableRewrite(state="rows", version="1"),),
    )
    require_mergeable(looked, plan, 5)
    with pytest.raises(ConfigurationError, match="transaction 1 has 6 rows for state rows"):
        require_mergeable(replace(looked, rewrites=()), plan, 5)
