"""Every real source in a real Airflow: sensors that wait for it, drains that read it into a database, and no secret of
any connection in what they say and record."""

from __future__ import annotations

import json
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.catalog import open_catalog
from tests.fixtures.kafka import Topic
from tests.fixtures.postgres import PASSWORD, PostgresServer
from tests.fixtures.redis import settings_of_a_new_database

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.kafka]

SECRETS = {
    "kafka": "k4fka-secret",
    "redis": "r3dis-secret",
    "delta": "d3lta-secret",
    "iceberg": "1ceberg-secret",
    "postgres": PASSWORD,
}
DAG = """
import sys
from concurrent.futures import ThreadPoolExecutor
from airflow.sdk import DAG, task
from airflow_trident import (
    Count,
    SqlSpout,
    SqlState,
    KafkaSpout,
    RedisSpout,
    RedisStreamSpout,
    Topology,
    TridentDrainOperator,
    TridentReadySensor,
)
from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.spouts.iceberg.spout import IcebergSpout
from airflow_trident.io.connections import resolve
from airflow_trident.tasks.engines import install_resolver

SPOUTS = {
    "kafka": KafkaSpout("TOPIC", conn_id="src_kafka", fields="value string"),
    "keys": RedisSpout(conn_id="src_redis", fields="id long, value string"),
    "stream": RedisStreamSpout(conn_id="src_redis", streams="s", fields="value string"),
    "jdbc": SqlSpout("src_postgres", table="SOURCE", fields="value string", settle_s=0.0),
    "delta": DeltaSpout("FOLDER", conn_id="src_delta", fields="value string"),
    "iceberg": IcebergSpout("lake.rows", conn_id="src_iceberg", fields="value string"),
}
topologies = {}
for name, spout in SPOUTS.items():
    topologies[name] = Topology(name)
    stream = topologies[name].new_stream("values", spout)
    stream.group_by("value").persistent_aggregate(SqlState("src_postgres", table=f"SOURCE_{name}"), Count(), "n")

with DAG("ready", schedule=None) as ready:
    for name, topology in topologies.items():
        TridentReadySensor(task_id=name, topology=topology, timeout=0, poke_interval=0, soft_fail=True)

with DAG("drain", schedule=None) as drain:
    for name, topology in topologies.items():
        TridentDrainOperator(task_id=name, topology=topology, engine="local")

with DAG("threads", schedule=None) as threads:
    @task
    def as_a_drain_asks():
        install_resolver()
        sys.setswitchinterval(1e-5)  # so that threads that are not kept apart meet
        wanted = ["src_kafka", "src_redis", "src_postgres", "src_delta"] * 25
        with ThreadPoolExecutor(8) as pool:
            found = [one.conn_type for one in pool.map(resolve, wanted)]
        assert found == ["kafka", "redis", "postgres", "aws"] * 25
    as_a_drain_asks()
"""
PROGRAM = """
import deltalake, psycopg, redis, sys
import pyarrow as pa
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow_trident.io.connections import resolve
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog
from sources import drain, ready, threads, topologies

VALUES = ["a", "b", "a"]
started = []
sys.addaudithook(lambda event, said: started.append(repr(said)) if event in ("subprocess.Popen", "os.exec") else None)

def states(dag):
    return {ti.task_id: ti.state for ti in dag.test().get_task_instances()}

def write():
    producer = Producer({"bootstrap.servers": resolve("src_kafka").extra["bootstrap.servers"]})
    for value in VALUES:
        producer.produce("TOPIC", value)
    assert producer.flush(30) == 0
    with redis.Redis(port=PORT, db=DB) as client:
        for number, value in enumerate(VALUES, 1):
            client.set(str(number), value)
            client.xadd("s", {"value": value})
        client.set("NEXT_WRITE", len(VALUES))
    deltalake.write_deltalake("FOLDER", pa.table({"value": VALUES}), mode="append")
    load_catalog("default", **resolve("src_iceberg").extra).load_table("lake.rows").append(pa.table({"value": VALUES}))
    where = resolve("src_postgres")
    with psycopg.connect(host=where.host, port=where.port, user=where.login, password=where.password) as connection:
        for value in VALUES:
            connection.execute("INSERT INTO SOURCE (value) VALUES (%s)", [value])

said = [states(ready)]
write()
said += [states(threads), states(ready), states(drain), states(ready)]
found, kept = {}, []
for name, topology in topologies.items():
    (spec,) = topology.states.values()
    with spec.factory.make_state(spec) as state:
        found[name] = sorted([key[0], value[0]] for key, value in state.items())
    with ZooKeeperHook().get_ledger(name) as ledger:
        kept += [repr(one) for one in ledger.transactions()]
    kept += [repr(topology.compile()), topology.spouts["values"].describe(), repr(spec.factory)]
with create_session() as session:
    kept += [repr(one.value) for one in session.query(XComModel)]
tell({"states": said, "found": found, "kept": kept, "started": started})
"""
COUNTS = [["a", 2], ["b", 1]]


