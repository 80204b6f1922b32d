"""Two masters of Spark's standalone cluster, of which one stands by: it answers, and knows no drivers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from airflow_trident.engine.spark.sessions.java import jars_version, spark_home, submit_environment
from airflow_trident.engine.spark.submit import NO_TAGS
from airflow_trident.errors import ConfigurationError, SparkJobError
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.tasks.drivers import SparkDriver
from airflow_trident.tasks.spark_submit import HookSubmit
from tests.fixtures.spark import free_port, wait_for
from tests.fixtures.standalone import HERE

pytestmark = [pytest.mark.zookeeper, pytest.mark.spark]


def said(address: str) -> str:
    """What a master says of a driver; empty if it does not answer."""
    try:
        return httpx.get(f"{address}/v1/submissions/status/driver-1", timeout=10).text
    except httpx.HTTPError:
        return ""


@pytest.fixture
def masters(zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path) -> Iterator[list[str]]:
    """REST addresses: the active one and the one that stands by, in no order."""
    given = {name: value for name, value in submit_environment().items() if not name.startswith("AIRFLOW")}
    environment = {**given, **HERE, "SPARK_DAEMON_MEMORY": "256m", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    started, addresses = [], []
    try:
        for number in range(2):
            rest = free_port()
            settings = tmp_path / f"{number}.conf"
            settings.write_text(
                f"spark.master.rest.enabled true\nspark.master.rest.port {rest}\nspark.deploy.recoveryMode ZOOKEEPER\n"
                f"spark.deploy.zookeeper.url {zookeeper.hosts}\nspark.deploy.zookeeper.dir {ledger_root}-masters\n"
            )
            command = [str(spark_home() / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
            command += ["--host", "127.0.0.1", "--port", str(free_port()), "--webui-port", "0"]
            with (tmp_path / f"{number}.log").open("wb") as log:
                command += ["--properties-file", str(settings)]
                started.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
                )
            addresses.append(f"http://127.0.0.1:{rest}")
        wait_for(
            lambda: sorted("not alive" in said(one) for one in addresses) == [False, True] and all(map(said, addresses))
        )
        yield addresses
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(timeout=30)


def test_a_master_that_stands_by_is_not_taken_for_one_that_has_forgotten_the_driver(masters: list[str]) -> None:
    standby, active = sorted(masters, key=lambda one: "not alive" not in said(one))
    driver = SparkDriver(masters=(standby, active), driver_id="driver-1")
    assert driver.state() == ""  # the active one does not know it
    assert driver.release() == jars_version()
    with pytest.raises(SparkJobError, match=f"no Spark master answers.*{standby} stands by"):
        SparkDriver(masters=(standby,), driver_id="driver-1").active()


def test_nothing_is_submitted_to_a_master_of_another_release(
    masters: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (active,) = (one for one in masters if "not alive" not in said(one))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    (tmp_path / "spark" / "jars" / "spark-core_2.13-4.1.3.jar").touch()
    for mode in ("cluster", "client"):
        extra = {"deploy-mode": mode, "rest-port": int(active.rpartition(":")[2])}
        connection = {"conn_type": "spark", "host": "spark://127.0.0.1:1", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_OLDER", json.dumps(connection))
        with pytest.raises(
            ConfigurationError, match=r"has Spark 4\.2\.0, .* of Spark 4\.1\.3.*Install pyspark 4\.2 here"
        ):
            HookSubmit("older", {}, "x").start("app.py", [], NO_TAGS)
