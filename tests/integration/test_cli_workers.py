"""``airflow trident deploy | undeploy | worker | workers`` as a person runs them, and the worker as a task."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import pytest

from airflow_trident.ledger.layout import deployments_folder
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.protocol.records import Command
from tests.fixtures.airflow import AirflowHome, airflow_home
from tests.fixtures.cli import COUNTS, DAG_FILE, Site, site

__all__ = ["airflow_home", "site"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]
LIMIT_S = 300.0
"""Only of a test that fails."""


def test_what_cannot_be_meant_is_one_line_that_names_the_cure_and_nothing_is_written(site: Site) -> None:
    results = dict(
        zip(
            lines := (
                "deploy words",
                "deploy nothing --workers w1",
                "deploy words --workers w1,w1",
                "deploy words --workers w1 --affinity w2",
                "deploy words --workers 1/w",
                "worker w1",
                "worker w1 --topology words",
                "worker w1 --topology nothing",
                "worker w1 --poll-s -1",
                "undeploy words",
                "workers",
                "workers words",
                "ledger list",
            ),
            site.tridents(*lines),
            strict=True,
        )
    )
    errors = {
        "deploy words": "'words' is deployed on no worker. Name them, as in --workers w1,w2",
        "deploy nothing --workers w1": "there is no topology 'nothing' in the DAGs of this Airflow; found: words",
        "deploy words --workers w1,w1": "worker 'w1' of topology 'words' is named twice",
        "deploy words --workers w1 --affinity w2": "has an affinity to 'w2', which is none of its workers",
        "deploy words --workers 1/w": "'1/w' cannot be the name of a worker. Use letters",
        "worker w1": "no topology is deployed on worker 'w1'; deployed: none. Run `airflow trident deploy TOPOLOGY",
        "worker w1 --topology words": "topology 'words' is not deployed. Run `airflow trident deploy words",
        "worker w1 --topology nothing": "there is no topology 'nothing' in the DAGs of this Airflow; found: words",
        "worker w1 --poll-s -1": "--poll-s is no number of seconds",
        "undeploy words": "no ledger of a topology 'words'",
        "workers words": "no ledger of a topology 'words'",
    }
    for line, text in errors.items():
        assert results[line].code == (2 if "poll" in line else 1), line
        assert text in results[line].error, line
    assert results["workers"].out == "no topology is deployed on workers\n"
    assert results["ledger list"].out.startswith("no topology has a ledger in ZooKeeper at ")


def started(site: Site, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "airflow"), "trident", "worker", *arguments],
        env=site.home.environment,
        cwd=site.home.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_workers_run_a_topology_are_shown_and_end_when_it_is_shut_down(site: Site) -> None:
    site.mend()
    site.home.options["AIRFLOW__TRIDENT__RETENTION"] = "1"
    site.home.write_dag("words_dag", DAG_FILE.replace('engine="local"', 'engine="local", retention=1000'))
    deployed, stranger, unknown, *looked = site.tridents(
        "deploy words --workers w1,w2 --weight 2 --affinity w2",
        "worker w3 --topology words",
        "worker w3",
        "ledger list words --check",
        "ledger list --check -o json",
        "doctor",
        "workers words",
        "workers",
    )
    assert deployed.out.startswith("topology words is deployed on w1, w2 (epoch 1). Each registers with")
    assert "'w3' is none of the workers of topology 'words', which are w1, w2" in stranger.error
    assert "no topology is deployed on worker 'w3'; deployed: words on w1, w2" in unknown.error
    for one in looked:
        assert one.code == 1
        assert "no worker runs it: w1, w2 are not there" in one.out
    options = ("--topology", "words", "--engine", "local", "--poll-s", "0.2", "--max-pending", "1")
    with started(site, "w1", *options) as first, started(site, "w2", *options) as second:
        try:
            deadline = time.monotonic() + LIMIT_S
            while site.counts() != COUNTS:
                assert time.monotonic() < deadline
                assert first.poll() is None, first.communicate()
                assert second.poll() is None, second.communicate()
                time.sleep(0.2)
            shown, every, taken = site.tridents("workers words -o json", "workers", "worker w1 --topology words")
            rows = {row["worker"]: row for row in shown.json()}
            assert {name: row["status"] for name, row in rows.items()} == {"w1": "standby", "w2": "running"}
            assert {(row["epoch"], row["told"]) for row in rows.values()} == {(3, "run 3")}
            assert {row["pid"] for row in rows.values()} == {first.pid, second.pid}
            assert rows["w1"]["task"] == "airflow trident worker w1"
            assert "w1" in every.out
            assert f"the name 'w1' is taken by process {first.pid}" in taken.error
            second.send_signal(signal.SIGTERM)
            assert second.wait(LIMIT_S) == 0
            (ended,) = site.tridents("shutdown words")
            assert ended.code == 0
            assert first.wait(LIMIT_S) == 0
            said = first.communicate()[0]
        finally:
            first.kill()
            second.kill()
    assert "worker w1 is registered" in said
    assert "topology words: stopped (epoch 4)" in said
    with site.ledger() as ledger:
        cast(ZNodeLedger, ledger).znodes.ensure(f"{deployments_folder(site.home.root)}/torn")
    after, gone, torn = site.tridents("workers words -o json", "undeploy words", "workers")
    assert (shown.code, after.code) == (0, 0)
    assert [(row["worker"], row["status"]) for row in after.json()] == [("w1", "stopped"), ("w2", "lost")]
    assert gone.out == "topology words is taken from w1, w2, which finish what they began\n"
    assert torn.code == 1
    assert "torn" in torn.out
    assert site.counts() == COUNTS
    assert len(site.statuses()) == 3, "what the topology's DAG keeps was removed"


WORKER_DAG = """
from airflow.sdk import DAG
from words_topology import build

