"""Every public name is found where it is."""

from __future__ import annotations

import subprocess
import sys

import pytest

import airflow_trident


def test_every_public_name_is_there_and_the_package_itself_imports_nothing_of_it() -> None:
    program = (
        "import sys, airflow_trident\n"
        "print(sorted(one for one in sys.modules if one.partition('.')[0] in ('airflow_trident', 'airflow')))\n"
        "from airflow_trident import *\n"
        "print(set(airflow_trident.__all__) <= set(globals()) & set(dir(airflow_trident)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded, complete = done.stdout.split("\n")[:2]
    assert loaded == "['airflow_trident', 'airflow_trident.version']"
    assert complete == "True"
    assert "OpaqueRedisStreamSpout" in airflow_trident.__all__


def test_the_names_of_storms_older_apis_are_in_a_package_of_their_own() -> None:
    import airflow_trident.storm as storm

    assert [getattr(storm, name).__name__ for name in storm.__all__] == storm.__all__
    assert set(storm.__all__) <= set(dir(storm))
    assert set(storm.__all__) & set(airflow_trident.__all__) == set()
    with pytest.raises(AttributeError, match="storm' has no attribute 'Topology'"):
        storm.Topology  # noqa: B018


DAG = """
from airflow_trident import Count, FileSpout, SqliteState, Topology, trident_transaction
from airflow.sdk import DAG

topology = Topology("words")
lines = topology.new_stream("lines", FileSpout("/data/lines"))
lines.group_by("line").persistent_aggregate(SqliteState("/data/counts.db"), Count(), "n")
with DAG("words", schedule=None):
    trident_transaction(topology)
"""


def test_a_dag_without_them_loads_no_module_of_theirs() -> None:
    program = f"{DAG}\nimport sys\nprint([one for one in sys.modules if one.startswith('airflow_trident.storm')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
