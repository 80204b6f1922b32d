"""What is wrapped so that a transform cannot act."""

from __future__ import annotations

import subprocess
import sys

CLASSIC = """
import sys
from airflow_trident.engine.spark.refused_actions import no_actions
from pyspark.sql.classic.dataframe import DataFrame

with no_actions("transform-1"):
    assert hasattr(DataFrame.collect, "__wrapped__")
assert "pyspark.sql.connect.dataframe" not in sys.modules

from pyspark.sql.connect.dataframe import DataFrame as ConnectFrame

with no_actions("transform-1"):
    assert hasattr(ConnectFrame.collect, "__wrapped__")
"""


def test_a_process_without_connect_does_not_import_it() -> None:
    """Its modules, with gRPC and pandas, take a third of a second. Once they are there, their actions are refused."""
    subprocess.run([sys.executable, "-c", CLASSIC], check=True, timeout=120)
