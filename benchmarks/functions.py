"""`python -m benchmarks.functions`: three operations of a user's on every row, in five ways on one Spark session.

Rows a second of: native expressions; our fused pass, with functions of a tuple and with vectorised ones; one Python UDF
for each operation, pickled and "Arrow-optimised". The operations: the length of a word, a filter on it, and a score.
All read the same files and give the same sums.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_trident import FileSpout, MemoryState, Sum, Topology, VectorFilter, VectorFunction
from airflow_trident.operations.expressions import col, length, lit
from benchmarks.peers import session
from benchmarks.ways import compared, staged

Totals = dict[int, int]
FILES = 4


class How(Enum):
    EXPRESSIONS = "expressions"
    TUPLES = "a call for every tuple"
    VECTORS = "a call for many tuples"


def size_of(word: str) -> Iterator[int]:
    yield len(word)


def long_enough(size: int) -> bool:
    return size >= 3


def score_of(size: int) -> Iterator[int]:
    yield size * 7 + 1


class Size(VectorFunction):
    def execute(self, *columns: pa.Array) -> pa.Array:
        return pc.utf8_length(columns[0])


class LongEnough(VectorFilter):
    def is_keep(self, *columns: pa.Array) -> pa.Array:
        return pc.greater_equal(columns[0], 3)


class Score(VectorFunction):
    def execute(self, *columns: pa.Array) -> pa.Array:
        return pc.add(pc.multiply(columns[0], 7), 1)


def topology_of(path: str, how: How) -> Topology:
    topology = Topology("functions")
    words = topology.new_stream("words", FileSpout(path, fields="word string"))
    if how is How.EXPRESSIONS:
        sized = words.each(length(col("word")), "size").filter(col("size") >= lit(3))
        scored = sized.each(col("size") * lit(7) + lit(1), "score")
    elif how is How.VECTORS:
        sized = words.each("word", Size(), "size long").filter("size", LongEnough())
        scored = sized.each("size", Score(), "score long")
    else:
        scored = (
            words.each("word", size_of, "size long").filter("size", long_enough).each("size", score_of, "score long")
        )
    scored.group_by("size").persistent_aggregate(MemoryState(), "score", Sum(), "total", name="totals")
    return topology


def ours(spark: Any, path: str, how: How) -> Callable[[], Totals]:
    topology = topology_of(path, how)
    metadata = {"words": topology.spouts["words"].coordinator().initialize_transaction(1, None)}

    def run() -> Totals:
        totals: Totals = {}
        for row in staged(spark, topology, metadata):
            size, total = row.values()
            totals[size] = totals.get(size, 0) + total
        return totals

    return run


def udfs(spark: Any, path: str, *, arrow: bool) -> Callable[[], Totals]:
    """One Python UDF for each operation."""
    from pyspark.sql import functions as f

    size = f.udf(len, "long", useArrow=arrow)
    keep = f.udf(long_enough, "boolean", useArrow=arrow)
    score = f.udf(lambda size: size * 7 + 1, "long", useArrow=arrow)

    def run() -> Totals:
        sized = spark.read.text(path).select(size("value").alias("size"))
        scored = sized.filter(keep("size")).select("size", score("size").alias("score"))
        rows = scored.groupBy("size").agg(f.sum("score").alias("total")).collect()
        return {row["size"]: row["total"] for row in rows}

    return run


def write_words(folder: Path, rows: int) -> None:
    random = np.random.default_rng(7)
    for part in range(FILES):
        numbers = random.integers(0, 100_000, rows // FILES)
        (folder / f"{part}.txt").write_text("".join(f"w{number}\n" for number in numbers))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.functions", description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    spark = session(conf={"spark.sql.adaptive.enabled": "false"})
    with tempfile.TemporaryDirectory() as folder:
        write_words(Path(folder), given.rows)
        ways = {
            "native expressions": ours(spark, folder, How.EXPRESSIONS),
            "fused functions of a tuple": ours(spark, folder, How.TUPLES),
            "fused vectorised functions": ours(spark, folder, How.VECTORS),
            "one UDF each, pickled": udfs(spark, folder, arrow=False),
            "one UDF each, Arrow": udfs(spark, folder, arrow=True),
        }
        expected = ways["one UDF each, pickled"]()
        table = compared(ways, expected, rows=given.rows, runs=given.runs, to="native expressions")
    spark.stop()
    print(f"{given.rows:,} rows, three operations, n = {given.runs}\n")
    print("\n".join(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
