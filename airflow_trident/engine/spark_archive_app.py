"""The application whose classes go into the class archive: a bit of all that a batch does."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def main() -> None:
    from pyspark.sql import SparkSession, functions

    def words(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            yield pa.RecordBatch.from_pydict({"line": [f"a b {number}" for number in batch.column(0).to_pylist()]})

    session = SparkSession.builder.getOrCreate()
    lines = session.range(0, 8, 1, 2).mapInArrow(words, "line string")
    split = lines.select(functions.explode(functions.split("line", " ")).alias("word"))
    counts = split.groupBy("word").agg(functions.count("*").alias("n"), functions.max("word").alias("last"))
    counts.toArrow()
    split.filter("word <> 'a'").repartition(2, "word").mapInArrow(lambda batches: batches, "word string").toArrow()
    session.stop()


if __name__ == "__main__":
    # spark-submit puts this file's folder first on the path, where our modules would hide others of the same names
    sys.path[:] = sys.path[1:]
    main()
