"""Drivers that are pods: the real spark-submit makes them, the provider's real client watches them, and a stand-in for
Kubernetes' API server answers both. It runs a driver's container as a process of this machine; there is no cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.attempts import ATTEMPTS
from tests.fixtures.kubernetes_client import kubernetes_client
from tests.fixtures.spark import soon
from tests.fixtures.standalone import HERE

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark]

NAME = "a" * 80 + "_"
"""Of a topology: too long for a label, which must not end so, either."""
BEGIN = """
import os, sys
from pathlib import Path
from tests.fixtures.kubernetes import TOKEN, Fault, kube_config, kubernetes, local_kubelet
folder = Path("FOLDER")

def found(cluster):
    config = str(kube_config(cluster, folder))
    os.environ |= {
        "KUBECONFIG": config, "AIRFLOW__KUBERNETES_EXECUTOR__CONFIG_FILE": config,
        "AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER": "False",
        "AIRFLOW_CONN_PODS": '{"conn_type": "spark", "host": "k8s://%s", "extra": {"deploy-mode": "cluster", '
        '"namespace": "jobs", "track_driver_via_k8s_api": true}}' % cluster.address,
    }

def said(ask):
    try:
        return ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""
ASKED = """
import copy
from dataclasses import replace
from airflow_trident.io.database_limits import CLUSTERS
from airflow_trident.tasks import drivers
from airflow_trident.tasks.drivers import ClusterKind, DriverCluster, wait_for_end
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

def pod(name, order):
    labels = {"spark-role": "driver", "trident-order": order}
    container = {"name": "spark-kubernetes-driver", "image": "spark"}
    cluster.create("jobs", "pods", {"metadata": {"name": name, "labels": labels}, "spec": {"containers": [container]}})

seen = {}
with kubernetes() as cluster:
    found(cluster)
    place = DriverCluster(kind=ClusterKind.KUBERNETES, addresses=("jobs",))
    driver = place.driver("one")
    seen["unknown"] = [driver.state(), driver.active(), place.find("trident-order-1")]
    pod("one", "1")
    pod("two", "2")
    seen["found"] = [place.find("trident-order-1"), place.find("trident-order-2"), place.find("trident-order-3")]
    seen["states"] = []
    for phase in ("Pending", "Running", "Unknown", "Succeeded", "Failed"):
        cluster.set_phase("one", phase)
        seen["states"].append([driver.state(), driver.active(), place.find("trident-order-1")])
    cluster.set_phase("one", "Running")
    ended = {"name": "spark-kubernetes-driver", "state": {"terminated": {"exitCode": 0}}, "image": "", "imageID": "",
             "ready": False, "restartCount": 0}
    mesh = {**ended, "name": "mesh", "state": {"running": {}}}
    cluster.pods()[0]["status"]["containerStatuses"] = [mesh, ended]
    seen["beside a mesh"] = driver.state()
    del cluster.pods()[0]["status"]["containerStatuses"]

    seen["refused"] = {}
    for status in (401, 403, 409, 410, 500, 503):
        cluster.fail(Fault(status, times=2))
        seen["refused"][status] = [said(driver.state), said(lambda: place.find("trident-order-1"))]
    drivers.CLUSTERS = replace(CLUSTERS, answer_s=0.1)
    cluster.fail(Fault(0, times=2**30))
    seen["slow"] = said(driver.active)
    cluster.faults.clear()
    drivers.CLUSTERS = CLUSTERS
    states = iter([Fault(500, times=9)])
    seen["waited"] = wait_for_end(driver, 0.0, lambda: [cluster.fail(one) for one in states] or (
        None if cluster.faults[-1].times else cluster.set_phase("one", "Succeeded")))

    # the provider's own operator
    stock = SparkSubmitOperator(task_id="stock", conn_id="pods", application="x", track_driver_via_k8s_api=True)
    stock._hook = stock._get_hook()
    backend = stock._backend
    status = lambda: backend.get_job_status("jobs:two", {})
    seen["stock"] = []
    for phase in ("Pending", "Running", "Unknown"):
        cluster.set_phase("two", phase)
        seen["stock"].append([status(), backend.is_job_active(status())])
    stock._hook._kubernetes_driver_pod = "two"
    def poll(*changes):
        left = iter(changes)
        spark_submit.time.sleep = lambda _: next(left)()
        return said(stock._hook._poll_k8s_driver_via_api)
    sleep = spark_submit.time.sleep
    cluster.set_phase("two", "Running")
    seen["stock fails"] = poll(lambda: cluster.fail(Fault(500, times=3)), int, int)
    seen["stock ends"] = poll(lambda: cluster.set_phase("two", "Succeeded"))
    seen["stock deleted"] = [poll(), status()]  # it has deleted the pod that succeeded
    spark_submit.time.sleep = sleep

    driver.kill()
    seen["killed"] = [driver.state(), [one["metadata"]["name"] for one in cluster.pods()], said(driver.kill)]
seen["away"] = [said(driver.active), said(lambda: stock._hook._poll_k8s_driver_via_api())]
os.environ["AIRFLOW__KUBERNETES_EXECUTOR__IN_CLUSTER"] = "True"
seen["nowhere"] = said(driver.active)
tell(seen)
"""


