"""The tasks on Spark: in the task's process, submitted by the official hook, and on a running Connect server."""

from __future__ import annotations

import json

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.spark import spark_release

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

DAG = """
from airflow.sdk import DAG
from airflow_trident import Count, FixedBatchSpout, Function, DeltaTable, SqliteState, Topology, trident_transaction

class Told(Function):
    def execute(self, word):
        from pyspark import TaskContext
        task = TaskContext.get()
        yield task.getLocalProperty("spark.job.description"), task.cpus()

class At(Function):
    def prepare(self, context):
        self.txid = context.txid

    def execute(self, word):
        yield self.txid

topology = Topology("words")
words = topology.new_stream("lines", FixedBatchSpout("word string", [f"word{n % 3}" for n in range(9)], 3))
words.group_by("word").persistent_aggregate(SqliteState("FOLDER/words.db"), Count(), "count")
told = words.name("ask").each("word", Told(), "what string, cores int").set_cpu_load(150)
told.partition_persist(SqliteState("FOLDER/told.db"), "what, cores", keys="what", name="told")
words.each("word", At(), "at long").persist_table(
    DeltaTable("FOLDER/latest"), mode="rewrite", keys="word", name="latest"
)
SMALL = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "true", "spark.ui.port": "0"}

def play(name, **arguments):
    with DAG(name, schedule=None) as dag:
        trident_transaction(topology, turn_sensor=False, **arguments)
    return dag

here = play("here", spark_conf=SMALL)
submitted = play("submitted", spark_conn_id="spark_here", spark_conf={"spark.ui.enabled": "false"})
connected = play("connected", spark_conn_id="spark_there")
wrong = play("wrong", spark_conn_id="no_spark")
"""
PROGRAM = """
import plays
from plays import topology
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
def states(dag):
    return {ti.task_id: ti.state for ti in dag.test().get_task_instances()}
runs = [states(dag) for dag in (getattr(plays, name) for name in NAMES)]
with create_session() as session:
    links = [one.value for one in session.query(XComModel).filter_by(dag_id="here", key="_link_SparkUiLink")]
held, markers = {}, {}
for name, spec in topology.states.items():
    with spec.factory.make_state(spec) as state:
        held[name] = {key[0]: value[0] for key, value in state.items()}
        markers[name] = state.marker().high
tell({"runs": runs, "links": links, "held": held, "markers": markers})
"""


def test_a_batch_gives_the_same_on_every_kind_of_spark_connection(
    airflow_home: AirflowHome, request: pytest.FixtureRequest
) -> None:
    names = ["here", "submitted"]
    if spark_release() >= (4, 0):  # older ones bring no server
        names.append("connected")
    connect_server = request.getfixturevalue("connect_server") if "connected" in names else "sc://127.0.0.1:1"
    airflow_home.write_dag("plays", DAG.replace("FOLDER", str(airflow_home.folder)))
    place, _, port = connect_server.removeprefix("sc://").partition(":")
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "AIRFLOW_CONN_SPARK_HERE": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        "AIRFLOW_CONN_SPARK_THERE": json.dumps({"conn_type": "spark_connect", "host": place, "port": int(port)}),
    }
    result = airflow_home.python(PROGRAM.replace("NAMES", repr(names)))
    done = dict.fromkeys(("words.coordinate", "words.emit", "words.commit"), "success")
    assert result["runs"] == [done] * len(names)
    assert result["held"]["count"] == {f"word{n}": len(names) for n in range(3)}
    assert result["held"]["latest"] == {f"word{n}": len(names) for n in range(3)}, "rewritten by each of them"
    assert result["markers"] == dict.fromkeys(result["held"], len(names))
    nodes = "lines > ask.each-2 > ask.project-3 > told"
    for txid in (1, 2):  # on Connect neither the application nor its descriptions are ours
        assert result["held"]["told"][f"topology words, transaction {txid}, attempt 0: {nodes}"] == 2
    assert any(link.startswith("http") for link in result["links"])
    assert "DAGScheduler" not in airflow_home.output
    assert "py4j" not in airflow_home.output


def test_a_connection_of_another_type_ends_the_task_with_the_cure(airflow_home: AirflowHome) -> None:
    airflow_home.write_dag("plays", DAG.replace("FOLDER", str(airflow_home.folder)))
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "AIRFLOW_CONN_NO_SPARK": json.dumps({"conn_type": "http", "host": "example.org"}),
    }
    program = "from plays import wrong\ntell({ti.task_id: ti.state for ti in wrong.test().get_task_instances()})"
    assert airflow_home.python(program)["words.emit"] == "failed"
    assert "is of type 'http', by which Spark cannot be reached" in airflow_home.output
