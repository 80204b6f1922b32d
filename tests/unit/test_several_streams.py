"""Several spouts in one batch group: each transaction has what each of them has, committed to all states at once."""

from __future__ import annotations

from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, JoinType, MemoryState, Sum, Topology
from airflow_trident.contracts.state import StateSpec
from airflow_trident.engine.local import LocalEngine
from airflow_trident.functions import MapGet
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.expressions import col
from airflow_trident.runtime.local import LocalRunner

Rows = dict[tuple[object, ...], tuple[object, ...]]


def items(spec: StateSpec) -> Rows:
    with spec.factory.make_state(spec) as state:
        return dict(state.items())


def test_streams_are_joined_and_merged_transaction_by_transaction(tmp_path: Path) -> None:
    """The second stream has data for two transactions, the first for three."""
    topology = Topology("shop")
    store = MemoryState("several-streams")
    sold = [("fig", 1), ("pear", 2), ("fig", 3), ("kiwi", 4), ("fig", 5), ("pear", 6)]
    orders = topology.new_stream("orders", FixedBatchSpout("item string, n long", sold, max_batch_size=2))
    prices = topology.new_stream(
        "prices", FixedBatchSpout("code string, price long", [("fig", 10), ("kiwi", 100)], max_batch_size=1)
    )
    joined = topology.join([orders, prices], ["item", "code"], "item, n, price", [JoinType.INNER, JoinType.OUTER])
    paid = (
        joined.each(col("n") * col("price"), "paid")
        .group_by("item")
        .persistent_aggregate(store, ("paid", Sum(), "paid"), (Count(), "orders"), name="paid")
    )
    missing = joined.filter(col("price").is_null()).group_by("item").persistent_aggregate(store, "n", Sum(), "unpriced")
    seen = topology.merge([orders.project("item"), prices.project("code")], "name")
    names = seen.group_by("name").persistent_aggregate(store, Count(), "times")
    batches = seen.aggregate(Count(), "size").group_by("size").persistent_aggregate(store, Count(), "batches")

    with MemoryLedger("shop") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path))
        assert runner.run() == [1, 2, 3]

    assert items(paid.spec) == {("fig",): (10, 3), ("pear",): (0, 2), ("kiwi",): (400, 1)}
    assert items(missing.spec) == {("pear",): (8,), ("fig",): (8,)}
    assert items(names.spec) == {("fig",): (4,), ("pear",): (2,), ("kiwi",): (2,)}
    assert items(batches.spec) == {(3,): (2,), (2,): (1,)}


def test_a_lookup_finds_what_any_transaction_brought_where_a_join_sees_one(tmp_path: Path) -> None:
    """The prices come in other transactions than most orders; no file need be in step with another."""
    topology = Topology("lookups")
    store = MemoryState("lookups")
    sold = [(1, "fig"), (2, "pear"), (3, "fig"), (4, "kiwi"), (5, "pear")]
    listed = [("fig", 10, 1), ("pear", 6, 2), ("pear", 5, 1), ("kiwi", 9, 1)]
    orders = topology.new_stream("orders", FixedBatchSpout("order_id long, sku string", sold, max_batch_size=1))
    prices = topology.new_stream(
        "prices", FixedBatchSpout("code string, price long, valid_from long", listed, max_batch_size=3)
    )
    known = prices.partition_persist(store, "code, price", keys="code", order_by="valid_from", name="prices")
    priced = orders.state_query(known, "sku", MapGet(), "price", after_commit=True)
    found = priced.partition_persist(store, "order_id, price", keys="order_id", name="orders")
    assert topology.compile().notes == ()

    with MemoryLedger("lookups") as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path)).run()
    assert items(found.spec) == {(1,): (10,), (2,): (6,), (3,): (10,), (4,): (9,), (5,): (6,)}


def test_a_join_of_different_spouts_is_noted_and_one_of_a_single_spout_is_not() -> None:
    def notes(apart: bool) -> tuple[str, ...]:
        topology = Topology("noted")
        one = topology.new_stream("one", FixedBatchSpout("a long, b long", []))
        other = (
            topology.new_stream("other", FixedBatchSpout("a long, b long", [])) if apart else one.filter(col("b") > 0)
        )
        joined = topology.join([one, other], ["a", "a"], "a, b, c")
        joined.persistent_aggregate(MemoryState("noted"), Count(), "n")
        return topology.compile().notes

    assert notes(apart=False) == ()
    (note,) = notes(apart=True)
    assert note.startswith("join-")
    assert "joins what one transaction has of the streams one, other: a tuple that comes late meets none" in note