def in_a_process_with_the_client(home: AirflowHome, program: str) -> Any:
    path = f"{home.dags}:{home.environment['PYTHONPATH']}:{kubernetes_client()}"
    home.options |= {**HERE, "PYTHONPATH": path}
    return home.python(program.replace("FOLDER", str(home.folder)), from_nothing=True)


def test_the_api_server_is_asked_about_a_driver_and_an_answer_that_it_does_not_give_is_none(
    airflow_home: AirflowHome,
) -> None:
    seen = in_a_process_with_the_client(airflow_home, BEGIN + ASKED)
    assert seen["unknown"] == ["", False, ""]
    assert seen["found"] == ["one", "two", ""]
    assert seen["states"] == [
        ["SUBMITTED", True, "one"],
        ["RUNNING", True, "one"],
        ["UNKNOWN", True, "one"],
        ["FINISHED", False, ""],
        ["FAILED", False, ""],
    ]
    assert seen["beside a mesh"] == "FINISHED"
    for status, answers in {**seen["refused"], "Read timed out": [seen["slow"]], "refused": seen["away"][:1]}.items():
        for said in answers:
            assert said.startswith("SparkJobError: Kubernetes does not tell about the driver's pod in namespace 'jobs'")
            assert status in said
    assert "Its token may have expired" in seen["refused"]["401"][0]
    assert "get, list and delete pods" in seen["refused"]["403"][0]
    assert seen["waited"] == "FINISHED"
    assert seen["killed"] == ["", [], None]
    assert seen["nowhere"].startswith("ConfigurationError: Airflow does not know which Kubernetes")
    # The provider takes a pod whose node does not answer for one that has ended, and gives up where nobody answers.
    assert seen["stock"] == [["Pending", True], ["Running", True], ["Unknown", False]]
    assert seen["stock fails"].startswith("RuntimeError: K8s API unreachable after 3 consecutive errors")
    assert seen["stock ends"] == "Succeeded"
    assert seen["stock deleted"] == [None, "NotFound"]
    assert seen["away"][1].startswith("MaxRetryError")


