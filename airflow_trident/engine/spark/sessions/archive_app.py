"""The application whose classes go into the class archive: it uses a little of everything that a batch does."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def main() -> None:
    from pyspark.sql import SparkSession, functions

    from airflow_trident.engine.spark.versions import to_arrow

    def words(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"line": [f"a b {number}" for number in batch.column(0).to_pylist()]})

    def counted(lines: DataFrame) -> DataFrame:
        split = lines.select(functions.explode(functions.split("line", " ")).alias("word"))
        return split.groupBy("word").agg(functions.count("*").alias("n"), functions.max("word").alias("last"))

    session = SparkSession.builder.getOrCreate()
    sibling = session.newSession()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lines.txt")
        path.write_text("a b c\n" * 8)
        text = sibling.read.option("lineSep", "\n").text([path.as_uri()])
        to_arrow(counted(text.select(functions.col("value").alias("line"))))
    lines = sibling.range(0, 8, 1, 2).mapInArrow(words, "line string")
    to_arrow(counted(lines))
    kept = lines.filter("line <> 'a'").repartition(2, "line")
    to_arrow(kept.mapInArrow(lambda batches: batches, "line string"))
    session.stop()


if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where our modules would hide others of the same names
    sys.path[:] = sys.path[1:]
    main()
