"""Transactions and drains on a real YARN, with the driver in the task's process tree and in the cluster."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fixtures.airflow import AirflowHome
from tests.fixtures.hadoop import setting
from tests.fixtures.hdfs import USER, ask, connection
from tests.fixtures.yarn import filled, resource_manager

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

PROGRAM = """
import plays
def run(name):
    dag = getattr(plays, name)
    states = {ti.task_id: ti.state for ti in dag.test().get_task_instances()}
    return [sorted(set(states.values())), plays.held(name)]
tell({name: run(name) for name in NAMES})
"""


def test_a_drain_that_yarn_is_asked_about_is_waited_for_without_spark_submit(on_yarn: AirflowHome) -> None:
    assert on_yarn.python(PROGRAM.replace("NAMES", "['followed']")) == {
        "followed": [["success"], [["WORD0", 3], ["WORD1", 3], ["WORD2", 3]]]
    }, on_yarn.output
    # It was deferred, and the resumed task took up the same driver.
    before, _, after = on_yarn.output.partition("taking up the drain that was submitted: its driver is application_")
    assert before.count("the drain of topology 'followed' runs in the cluster as application_") == 1
    assert after
    assert "runs in the cluster as" not in after


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_transaction_and_a_drain_run_on_yarn(on_yarn: AirflowHome, mode: str) -> None:
    result = on_yarn.python(PROGRAM.replace("NAMES", repr([f"one_{mode}", f"drain_{mode}"])))
    assert result == {
        f"one_{mode}": [["success"], [["WORD0", 1], ["WORD1", 1], ["WORD2", 1]]],
        f"drain_{mode}": [["success"], [["WORD0", 3], ["WORD1", 3], ["WORD2", 3]]],
    }, on_yarn.output


@pytest.mark.parametrize(("mode", "address"), [("client", "hdfs:///staging"), ("cluster", "webhdfs://NODE/staging")])
def test_a_transaction_and_a_drain_stage_on_the_hdfs_of_the_cluster(
    on_yarn: AirflowHome,
    hadoop: Path,
    mode: str,
    address: str,
) -> None:
    """With its connection lent to a driver beside the task; a driver in the cluster needs none."""
    node = setting(hadoop, "trident.http-address.0")
    on_yarn.options |= {
        "AIRFLOW_CONN_WEBHDFS_DEFAULT": connection(f"http://{node}", read_timeout_s=60),
        "AIRFLOW__TRIDENT__STAGING_DIR": address.replace("NODE", node),
        "AIRFLOW__TRIDENT__STAGING_IN_LEDGER": "off",
        "HADOOP_USER_NAME": USER,
    }
    assert on_yarn.python(PROGRAM.replace("NAMES", repr([f"one_{mode}", f"drain_{mode}"]))) == {
        f"one_{mode}": [["success"], [["WORD0", 1], ["WORD1", 1], ["WORD2", 1]]],
        f"drain_{mode}": [["success"], [["WORD0", 3], ["WORD1", 3], ["WORD2", 3]]],
    }, on_yarn.output
    found = ask(node, "GET", "/staging", "LISTSTATUS")["FileStatuses"]["FileStatus"]
    assert {f"one_{mode}", f"drain_{mode}"} < {one["pathSuffix"] for one in found}
    assert not (on_yarn.folder / "trident" / "staging").exists()


ORPHANED = """
import os, signal, subprocess, sys, time
import plays
def drivers():
    running = subprocess.run(["ps", "-Awwo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in running.splitlines() if "ApplicationMaster" in line and "java" in line.split()[0]]
open("FOLDER/blocked", "w").close()
program = "import plays; plays.drain_cluster.test()"
first = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, start_new_session=True)
while not os.path.exists("FOLDER/begun"):
    assert first.poll() is None
    time.sleep(0.1)
os.killpg(first.pid, signal.SIGKILL)
first.wait()
alone = len(drivers())
os.unlink("FOLDER/blocked")
states = [ti.state for ti in plays.drain_cluster.test().get_task_instances()]
while drivers():
    time.sleep(0.1)
tell([bool(alone), states, plays.held("drain_cluster")])
"""


def test_a_driver_whose_task_was_killed_goes_on_in_the_cluster_and_doubles_nothing(on_yarn: AirflowHome) -> None:
    """The share of each of the two drivers is random; a driver that finds nothing left has not failed."""
    alone, states, held = on_yarn.python(ORPHANED.replace("FOLDER", str(on_yarn.folder)))
    assert alone
    assert states in (["success"], ["skipped"]), on_yarn.output
    assert held == [["WORD0", 3], ["WORD1", 3], ["WORD2", 3]]


DRAIN = """
import json, os, signal
import plays
from airflow_trident import settings
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.tasks.submitted_drain import SubmittedDrain

def workers():
    with ZooKeeperHook().get_ledger("NAME") as ledger:
        return ledger.workers()

def drain():
    return SubmittedDrain(
        topology=plays.topology_of("NAME"), conn_id="NAME", conf=plays.SMALL, app_name="found",
        zookeeper_conn_id=None, staging_root=settings.staging_root(None), say=print, workers=workers,
    )

def note(submission):
    if submission.driver_id:
        os.kill(os.getpid(), signal.SIGKILL)
    with open("FOLDER/told", "w") as file:
        json.dump(submission.as_json(), file)

def submit():
    drain().start(Attempts(owner="first"), Claim(key="first"), DrainLimits(group=1), 50, note)
"""
FOUND = """
import json, os, signal, subprocess, sys, time
import httpx
import drains, plays
from airflow_trident.tasks.submitted_drain import Submission
open("FOLDER/blocked", "w").close()
first = subprocess.Popen([sys.executable, "-c", "import drains; drains.submit()"], start_new_session=True)
while not os.path.exists("FOLDER/begun"):
    assert first.poll() in (None, -signal.SIGKILL)
    time.sleep(0.1)
if first.poll() is None:
    os.killpg(first.pid, signal.SIGKILL)  # spark-submit with it
ended = first.wait()
drain = drains.drain()
found = drain.looked_up(Submission.from_json(json.load(open("FOLDER/told"))))
os.unlink("FOLDER/blocked")
committed = drain.finish(found).committed
apps = httpx.get("MANAGER/ws/v1/cluster/apps?applicationTags=trident-topology-NAME").json()["apps"]["app"]
left = os.listdir(os.path.join(os.environ["AIRFLOW_HOME"], "trident", "staging", "drains"))
tell([ended, found.driver_id == apps[0]["id"], len(apps), committed, plays.held("NAME"), left])
"""


@pytest.mark.parametrize("name", ["yarn_cluster", "yarn_followed"])
def test_the_driver_of_a_task_that_was_killed_before_it_knew_it_is_found_and_its_result_taken(
    on_yarn: AirflowHome,
    hadoop: Path,
    name: str,
) -> None:
    given = {"FOLDER": str(on_yarn.folder), "NAME": name, "MANAGER": resource_manager(hadoop)}
    on_yarn.write_dag("drains", filled(DRAIN, given))
    assert on_yarn.python(filled(FOUND, given)) == [
        *[-signal.SIGKILL, True, 1, [1, 2, 3]],
        *[[["WORD0", 3], ["WORD1", 3], ["WORD2", 3]], []],
    ], on_yarn.output


RUNNER = """
import plays
from airflow_trident import settings
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.tasks.engines import make_engine
from airflow_trident.names import EngineKind

def run():
    topology, root = plays.topology_of("older"), settings.staging_root(None)
    with (
        ZooKeeperHook().get_ledger("older") as ledger,
        make_engine(EngineKind.SPARK, conn_id="yarn_followed", conf=plays.SMALL, app_name="older") as engine,
    ):
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=root, progress=print)
        assert runner.run(max_transactions=1) == [1]
