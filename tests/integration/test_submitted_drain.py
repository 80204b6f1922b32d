"""A drain that is submitted as a whole: in a client's process, and with its driver in a standalone cluster. The secrets
of its connections get there, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.attempts import ATTEMPTS
from tests.fixtures.postgres import PASSWORD, PostgresServer
from tests.fixtures.spark import soon
from tests.fixtures.standalone import HERE

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

DAG = """
import os, time
from airflow.sdk import DAG
from airflow_trident import Count, FixedBatchSpout, Function, DeltaTable, PostgresState, Topology
from airflow_trident import TridentDrainOperator

def patient(word):
    open("FOLDER/begun", "w").close()
    while os.path.exists("FOLDER/blocked"):
        time.sleep(0.1)
    yield word.upper()

class At(Function):
    def prepare(self, context):
        self.txid = context.txid

    def execute(self, word):
        yield self.txid

def topology_of(name):
    topology = Topology(name)
    words = topology.new_stream("lines", FixedBatchSpout("word string", [f"word{n % 3}" for n in range(9)], 3))
    words = words.each("word", patient, "loud string")
    words.group_by("loud").persistent_aggregate(PostgresState("store", schema="SCHEMA"), Count(), "count")
    if name in ("as_client", "rewritten"):
        table = DeltaTable(f"FOLDER/latest_of_{name}")
        stamped = words.each("loud", At(), "at long").project("loud, at")
        stamped.persist_table(table, mode="rewrite", keys="loud", name="latest")
    return topology

SMALL = {
    "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false", "spark.driver.memory": "512m",
    "spark.executor.memory": "512m", "spark.cores.max": "1",
    "spark.driver.extraJavaOptions": "JAVA", "spark.executor.extraJavaOptions": "JAVA",
}

def play(name, conn_id, **arguments):
    with DAG(name, schedule=None) as dag:
        TridentDrainOperator(
            task_id="drain", topology=topology_of(name), spark_conn_id=conn_id, spark_conf=SMALL, **arguments
        )
    return dag

in_cluster = play("in_cluster", "spark_cluster", deferrable=True)
as_client = play("as_client", "spark_client", max_transactions=2)
by_command = play("by_command", "spark_client")
rewritten = play("rewritten", "spark_cluster", max_transactions=2)

def held(name):
    found = []
    for spec in topology_of(name).states.values():
        with spec.factory.make_state(spec) as state:
            found.append(sorted([key[0], value[0]] for key, value in state.items()))
            found.append(state.marker().high)
    return found
"""
PROGRAM = (
    ATTEMPTS
    + """
import os, subprocess, sys, time
from contextlib import suppress
import psutil
from plays import SMALL, as_client, held, in_cluster, rewritten
from airflow_trident.errors import SparkJobError
from airflow_trident import settings
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.tasks.submitted_drain import SubmittedDrain
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains import order
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts

started = []
programs = ("subprocess.Popen", "os.exec")
sys.addaudithook(lambda event, said: started.append(repr(said[:2])) if event in programs else None)
open("FOLDER/blocked", "w").close()
drain = SubmittedDrain(
    topology=in_cluster.get_task("drain").topology, conn_id="spark_cluster", conf=SMALL, app_name="to be killed",
    zookeeper_conn_id=None, staging_root=settings.staging_root(None), say=print,
)
told = []
what = Attempts(owner="somebody"), Claim(key="first"), DrainLimits(tries=1, group=1), 50
submission = drain.start(*what, told.append)
while not os.path.exists("FOLDER/begun"):
    assert submission.driver.active(), submission.driver.state()
    time.sleep(0.1)
# whoever was killed before it knew the driver finds it all the same
found = drain.looked_up(told[0])
assert told[0].driver is None and found.driver == submission.driver, (told, found)

class Killed(BaseException):
    pass

def killed(*_):
    raise Killed

submit = drain._submit.start
drain._submit.start = killed
try:
    drain.start(*what, told.append)
except Killed:
    drain._submit.start = submit
