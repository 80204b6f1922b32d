"""P9 with Kafka, Delta Lake, PostgreSQL, Redis, JDBC: killed at one crash point after the other, each record is counted
once."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.kafka import Topic
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.program import run_program
from tests.fixtures.redis import settings_of_a_new_database, shared_server
from tests.programs.lake import KINDS, REDIS, topology
from tools.kills import VARIABLE

VALUES = [f"v{number % 7}" for number in range(20)]
"""Of each of three partitions."""
ORDERS = [(customer, cents) for a_cents in (1, 10, 100) for customer, cents in (("a", a_cents), ("b", 2))]
pytestmark = [pytest.mark.zookeeper, pytest.mark.kafka]


def write_to_kafka_and_delta(topic: Topic, folder: Path) -> None:
    topic.create(3)
    for partition in range(3):
        topic.send([(None, value) for value in VALUES], partition=partition)
    topic.transaction([(None, "v0")] * 9, partition=1, commit=False)
    for version in range(0, len(ORDERS), 2):
        names = ("customer", "cents")
        rows = [dict(zip(names, order, strict=True)) for order in ORDERS[version : version + 2]]
        write_deltalake(folder / "orders", pa.Table.from_pylist(rows), mode="append")


def write_to_redis_and_postgres(topic: Topic, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    redis = settings_of_a_new_database()
    monkeypatch.setenv(f"AIRFLOW_CONN_{REDIS.upper()}", f"redis://{redis['host']}:{redis['port']}/?db={redis['db']}")
    with shared_server().client(redis["db"]) as client:
        for partition in range(3):
            for number, value in enumerate(VALUES, 1):
                client.set(f"{partition}:{number}", value)
                client.xadd(f"s{partition}", {"value": value})
            client.set(f"{partition}:last", len(VALUES))
    table = topic.name.replace("-", "_")
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {table} (id bigserial, customer text, cents bigint)".encode())
        for order in ORDERS:
            connection.execute(f"INSERT INTO {table} (customer, cents) VALUES (%s, %s)".encode(), order)


@pytest.mark.parametrize("kind", KINDS)
def test_p9_killed_at_every_point_one_after_the_other_each_record_counts_once(
    kind: str,
    topic: Topic,
    postgres: PostgresServer,
    zookeeper: EmbeddedZooKeeper,
    ledger_root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if kind in KINDS[2:]:
        write_to_redis_and_postgres(topic, postgres, monkeypatch)
    else:
        write_to_kafka_and_delta(topic, tmp_path)
    where = [zookeeper.hosts, ledger_root, str(tmp_path), topic.broker.hosts, topic.name, kind]
    points = ",".join(f"{point}@2:{tmp_path}/{point}" for point in Milestone)

    def run() -> int:
        return run_program("lake", *where, **{VARIABLE: points})

    kills = 0
    while run() != 0:
        kills += 1
        assert kills <= len(Milestone)
    assert kills >= 8, "the points of a run in one process"
    made = topology(tmp_path, topic.broker.hosts, topic.name, kind)
    found = {}
    for name, spec in made.states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = {key: value for (key,), (value,) in state.items()}
    assert found.pop("total") == {"a": 111, "b": 6}
    counts = {f"v{number}": 9 if number < 6 else 6 for number in range(7)}
    assert found == {name: counts for name in made.spouts if name != "orders"}
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), made.name, root=ledger_root) as ledger:
        assert {tx.status for tx in ledger.transactions()} == {Status.COMMITTED}
        assert ledger.view(0).next_txid > 3
