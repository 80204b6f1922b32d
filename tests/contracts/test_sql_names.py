"""What version 0.1 called JdbcState and JdbcSpout: the names go on working, and so do ledgers that have them."""

from __future__ import annotations

import pytest

import airflow_trident
from airflow_trident import Count, SqlSpout, SqlState, Topology
from airflow_trident.errors import DefinitionChangedError
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.paths import DEFAULT_ROOT, topology_path
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Set


def build(table: str) -> Topology:
    topology = Topology("shops")
    orders = topology.new_stream("orders", SqlSpout("shop_db", table="orders", fields="shop string"))
    orders.group_by("shop").persistent_aggregate(SqlState("shop_db", table=table), Count(), "n")
    return topology


def test_the_old_names_are_the_same_classes() -> None:
    assert airflow_trident.JdbcState is SqlState
    assert airflow_trident.JdbcSpout is SqlSpout


def test_a_topology_that_version_0_1_registered_needs_no_consent() -> None:
    znodes = MemoryZNodes()
    ZNodeLedger(znodes, "shops").register(build("counts").definition())
    path = topology_path(DEFAULT_ROOT, "shops")
    node = znodes.read([path]).nodes[path]
    assert node is not None
    old = node.data.replace(b"SqlState(", b"JdbcState(").replace(b"SqlSpout", b"JdbcSpout")
    assert old.count(b"Jdbc") == 2
    znodes.multi([Set(path, old, node.version)])

    record = ZNodeLedger(znodes, "shops").register(build("counts").definition())
    assert record.definition == build("counts").definition()
    with pytest.raises(DefinitionChangedError, match=r": state n: SqlState\(shop_db, counts\).* -> SqlState"):
        ZNodeLedger(znodes, "shops").register(build("t2").definition())
