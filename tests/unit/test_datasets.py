"""What lineage calls the sources and states: by OpenLineage's naming, and without what a connection keeps secret."""

from __future__ import annotations

import json

import pytest

from airflow_trident import (
    Count,
    DeltaState,
    DeltaTable,
    FileSink,
    FileSpout,
    FixedBatchSpout,
    IcebergTable,
    KafkaSpout,
    PostgresState,
    RedisSpout,
    RedisState,
    RedisStreamSpout,
    SqliteState,
    SqlSpout,
    SqlState,
    Topology,
)
from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.io.datasets import Dataset
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.types import Json

CONNECTIONS = {
    "PG": {"conn_type": "postgres", "host": "db", "schema": "shop", "login": "me", "password": "hidden"},
    "MY": {"conn_type": "mysql", "host": "db", "port": 3307, "schema": "shop", "password": "hidden"},
    "KEYS": {"conn_type": "redis", "host": "cache", "password": "hidden", "extra": {"db": 2}},
    "EVENTS": {"conn_type": "kafka", "extra": {"bootstrap.servers": "k1:9092,k2:9092", "sasl.password": "hidden"}},
    "CATALOG": {"conn_type": "iceberg", "host": "https://lake.example:8181/api", "password": "hidden"},
}


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in CONNECTIONS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(said))


@pytest.mark.parametrize(
    ("spout", "metadata", "expected"),
    [
        (FileSpout("/data/in/*.txt"), None, [("file", "/data/in")]),
        (FileSpout("/data/in/one.txt"), None, [("file", "/data/in/one.txt")]),
        (
            KafkaSpout(pattern="o.*", conn_id="events"),
            {"topics": {"orders": {}, "offers": {}}},
            [("kafka://k1:9092", "orders"), ("kafka://k1:9092", "offers")],
        ),
        (
            SqlSpout("pg", table="orders", key="id", fields="id long"),
            None,
            [("postgres://db:5432", "shop.public.orders")],
        ),
        (SqlSpout("my", table="orders", key="id", fields="id long"), None, [("mysql://db:3307", "shop.orders")]),
        (SqlSpout("pg", query="SELECT 1 AS id", key="id", fields="id long"), None, []),
        (DeltaSpout("s3://lake/orders", fields="id long"), None, [("s3://lake", "orders")]),
        (
            RedisStreamSpout(conn_id="keys", streams=["a", "b"], fields="n long"),
            None,
            [("redis://cache:6379", "2/a"), ("redis://cache:6379", "2/b")],
        ),
        (RedisSpout(host="h", counter="n", keys="tweet:{n}"), None, [("redis://h:6379", "0/tweet:{n}")]),
        (FixedBatchSpout("word string", ["a"], 1), None, []),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Spout) else "",
)
def test_a_batch_is_of_these_datasets(spout: Spout, metadata: Json, expected: list[tuple[str, str]]) -> None:
    assert spout.lineage_datasets(metadata) == tuple(Dataset(*one) for one in expected)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (SqliteState("/data/counts.db"), ("sqlite", "/data/counts.db/shop_count")),
        (PostgresState("pg"), ("postgres://db:5432", "shop.public.shop_count")),
        (PostgresState("pg", "counts", schema="sums"), ("postgres://db:5432", "shop.sums.counts")),
        (SqlState("my", "counts"), ("mysql://db:3307", "shop.counts")),
        (RedisState(conn_id="keys"), ("redis://cache:6379", "2/shop/count")),
        (DeltaState("/data/states"), ("file", "/data/states/shop_count")),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_state_is_this_dataset(factory: StateFactory, expected: tuple[str, str]) -> None:
    topology = Topology("shop")
    words = topology.new_stream("lines", FixedBatchSpout("word string", ["a"], 1))
    words.group_by("word").persistent_aggregate(factory, Count(), "count", name="count")
    (spec,) = topology.states.values()
    assert factory.lineage_dataset(spec) == Dataset(*expected)


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (FileSink("/data/out"), ("file", "/data/out")),
        (DeltaTable("s3://lake/sales/orders"), ("s3://lake", "sales/orders")),
        (FileSink("abfs://blobs@lake/sales"), ("abfs://lake", "sales")),
        (
            FileSink("abfss://lake@shop.dfs.core.windows.net/sales"),
            ("abfss://lake@shop.dfs.core.windows.net", "sales"),
        ),
        (IcebergTable("sales.orders", conn_id="catalog"), ("iceberg://lake.example", "sales.orders")),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_sink_is_this_dataset(factory: StateFactory, expected: tuple[str, str]) -> None:
    topology = Topology("shop")
    words = topology.new_stream("lines", FixedBatchSpout("word string", ["a"], 1))
    words.partition_persist(factory, "word", name="out")
    (spec,) = topology.states.values()
    assert factory.lineage_dataset(spec) == Dataset(*expected)
