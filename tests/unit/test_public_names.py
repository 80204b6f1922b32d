"""Every public name is found where it is."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from importlib import import_module
from itertools import chain

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
    assert loaded == "['airflow_trident', 'airflow_trident.public_names', 'airflow_trident.version']"
    assert complete == "True"


PACKAGES = ["functions", "spouts", "states", "storm"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_names_of_each_package_are_there(package: str) -> None:
    module = import_module(f"airflow_trident.{package}")
    assert [getattr(module, name).__name__ for name in module.__all__] == module.__all__
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"{package}' has no attribute 'Topology'"):
        module.Topology  # noqa: B018


def test_a_name_is_public_in_one_package() -> None:
    lists = [airflow_trident.__all__, *(import_module(f"airflow_trident.{package}").__all__ for package in PACKAGES)]
    doubled = sorted(name for name, count in Counter(chain(*lists)).items() if count > 1)
    # The aggregators that most topologies need; Storm's function and a source's split have one name.
    assert doubled == ["Count", "Max", "Min", "Split", "Sum"]


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