"""
OLDER = """
import os, signal, subprocess, sys, time
import httpx
import plays
from airflow_trident.hooks.zookeeper import ZooKeeperHook

def drivers():
    apps = httpx.get("MANAGER/ws/v1/cluster/apps?applicationTags=trident-topology-older").json()["apps"]["app"]
    return [app["state"] for app in sorted(apps, key=lambda app: app["id"])]

def begun():
    process = subprocess.Popen([sys.executable, "-c", "import runner; runner.run()"], start_new_session=True)
    while not os.path.exists("FOLDER/begun"):
        assert process.poll() is None
        time.sleep(0.1)
    os.unlink("FOLDER/begun")
    return process

open("FOLDER/blocked", "w").close()
first = begun()
os.killpg(first.pid, signal.SIGKILL)
first.wait()
alone = drivers()
second = begun()
both = drivers()
os.unlink("FOLDER/blocked")
ended = second.wait()
with ZooKeeperHook().get_ledger("older") as ledger:
    found = [[tx.txid, tx.status, tx.attempt] for tx in ledger.transactions()]
tell([alone, both, ended, found, plays.held("older")])
"""


def test_a_driver_of_an_older_attempt_on_yarn_is_ended_before_the_next_one_is_submitted(
    on_yarn: AirflowHome,
    hadoop: Path,
) -> None:
    """The older one was in the middle of its pass, and whoever had submitted it was killed."""
    on_yarn.write_dag("runner", RUNNER)
    given = {"FOLDER": str(on_yarn.folder), "MANAGER": resource_manager(hadoop)}
    assert on_yarn.python(filled(OLDER, given)) == [
        *[["RUNNING"], ["KILLED", "RUNNING"], 0],
        *[[[1, "COMMITTED", 1]], [["WORD0", 1], ["WORD1", 1], ["WORD2", 1]]],
    ], on_yarn.output
