"""Runs streams of real sources to their end in one process, with states of one kind:
``python -m tests.programs.lake HOSTS ROOT FOLDER BROKER TOPIC KIND``. Crash tests kill it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from airflow_trident import (
    Count,
    DeltaState,
    KafkaSpout,
    RedisSpout,
    RedisState,
    RedisStreamSpout,
    SqlSpout,
    Sum,
    Topology,
)
from airflow_trident.contracts.spout import Spout
from airflow_trident.contracts.state import StateFactory
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts.delta.spout import DeltaSpout
from tests.fixtures.postgres import CONN_ID, postgres_state
from tools import kills

REDIS = "lake_redis"
KINDS = (
    "transactional, into PostgreSQL",
    "opaque, into Delta Lake",
    "Redis and JDBC, into Redis",
    "opaque Redis and JDBC, into Redis",
)
"""The first two are for Kafka and Delta Lake."""


def topology(folder: Path, broker: str, topic: str, kind: str) -> Topology:
    made = Topology("lake")
    spouts, states = _parts(folder, broker, topic, kind)
    for name, spout in spouts.items():
        stream = made.new_stream(name, spout)
        if name == "orders":
            stream.group_by("customer").persistent_aggregate(states, "cents", Sum(), "total")
        else:
            stream.group_by("value").persistent_aggregate(states, Count(), name)
    return made


def _parts(folder: Path, broker: str, topic: str, kind: str) -> tuple[dict[str, Spout], StateFactory]:
    """The spouts, and the states' place. Records have values; orders have customers and cents."""
    orders = "customer string, cents long"
    if kind in KINDS[2:]:
        keys: dict[str, Any] = {"keys": "{partition}:{n}", "counter": "{partition}:last", "num_partitions": 3}
        redis: dict[str, Any] = {"conn_id": REDIS, "opaque": kind != KINDS[2], "max_rows": 30}
        return {
            "records": RedisSpout(**redis, **keys, fields="part int, n long, value string"),
            "entries": RedisStreamSpout(**redis, streams=("s0", "s1", "s2"), fields="value string"),
            "orders": SqlSpout(CONN_ID, table=topic.replace("-", "_"), fields=orders, max_rows=2, settle_s=0.0),
        }, RedisState(conn_id=REDIS)
    limits: dict[str, Any] = {"max_rows": 30, "split_rows": 10, "opaque": kind != KINDS[0]}
    states = postgres_state(folder) if kind == KINDS[0] else DeltaState(str(folder / "states"), fold_at=3)
    return {
        "records": KafkaSpout(topic, bootstrap_servers=broker, fields="value string", **limits),
        "orders": DeltaSpout(str(folder / "orders"), fields=orders, start=0, max_files=1),
    }, states


def main(hosts: str, root: str, folder: str, broker: str, topic: str, kind: str) -> None:
    made = topology(Path(folder), broker, topic, kind)
    with open_ledger(ZooKeeperSettings(hosts=hosts), made.name, root=root) as ledger, LocalEngine() as engine:
        LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=f"{folder}/staging").run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