def connections(
    topic: Topic, postgres: PostgresServer, redis: dict[str, Any], catalog: dict[str, str]
) -> dict[str, str]:
    written: dict[str, Any] = {
        "kafka": {
            "conn_type": "kafka",
            "extra": {"bootstrap.servers": topic.broker.hosts, "client.id": SECRETS["kafka"]},
        },
        "redis": {
            "conn_type": "redis",
            "host": "127.0.0.1",
            "port": redis["port"],
            "login": "default",
            "password": SECRETS["redis"],
            "extra": {"db": redis["db"]},
        },
        "delta": {"conn_type": "aws", "password": SECRETS["delta"], "extra": {"region_name": "here"}},
        "iceberg": {"conn_type": "iceberg", "login": "me", "password": SECRETS["iceberg"], "extra": catalog},
        "postgres": json.loads(postgres.as_json),
    }
    return {f"AIRFLOW_CONN_SRC_{name.upper()}": json.dumps(connection) for name, connection in written.items()}


def test_sensors_wait_for_every_source_drains_read_it_once_and_no_secret_is_said_or_recorded(
    airflow_home: AirflowHome, topic: Topic, postgres: PostgresServer
) -> None:
    topic.create(2)
    redis = settings_of_a_new_database()
    source = topic.name.replace("-", "_")
    table = airflow_home.folder / "values"
    deltalake.write_deltalake(str(table), pa.table({"value": pa.array([], pa.string())}))
    folder = airflow_home.folder
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": f"file://{folder}/lake"}
    lake = open_catalog(**catalog)
    lake.create_namespace("lake")
    lake.create_table("lake.rows", schema=pa.schema([("value", pa.string())]))
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {source} (id bigserial, value text)".encode())
    names = {"TOPIC": topic.name, "SOURCE": source, "FOLDER": table, "PORT": redis["port"], "DB": redis["db"]}
    dag, program = DAG, PROGRAM
    for name, value in names.items():
        dag, program = dag.replace(name, str(value)), program.replace(name, str(value))
    airflow_home.write_dag("sources", dag)
    airflow_home.options |= {
        **connections(topic, postgres, redis, catalog),
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
    }
    told = airflow_home.python(program)
    print("\n".join(line for line in airflow_home.output.splitlines() if "[debug " not in line))
    of_runs = [set(one.values()) for one in told["states"]]
    assert of_runs == [{"skipped"}, {"success"}, {"success"}, {"success"}, {"skipped"}]
    assert told["found"] == dict.fromkeys(("kafka", "keys", "stream", "jdbc", "delta", "iceberg"), COUNTS)
    assert len(told["kept"]) >= 4 * len(told["found"])
    said = [*airflow_home.output.splitlines(), *told["kept"], *told["started"]]
    shown = [line for line in said if any(secret in line for secret in SECRETS.values())]
    # At this level Airflow itself says what it shall mask; nobody else may say it.
    masked = [line for line in shown if "msg=MaskSecret(" in line]
    assert [line for line in shown if line not in masked] == []
    assert [name for name, secret in SECRETS.items() if not any(secret in line for line in masked)] == []
