"""Text files that the JVM reads itself: where no Python runs on the lines, they need not pass through it.

The lines are those of `spouts.lines`, which defines them. Only with a local master: there the files that this process
has looked at are those that Spark reads.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.spark_columns import Columns
from airflow_trident.protocol.spouts import TextFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNT_WAIT_S = 5.0


@dataclass(frozen=True)
class JvmText:
    """`data`: one column, the lines. Good for one action: that is when its rows are counted."""

    files: TextFiles
    data: DataFrame
    observation: Any

    @classmethod
    def read(cls, session: SparkSession, columns: Columns, files: TextFiles, field: str) -> JvmText:
        from pyspark.sql import Observation

        f = columns.functions

        def line() -> Any:
            value = f.col("value")
            whole = f.when(value.endswith("\r"), f.substring(value, f.lit(1), f.length(value) - 1)).otherwise(value)
            # broken UTF-8 is an error of an expression: then Python reads, which mends it
            return f.validate_utf8(whole).alias(field)

        raw = session.read.option("lineSep", "\n").text([f"file://{path}" for path in files.paths])
        observation = Observation()
        lines = raw.select(columns.known(("line", field), line))
        rows = columns.known("rows", lambda: f.count(f.lit(1)).alias("rows"))
        return cls(files, lines.observe(observation, rows), observation)

    def rows(self) -> int:
        """How many lines there were; -1 if that does not become known."""
        end = time.monotonic() + _COUNT_WAIT_S
        while not self.observation._jo.future().isCompleted():
            if time.monotonic() > end:
                return -1
            time.sleep(0.001)
        return int(self.observation.get["rows"])
