"""One Hadoop for all tests of this folder, and an Airflow whose connections name its YARN."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident.engine.spark.sessions.java import ONE_SHOT_JAVA_OPTIONS, spark_home
from tests.fixtures.airflow import AirflowHome
from tests.fixtures.hadoop import mini_hadoop
from tests.fixtures.yarn import DAG, filled, resource_manager


@pytest.fixture(scope="package")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder with its configuration."""
    with mini_hadoop(tmp_path_factory.mktemp("hadoop")) as cluster:
        yield cluster.conf


@pytest.fixture
def on_yarn(airflow_home: AirflowHome, hadoop: Path) -> AirflowHome:
    given = {"FOLDER": str(airflow_home.folder), "JARS": str(spark_home() / "jars"), "JVM": ONE_SHOT_JAVA_OPTIONS}
    airflow_home.write_dag("plays", filled(DAG, given))
    extras: dict[str, dict[str, str]] = {
        "client": {"deploy-mode": "client"},
        "cluster": {"deploy-mode": "cluster"},
        "followed": {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": resource_manager(hadoop)},
    }
    airflow_home.options |= {
        "PYTHONPATH": f"{airflow_home.dags}:{airflow_home.environment['PYTHONPATH']}",
        "HADOOP_CONF_DIR": str(hadoop),
        **{
            f"AIRFLOW_CONN_YARN_{name.upper()}": json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
            for name, extra in extras.items()
        },
    }
    return airflow_home