DAG = """
from airflow.sdk import DAG
from airflow_trident import (
    Count, FileSink, FixedBatchSpout, Script, SqliteState, Topology, TridentDrainOperator, trident_transaction,
)
from airflow_trident.topology.script import ScriptApplication

def script():
    made = Script(
        "scripted", inputs={"lines": FixedBatchSpout("word string", ["word"], 1)},
        outputs={"words": ("word string", FileSink("FOLDER/words"))},
    )
    made.runs(ScriptApplication(application="local:///job.py", arguments=(), conf=()))
    return made

def topology_of(name):
    topology = Topology(name)
    words = topology.new_stream("lines", FixedBatchSpout("word string", [f"word{n % 3}" for n in range(9)], 3))
    words.group_by("word").persistent_aggregate(SqliteState("FOLDER/words.db", table=name[:20]), Count(), "count")
    return topology

SMALL = {
    "spark.sql.shuffle.partitions": "1", "spark.ui.enabled": "false", "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "JAVA", "spark.kubernetes.container.image": "none",
}
with DAG("drained", schedule=None) as drained:
    TridentDrainOperator(
        task_id="drain", topology=topology_of("drained"), spark_conn_id="pods", spark_conf=SMALL, deferrable=True
    )
with DAG("single", schedule=None) as single:
    trident_transaction(topology_of("NAME"), turn_sensor=False, spark_conn_id="pods", spark_conf=SMALL)

def held(name):
    (spec,) = topology_of(name).states.values()
    with spec.factory.make_state(spec) as state:
        return sorted([key[0], value[0]] for key, value in state.items())
"""
RUN = """
import plays
seen = {}
with kubernetes(local_kubelet(folder, {})) as cluster:
    found(cluster)
    for name, topology in (("drained", "drained"), ("single", "NAME")):
        states = {ti.state for ti in getattr(plays, name).test().get_task_instances()}
        seen[name] = [*states, plays.held(topology), [one["status"]["phase"] for one in cluster.pods()]]
        cluster.things.clear()
tell(seen)
"""
LOST = (
    ATTEMPTS
    + """
import plays
from airflow_trident import settings
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.tasks.submitted_drain import SubmittedDrain

seen = {}
with kubernetes() as cluster:  # its pods wait for a node, for ever
    found(cluster)
    root = settings.staging_root(None)
    drain = SubmittedDrain(
        topology=plays.topology_of("NAME"), conn_id="pods", conf=plays.SMALL, app_name="to be killed",
        zookeeper_conn_id=None, staging_root=root, say=print,
    )
    told = []
    # The pod is made, and nobody hears of it: spark-submit tries again, is told that there is one, and fails.
    cluster.fail(Fault(500, method="POST", done=True))
    what = Attempts(owner="somebody"), Claim(key="first"), DrainLimits(tries=1, group=1), 50
    submission = drain.start(*what, told.append)
    before = told[0]  # what a task knew that was killed while it submitted
    (pod,) = cluster.created
    seen["labels"] = {key: value for key, value in pod["metadata"]["labels"].items() if key.startswith("trident-")}
    seen["waits"] = [submission.driver.state(), before.driver is None, before.tag]
    seen["again"] = [drain.looked_up(before).driver == submission.driver, len(cluster.created)]
    cluster.fail(Fault(500, method="GET"))
    seen["away"] = said(lambda: drain.looked_up(before))
    seen["command"] = pod["spec"]["containers"][0]["args"][-3:]
    seen["code"] = [os.path.exists(f"{submission.order}{ending}") for ending in (".py", ".zip")]
    drain.cancel()
    seen["cancelled"] = [len(cluster.pods()), said(lambda: drain.finish(submission))]
    seen["left"] = os.listdir(os.path.join(root, "drains"))
    seen["attempts"] = ended_by_the_next(plays.topology_of("NAME"), "pods", plays.SMALL, cluster.pods)
    seen["attempts"].append(len(cluster.pods()))
    # a script's, whose task never heard of its pod
    cluster.fail(Fault(500, method="POST", done=True))
    conf = {**plays.SMALL, "spark.kubernetes.file.upload.path": str(folder / "uploaded")}
    os.mkdir(folder / "uploaded")
    # spark-submit tries again: when its pod was already ended, it made another one
    of_script = ended_by_the_next(plays.script(), "pods", conf, cluster.pods, fails=True)
    seen["script"] = [*of_script, len(cluster.pods())]
    drain._cancelled = False
    cluster.fail(Fault(500, method="POST", times=2**30))
    seen["refused"] = said(lambda: drain.start(*what, told.append))
    seen["nobody"] = drain.looked_up(told[-1])
seen["gone"] = said(lambda: drain.start(*what, told.append))
tell(seen)
"""
)


def play(home: AirflowHome, program: str) -> Any:
    dag = DAG.replace("FOLDER", str(home.folder)).replace("JAVA", soon()).replace("NAME", NAME)
    home.write_dag("plays", dag)
    return in_a_process_with_the_client(home, BEGIN + program.replace("NAME", NAME))


def test_a_pod_that_nobody_heard_of_is_found_by_its_label_and_no_second_one_is_made(airflow_home: AirflowHome) -> None:
    seen = play(airflow_home, LOST)
    order = seen["labels"].pop("trident-order")
    assert seen["labels"] == {"trident-topology": "a" * 46 + "-6e8af2ce252f97ce"}
    assert seen["waits"] == ["SUBMITTED", True, f"trident-order-{order}"]
    assert seen["again"] == [True, 1]
    assert seen["away"].startswith("SparkJobError: Kubernetes does not tell")
    assert [Path(one).suffix for one in seen["command"]] == [".py", ".order", ".result"]
    assert seen["command"][0].startswith("local:///")
    assert seen["code"] == [True, True]
    assert seen["cancelled"][0] == 0
    assert "ended and left no result" in seen["cancelled"][1]
    assert seen["left"] == []
    first, told, left = seen["attempts"]  # the newer attempt of a transaction ends the driver of the older one
    assert "left no result" in first[0] or "ended as" in first[0]
    assert told[0].startswith("ended trident-")
    assert "the driver of an older attempt" in told[0]
    assert left == 0
    first, told, left = seen["script"]
    assert re.match("ended trident-[0-9a-f]{32}-driver, the driver of an older attempt", told[0]), told
    assert len(first) == 1
    assert left == 0
    assert seen["refused"].startswith("SparkJobError: the drain of topology")
    assert seen["nobody"] is None
    assert seen["gone"].startswith("SparkJobError: Kubernetes does not tell")


@pytest.mark.rare
def test_a_drain_and_a_transaction_run_with_their_drivers_in_pods(airflow_home: AirflowHome) -> None:
    assert play(airflow_home, RUN) == {
        "drained": ["success", [["word0", 3], ["word1", 3], ["word2", 3]], ["Succeeded"]],
        "single": ["success", [["word0", 1], ["word1", 1], ["word2", 1]], ["Succeeded"]],
    }, airflow_home.output
    assert "taking up the drain that was submitted: its driver is trident-" in airflow_home.output  # it was deferred
