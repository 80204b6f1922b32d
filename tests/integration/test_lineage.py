"""What Airflow's provider for OpenLineage sends of our tasks, in a real Airflow (``dag.test()``), on a real ledger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.http_server import serving

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper]

DAG = """
from pathlib import Path
from airflow.sdk import DAG
from airflow_trident import (
    Count, FileSink, FileSpout, Function, SqliteState, Topology, TridentBackfillOperator, TridentDrainOperator,
    trident_transaction,
)

class Fails(Function):
    def execute(self, line):
        if Path("FOLDER/fails").exists():
            raise ValueError("told to fail")
        yield line

topology = Topology("words")
lines = topology.new_stream("lines", FileSpout("FOLDER/in/*.txt", max_files=1))
words = lines.each("line", Fails(), "word string")
words.group_by("word").persistent_aggregate(SqliteState("FOLDER/words.db"), Count(), "count")
words.project("word").partition_persist(FileSink("FOLDER/out"), "word", name="out")

with DAG("words", schedule=None) as dag:
    trident_transaction(topology, engine="local", turn_sensor=False)

with DAG("drained", schedule=None) as drained:
    TridentDrainOperator(task_id="drain", topology=topology, engine="local")

with DAG("again", schedule=None) as again:
    TridentBackfillOperator(task_id="backfill", topology=topology, engine="local")
"""
INJECTED = """
from airflow.sdk import DAG
from airflow_trident import Count, FixedBatchSpout, SqliteState, Topology, TridentDrainOperator

def told(df):
    conf = df.sparkSession.conf
    names = ("parentRunId", "parentJobName", "parentJobNamespace", "transport.type", "transport.url")
    rows = [(name, conf.get(f"spark.openlineage.{name}", "")) for name in names]
    return df.sparkSession.createDataFrame(rows, "name string, value string")

topology = Topology("told")
lines = topology.new_stream("lines", FixedBatchSpout("word string", ["a"], 1))
lines.transform(told, "name string, value string").partition_persist(
    SqliteState("FOLDER/told.db"), "name, value", keys="name", name="told")

with DAG("told", schedule=None) as dag:
    TridentDrainOperator(task_id="drain", topology=topology, openlineage_inject_parent_job_info=True)
"""


class Backend(ThreadingHTTPServer):
    """Takes events as those of Marquez and others do."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.events: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Backend

    def do_POST(self) -> None:
        self.server.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on the test's output."""


@pytest.fixture
def backend() -> Iterator[Backend]:
    with serving(Backend()) as server:
        yield server


def write(home: AirflowHome, text: str) -> Path:
    folder = home.folder
    (folder / "in").mkdir()
    for number in (1, 2, 3):
        (folder / "in" / f"{number}.txt").write_text("a\nb\n" * number)
    home.write_dag("words", text.replace("FOLDER", str(folder)))
    transport = {"type": "file", "log_file_path": str(folder / "lineage.jsonl"), "append": True}
    home.options |= {
        "PYTHONPATH": f"{home.dags}:{home.environment['PYTHONPATH']}",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "test",
    }
    return folder


def ended(home: AirflowHome) -> dict[str, dict[str, Any]]:
    """Task -> the last event of its end."""
    events = [json.loads(line) for line in (home.folder / "lineage.jsonl").read_text().splitlines()]
    return {one["job"]["name"]: one for one in events if one["eventType"] != "START"}


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def test_a_backend_is_told_which_batch_went_where_by_the_tasks_that_read_and_committed_it(
    airflow_home: AirflowHome,
) -> None:
    folder = write(airflow_home, DAG)
    airflow_home.python("from words import dag, drained\ndag.test()\ndrained.test()\ntell(True)")
    told = ended(airflow_home)
    sources = [("file", f"{folder}/in")]
    states = [("sqlite", f"{folder}/words.db/words_count"), ("file", f"{folder}/out")]
    for task, inputs, outputs, status, attempt in (
        ("words.words.coordinate", [], [], "PROCESSING", None),
        ("words.words.emit", sources, [], "PROCESSED", 0),
        ("words.words.commit", sources, states, "COMMITTED", 0),
    ):
        event = told[task]
        assert event["eventType"] == "COMPLETE"
        assert (names(event["inputs"]), names(event["outputs"])) == (inputs, outputs)
        facet = event["run"]["facets"]["trident_transactions"]
        assert (facet["topology"], facet["count"]) == ("words", 1)
        (transaction,) = facet["transactions"]
        assert (transaction["txid"], transaction["status"], transaction.get("attempt")) == (1, status, attempt)
        if inputs:
            assert transaction["rows_read"] == 2
            assert transaction["rows"] == {"count": 2, "out": 2}
            streams = event["inputs"][0]["inputFacets"]["trident_batch"]["streams"]
            assert [file[0] for file in streams["lines"]["last"]["files"]] == ["1.txt"]
    drained = told["drained.drain"]
    assert (names(drained["inputs"]), names(drained["outputs"])) == (sources, states)
    (source,), (count, _) = drained["inputs"], drained["outputs"]
    batch = source["inputFacets"]["trident_batch"]["streams"]["lines"]
    assert (batch["first_txid"], batch["last_txid"]) == (2, 3)
    assert source["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert count["outputFacets"]["outputStatistics"]["rowCount"] == 4
    assert [one["name"] for one in count["facets"]["schema"]["fields"]] == ["word", "count"]
    assert [one["txid"] for one in drained["run"]["facets"]["trident_transactions"]["transactions"]] == [2, 3]


def test_of_a_transaction_that_failed_no_output_is_told_until_its_backfill_has_committed_it(
    airflow_home: AirflowHome,
) -> None:
    folder = write(airflow_home, DAG)
    (folder / "fails").touch()
    airflow_home.python("from words import dag\ndag.test()\ntell(True)")
    failed = ended(airflow_home)["words.words.emit"]
    assert (failed["eventType"], failed["inputs"], failed["outputs"]) == ("FAIL", [], [])
    (transaction,) = failed["run"]["facets"]["trident_transactions"]["transactions"]
    assert (transaction["txid"], transaction["status"]) == (1, "FAILED")
    (folder / "fails").unlink()
    airflow_home.python("from words import again\nagain.test()\ntell(True)")
    backfilled = ended(airflow_home)["again.backfill"]
    assert len(backfilled["inputs"]) == 1
    assert len(backfilled["outputs"]) == 2
    (transaction,) = backfilled["run"]["facets"]["trident_transactions"]["transactions"]
    assert (transaction["txid"], transaction["attempt"], transaction["status"]) == (1, 1, "COMMITTED")


@pytest.mark.spark
def test_spark_is_given_the_run_of_its_task_as_its_parent_and_where_to_send_its_events(
    airflow_home: AirflowHome, backend: Backend
) -> None:
    write(airflow_home, INJECTED)
    url = f"http://127.0.0.1:{backend.server_address[1]}"
    airflow_home.options |= {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": url}),
        "AIRFLOW__OPENLINEAGE__SPARK_INJECT_TRANSPORT_INFO": "True",
        "NO_PROXY": "127.0.0.1",
    }
    held = airflow_home.python(
        """
from words import dag, topology
dag.test()
(spec,) = topology.states.values()
with spec.factory.make_state(spec) as state:
    tell({key[0]: value[0] for key, value in state.items()})
"""
    )
    (event,) = [one for one in backend.events if one["job"]["name"] == "told.drain" and one["eventType"] == "COMPLETE"]
    assert held == {
        "parentRunId": event["run"]["runId"],
        "parentJobNamespace": "test",
        "parentJobName": "told.drain",
        "transport.type": "http",
        "transport.url": url,
    }
