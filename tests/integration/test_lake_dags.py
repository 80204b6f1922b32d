"""The examples with Delta Lake and Kafka, as they are: real Airflow, Spark, and servers."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.kafka import KafkaBroker, Topic
from tests.fixtures.postgres import PostgresServer
from tests.integration.test_example_dags import examples  # noqa: F401 - a fixture

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.kafka]

RUN = """
def run(dag):
    done = dag.test()
    return [done.state, {ti.task_id: ti.state for ti in done.get_task_instances()}]
def contents(topology):
    found = {}
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = {key[0]: value[0] for key, value in state.items()}
    return found
"""


def test_files_to_delta_sums_what_appears_and_nothing_twice(examples: AirflowHome) -> None:  # noqa: F811
    orders = examples.folder / "demo" / "orders"
    orders.mkdir()
    (orders / "1.csv").write_text("customer,cents\nann,120\nbob,5\nann,30\n")
    (orders / "2.csv").write_text("customer,cents\nbob,7\n")
    program = """
import files_to_delta
tell({"first": run(files_to_delta.dag), "again": run(files_to_delta.dag), "found": contents(files_to_delta.topology)})
"""
    told = examples.python(RUN + program)
    assert told["first"][0] == "success"
    assert told["again"][1]["files_to_delta.coordinate"] == "skipped"
    assert told["found"] == {"total_cents": {"ann": 150, "bob": 12}, "orders": {"ann": 2, "bob": 2}}


def test_kafka_to_postgres_waits_for_records_and_counts_each_once(
    examples: AirflowHome,  # noqa: F811
    kafka: KafkaBroker,
    postgres: PostgresServer,
) -> None:
    topic = Topic(kafka, "page-views").create(2)
    for partition in (0, 1):
        topic.send([(None, page) for page in ("/", "/about", "/")], partition=partition)
    topic.transaction([(None, "/")] * 5, commit=False)
    examples.options |= {
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(
            {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.hosts, "client.id": "nobodys-business"}}
        ),
        "AIRFLOW_CONN_POSTGRES_DEFAULT": postgres.as_json,
    }
    program = """
import kafka_to_postgres
tell({"first": run(kafka_to_postgres.dag), "found": contents(kafka_to_postgres.topology)})
"""
    told = examples.python(RUN + program)
    assert (told["first"][0], told["first"][1]["ready"]) == ("success", "success")
    assert told["found"] == {"views": {"/": 4, "/about": 2}}
    assert "nobodys-business" not in examples.output
