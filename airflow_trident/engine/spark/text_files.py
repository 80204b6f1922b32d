"""Text files that the JVM reads itself: where no Python runs on the lines, they need not pass through it.

The lines are those of `spouts.files.lines`, which defines them. Only with a local master: there the files that this
process has looked at are those that Spark reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import TextFiles
from airflow_trident.engine.spark.jvm_nodes import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_text(session: SparkSession, columns: Columns, files: TextFiles, field: str) -> DataFrame:
    """The lines, as one column of this name."""
    f = columns.functions

    def line() -> Any:
        value = f.col("value")
        if files.returns:
            ends = value.endswith("\r")
            value = f.when(ends, value.substr(f.lit(1), f.length(value) - 1)).otherwise(value)
        return value.alias(field)

    raw = session.read.option("lineSep", "\n").text([f"file://{path}" for path in files.paths])
    return raw.select(columns.known(("line", field, files.returns), line))