from airflow_trident.storm import TridentWorkerOperator

topology = build("words")
with DAG("works", schedule=None) as dag:
    TridentWorkerOperator(
        task_id="work", topologies=[topology], name="w1", engine="local", poll_s=0.1, wait_s=0, max_pending=1
    )
"""
PLAY = """
from threading import Thread
from airflow_trident.hooks.zookeeper import ZooKeeperHook
from airflow_trident.protocol.records import Command
from airflow_trident.storm.workers.deployments import Deployments, deploy
from works_dag import dag, topology

def states():
    return {ti.task_id: ti.state for ti in dag.test().get_task_instances()}

undeployed = states()
with ZooKeeperHook().get_ledgers() as ledgers:
    ledger = ledgers.ledger("words")
    ledger.register(topology.definition())
    Deployments(ledgers.znodes, ledgers.root).ensure_folder()
    deploy(ledger, ["w1"])

def ends_it():
    with ZooKeeperHook().get_ledgers() as ledgers:
        ledger = ledgers.ledger("words")
        while (view := ledger.view(0)).pointer.committed < 3:
            ledger.wait_for_change(3, view, 0.2)
        ledger.set_command(Command.SHUTDOWN)

ending = Thread(target=ends_it)
ending.start()
done = states()
ending.join()
with ZooKeeperHook().get_ledgers() as ledgers:
    said = Deployments(ledgers.znodes, ledgers.root).roster("words").acknowledged["w1"]
    claims = [tx.claim.dag_id for tx in ledgers.ledger("words").transactions()]
tell({"undeployed": undeployed, "done": done, "said": [str(said.status), said.epoch], "claims": claims})
"""


def test_a_worker_as_a_task_runs_its_topology_until_that_is_shut_down(site: Site) -> None:
    home: AirflowHome = site.home
    site.mend()
    home.write_dag("works_dag", WORKER_DAG)
    home.options["PYTHONPATH"] = f"{home.dags}:{home.environment['PYTHONPATH']}"
    result = home.python(PLAY)
    assert result["undeployed"] == {"work": "failed"}
    assert "topology 'words' is not deployed" in home.output
    assert result["done"] == {"work": "success"}
    assert result["said"] == ["stopped", 4]
    assert result["claims"] == ["works"] * 3
    assert site.counts() == COUNTS
    with site.ledger() as ledger:
        assert ledger.topology().command is Command.SHUTDOWN
