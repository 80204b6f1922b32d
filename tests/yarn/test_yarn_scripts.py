"""A script's driver in a real YARN, whose task is killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from airflow_trident.engine.spark.sessions.java import spark_home
from tests.fixtures.airflow import AirflowHome
from tests.fixtures.hadoop import setting
from tests.fixtures.script_attempts import EXACT, KILLED_TASKS, write_runner

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

SMALL = {
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "1",
    "spark.yarn.jars": f"local:{spark_home() / 'jars'}/*",
}
PROGRAM = """
import httpx
seen = killed_and_again(begun(0), noting=False)
apps = httpx.get("MANAGER/ws/v1/cluster/apps?applicationTags=trident-topology-scripted").json()["apps"]["app"]
tell([seen, [app["finalStatus"] for app in sorted(apps, key=lambda app: app["id"])]])
"""


def test_a_scripts_driver_of_an_older_attempt_on_yarn_is_ended_before_the_next_one_is_submitted(
    airflow_home: AirflowHome,
    hadoop: Path,
) -> None:
    """Its task was killed before it knew the driver: YARN finds it by its tag."""
    manager = f"http://{setting(hadoop, 'yarn.resourcemanager.webapp.address', 'yarn-site.xml')}"
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": manager}
    write_runner(airflow_home, {"conn_type": "spark", "host": "yarn", "extra": extra}, SMALL)
    airflow_home.options["HADOOP_CONF_DIR"] = str(hadoop)
    seen, ends = airflow_home.python((KILLED_TASKS + PROGRAM).replace("MANAGER", manager))
    (said,) = seen.pop("said")
    assert re.match("ended application_[0-9_]+, the driver of an older attempt", said)
    assert (seen, ends) == (EXACT, ["KILLED", "SUCCEEDED"]), airflow_home.output
