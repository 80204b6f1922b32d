"""Every public name is found where it is."""

from __future__ import annotations

import subprocess
import sys

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
