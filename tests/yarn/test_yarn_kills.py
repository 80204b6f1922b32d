"""Drivers in a YARN cluster, which stage in its HDFS, are killed or stopped at the milestones of a transaction.

Each driver goes on where the one before died or stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.airflow import PROJECT, AirflowHome
from tests.fixtures.grouped_words import OF_GROUPS
from tests.fixtures.hadoop import setting
from tests.fixtures.hdfs import USER
from tests.fixtures.yarn import filled, resource_manager
from tools.kills import STOPS, VARIABLE

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

SITE = """
from tools import kills
kills.install()
"""
WITH_ITS_JVM = """
import os, signal
kill = os.kill
def kill_both(process, number):
    if number == signal.SIGKILL:
        kill(os.getppid(), number)
    kill(process, number)
os.kill = kill_both
"""
"""As the node manager kills a container. Otherwise the JVM lives on, sees that its Python has died, and says so."""

DRAINS = """
import plays
from airflow_trident import settings
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts
from airflow_trident.tasks.submitted_drain import SubmittedDrain

def drain(variable="NOTHING", points=""):
    conf = {
        **plays.SMALL,
        "spark.yarn.appMasterEnv.PYTHONPATH": "FOLDER/site:PROJECT",
        f"spark.yarn.appMasterEnv.{variable}": points,
    }
    return SubmittedDrain(
        topology=plays.topology_of("TOPOLOGY"), conn_id="yarn_followed", conf=conf, app_name="TOPOLOGY",
        zookeeper_conn_id=None, staging_root=settings.staging_root(None), say=print,
    )

def started(made):
    return made.start(Attempts(owner="same"), Claim(key="same"), DrainLimits(group=GROUP), 50)

def held():
    return {name: plays.held("TOPOLOGY", name) for name in plays.topology_of("TOPOLOGY").states}

def transactions():
    with ZooKeeperHook().get_ledger("TOPOLOGY") as ledger:
        return list(ledger.transactions())
"""
KILLED = """
import httpx
import drains
from airflow_trident.errors import SparkJobError

result, kills = None, 0
while result is None:
    drain = drains.drain("VARIABLE", "POINTS")
    try:
        result = drain.finish(drains.started(drain))
    except SparkJobError:
        kills += 1
        assert kills <= MOST
apps = httpx.get("MANAGER/ws/v1/cluster/apps?applicationTags=trident-topology-TOPOLOGY").json()["apps"]["app"]
statuses = [tx.status for tx in drains.transactions()]
tell([sorted(app["finalStatus"] for app in apps), statuses, drains.held()])
"""
ZOMBIES = """
import atexit, os, signal, subprocess, time
from contextlib import suppress
import drains, plays
from airflow_trident import settings
from airflow_trident.errors import TridentError
from airflow_trident.io.places import place_at

def ended(pid):
    # a cluster that is killed would leave it stopped for ever
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)

def stopped(marker, drain, submission):
    # the id of the driver's process, when it has stopped
    while True:
        assert drain._driver(submission).active(), "it ended before it came there"
        if os.path.exists(marker) and (pid := open(marker).read()):
            ps = subprocess.run(["ps", "-o", "state=", "-p", pid], capture_output=True, text=True, check=True)
            if ps.stdout.startswith("T"):
                atexit.register(ended, int(pid))
                return int(pid)
        time.sleep(0.2)

def seen():
    storage = place_at(settings.staging_root(None))
    found = drains.transactions()
    manifests = [storage.read(tx.staged.manifest).decode() for tx in found]
    return [repr(found), manifests, drains.held()]

zombies = []
for point in "POINTS".split(","):
    drain = drains.drain("VARIABLE", point)
    submission = drains.started(drain)
    zombies.append((drain, submission, stopped(point.partition(":")[2], drain, submission)))
last = drains.drain()
committed = [last.finish(drains.started(last)).committed]
before = seen()
for drain, submission, pid in zombies:
    os.kill(pid, signal.SIGCONT)
    try:
        committed.append(drain.finish(submission).committed)
    except TridentError as error:
        print("a driver that was stopped:", type(error).__name__, error)
        committed.append(())
    assert seen() == before
tell([[tx.status for tx in drains.transactions()], committed, drains.held()])
"""

EACH_ONCE = [["WORD0", 3], ["WORD1", 3], ["WORD2", 3]]
STATES = {"changed": {"count": EACH_ONCE, "changes": EACH_ONCE}, "grouped": {"count": EACH_ONCE}}
"""Of each topology. The first one has a commit phase beyond its staged batches, and commits one after the other."""
GROUPS = {"changed": 1, "grouped": 3}


def played(
    on_yarn: AirflowHome, hadoop: Path, topology: str, program: str, variable: str, points: Sequence[Milestone]
) -> object:
    """What the program tells. The files of the points are named `at-` and the milestone."""
    node, site = setting(hadoop, "trident.http-address.0"), on_yarn.folder / "site"
    on_yarn.options |= {
        "AIRFLOW__TRIDENT__STAGING_DIR": f"webhdfs://{node}/staging-of-{on_yarn.root.strip('/')}",
        "AIRFLOW__TRIDENT__STAGING_IN_LEDGER": "off",
        "HADOOP_USER_NAME": USER,
    }
    on_yarn.limit_s *= 4  # a dozen drivers, one after the other
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE + (WITH_ITS_JVM if topology == "grouped" else ""))
    given = {
        "FOLDER": str(on_yarn.folder),
        "PROJECT": str(PROJECT),
        "VARIABLE": variable,
        "POINTS": ",".join(f"{point}@2:{on_yarn.folder}/at-{point}" for point in points),
        "MOST": str(len(points)),
        "MANAGER": resource_manager(hadoop),
        "TOPOLOGY": topology,
        "GROUP": str(GROUPS[topology]),
    }
    on_yarn.write_dag("drains", filled(DRAINS, given))
    told: object = on_yarn.python(filled(program, given))
    assert {path.name.removeprefix("at-") for path in on_yarn.folder.glob("at-*")} == set(points)
    return told


@pytest.mark.parametrize(("topology", "points"), [("changed", tuple(Milestone)), ("grouped", OF_GROUPS)])
def test_p9_drivers_killed_at_every_milestone_end_like_one_that_was_not_killed(
    on_yarn: AirflowHome, hadoop: Path, topology: str, points: Sequence[Milestone]
) -> None:
    assert played(on_yarn, hadoop, topology, KILLED, VARIABLE, points) == [
        ["FAILED"] * len(points) + ["SUCCEEDED"],
        ["COMMITTED"] * 3,
        STATES[topology],
    ], on_yarn.output


@pytest.mark.parametrize(
    ("topology", "points"),
    [
        ("changed", (Milestone.STAGED, Milestone.GATE_OPENED, Milestone.NEW_VALUES)),
        ("grouped", (Milestone.STAGED, Milestone.PUBLISHED, Milestone.GATE_OPENED, Milestone.APPLIED)),
    ],
)
def test_drivers_that_were_stopped_change_nothing_when_they_go_on_after_another_one_has_done_the_work(
    on_yarn: AirflowHome, hadoop: Path, topology: str, points: Sequence[Milestone]
) -> None:
    """All of them are there at the same time, each of an older attempt than the next one."""
    statuses, committed, held = played(on_yarn, hadoop, topology, ZOMBIES, STOPS, points)  # type: ignore[misc]
    assert (statuses, held) == (["COMMITTED"] * 3, STATES[topology]), on_yarn.output
    assert {2, 3} <= set(committed[0]), "by the last one, or its answer says nothing"
    assert not {2, 3} & {txid for one in committed[1:] for txid in one}