drain._submission = submission
# of another order the driver comes only after somebody has looked
late = told[-1]
content = open(late.order, "rb").read()
never = [drain.looked_up(late), os.path.exists(late.order)]
for also in (False, True):  # it has not read the order yet, or it has
    if also:
        with open(late.order, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(content)
    app = [sys.executable, "-m", "airflow_trident.runtime.drains.app", late.order, late.result]
    never.append(subprocess.run(app, check=True, capture_output=True, text=True).stdout)
never.append(os.path.exists(late.result))
with order.removing(late.files):
    pass
of_driver = {}
for process in psutil.process_iter():
    with suppress(psutil.Error):
        if submission.order in process.cmdline():
            of_driver |= process.environ()
running = subprocess.run(["ps", "-Awwo", "args"], capture_output=True, text=True, check=True).stdout
drain.cancel()
try:
    drain.finish(submission)
except SparkJobError as error:
    said = str(error)
with ZooKeeperHook().get_ledger("in_cluster") as ledger:
    kept = list(ledger.transactions())
    found = [[tx.txid, tx.status, tx.attempt] for tx in kept]
left = os.listdir(os.path.join(settings.staging_root(None), "drains"))
os.unlink("FOLDER/begun")
attempts = ended_by_the_next(
    in_cluster.get_task("drain").topology, "spark_cluster", SMALL, lambda: os.path.exists("FOLDER/begun")
)

os.unlink("FOLDER/blocked")
runs = {}
for dag in (in_cluster, as_client, rewritten):
    (ti,) = dag.test().get_task_instances()
    runs[dag.dag_id] = [ti.state, ti.xcom_pull("drain"), held(dag.dag_id)]
shown = [running, repr(kept), *started]
seen = {"said": said, "found": found, "left": left, "runs": runs, "shown": shown, "attempts": attempts}
tell({**seen, "never": never, "environment": of_driver})
"""
)


def test_a_drain_runs_whole_in_a_cluster_and_what_is_killed_there_is_taken_up_by_the_next(
    airflow_home: AirflowHome, spark_master: tuple[str, int], postgres: PostgresServer, tmp_path: Path
) -> None:
    folder, schema = airflow_home.folder, "submitted_drain"
    dag = DAG.replace("FOLDER", str(folder)).replace("SCHEMA", schema).replace("JAVA", soon())
    airflow_home.write_dag("plays", dag)
    master, rest = spark_master
    cluster = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "cluster", "rest-port": rest}}
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        **HERE,
        "AIRFLOW_CONN_SPARK_CLUSTER": json.dumps(cluster),
        "AIRFLOW_CONN_STORE": postgres.as_json,
        "AIRFLOW_CONN_SPARK_CLIENT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    result = airflow_home.python(PROGRAM.replace("FOLDER", str(folder)))

    nobody, there, unread, read, answered = result["never"]
    assert (nobody, there, answered) == (None, False, False)
    assert "is done, or was taken back: this driver begins nothing" in unread
    assert "is taken by process" in read
    environment = result["environment"]
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert [name for name in environment if name.startswith(("AIRFLOW_CONN_", "AIRFLOW__"))] == []
    assert "ended as KILLED" in result["said"]
    first, told = result["attempts"]  # of a single transaction: the newer attempt ends the driver of the older one
    assert len(first) == 1  # it is killed, or sees its JVM end
    assert told[0].startswith("ended driver-")
    assert "the driver of an older attempt" in told[0]
    # of what was killed nothing is said to have failed, although one try was all that it had
    assert result["found"] == [[1, "PROCESSING", 0], [2, "PROCESSING", 0], [3, "PROCESSING", 0]]
    assert result["left"] == []
    everything, twice = ([[f"WORD{n}", many] for n in range(3)] for many in (3, 2))
    assert result["runs"]["in_cluster"] == ["success", [1, 2, 3], [everything, 3]]
    # it was deferred, and what went on after that took up the same driver
    printed = airflow_home.output.partition("taking up the drain that was submitted: its driver is driver-")
    assert printed[0].count("the drain of topology 'in_cluster' runs in the cluster as driver-") == 2
    assert printed[1]
    assert "the drain of topology 'in_cluster' runs in the cluster as driver-" not in printed[2]
    # counts, and a table with the last transaction of each word
    assert result["runs"]["as_client"] == ["success", [1, 2], [twice, 2, twice, 2]]
    # in a driver of the cluster, too, which opens the table itself
    assert result["runs"]["rewritten"] == result["runs"]["as_client"]
    assert "rows into state count" in airflow_home.output

    command = ("trident", "drain", "by_command", "--dag", "by_command", "--spark-conn-id", "spark_client")
    said = airflow_home.airflow(*command, "--max-transactions", "2", "--spark-conf", "spark.ui.enabled=false")
    assert "topology by_command: 2 transactions are committed (1 to 2), 6 rows read" in said
    # its driver was seen running, and what was started and written says nothing of the password
    assert "runtime/drains/app.py" in result["shown"][0]
    written = [path for place in (tmp_path, folder) for path in place.rglob("*") if path.is_file()]
    assert any("stderr" in path.name for path in written)
    assert any(folder in path.parents for path in written)
    for text in [*result["shown"], airflow_home.output, *(path.read_text(errors="replace") for path in written)]:
        assert PASSWORD not in text
        assert quote(PASSWORD, safe="") not in text
