"""`python -m benchmarks.commit_phase`: the cost of a level of the commit phase, on the local engine and row by row.

Each shape continues from the new values of a state, as `new_values_stream()` gives them. Both engines get the same
tuples, in interleaved rounds, and must give the same result. Row by row is the engine that tests compare all others
with.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from airflow_trident import Count, FixedBatchSpout, Max, MemoryState, Sum, Topology, VectorFunction
from airflow_trident.engine.engine import Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.operations.expressions import col, length
from airflow_trident.runtime.downstream import level_job
from airflow_trident.topology.stream import Stream
from tests.fixtures.engine import Longest, keep
from tests.fixtures.state import ticket
from tests.oracle.rows import OracleEngine

Build = Callable[[Topology, Stream], Stream]


def keep_some(word: str, count: int) -> bool:
    return count % 2 == 1 or word.endswith("7")


def score_of(word: str, count: int) -> Iterator[int]:
    yield len(word) * 7 + count


class Score(VectorFunction):
    def execute(self, *columns: pa.Array) -> pa.Array:
        return pc.add(pc.multiply(pc.utf8_length(columns[0]).cast(pa.int64()), 7), columns[1])


def filter_and_project(_: Topology, new: Stream) -> Stream:
    return new.filter(col("count") > 50).project("word")


def filter_and_compute(_: Topology, new: Stream) -> Stream:
    many = new.filter((col("count") > 50) & ~col("word").starts_with("w9"))
    return many.each(col("count") * 7 + length(col("word")), "score").project("score")


def few_groups(_: Topology, new: Stream) -> Stream:
    return new.group_by("count").aggregate(Count(), "words")


def several_aggregates(_: Topology, new: Stream) -> Stream:
    sized = new.each(length(col("word")), "size")
    return sized.group_by("size").aggregate((Count(), "words"), ("count", Sum(), "total"), ("word", Max(), "last"))


def many_groups(_: Topology, new: Stream) -> Stream:
    return new.group_by("word").aggregate("count", Sum(), "total")


def vectorised(_: Topology, new: Stream) -> Stream:
    return new.each("word, count", Score(), "score long").project("score")


def functions_of_a_tuple(_: Topology, new: Stream) -> Stream:
    return new.filter("word, count", keep_some).each("word, count", score_of, "score long").project("score")


def combiner_of_a_user(_: Topology, new: Stream) -> Stream:
    return new.group_by("count").aggregate("word", Longest(), "longest")


def join(topology: Topology, new: Stream) -> Stream:
    large = new.filter(col("count") > 50)
    return topology.join([new, large], ["word", "word"], "word, count, again").project("word, again")


SHAPES: dict[str, Build] = {
    "filter, project": filter_and_project,
    "filter, arithmetic, project": filter_and_compute,
    "count of 100 groups": few_groups,
    "count, sum and maximum of 6 groups": several_aggregates,
    "sum of as many groups as tuples": many_groups,
    "vectorised function": vectorised,
    "filter and function of a tuple": functions_of_a_tuple,
    "combiner of a user's, 100 groups": combiner_of_a_user,
    "join of two streams": join,
}


def job_of(build: Build, rows: int) -> Job:
    """The first level after a state of words and counts, of which a batch changed `rows`."""
    topology = Topology("bench")
    words = topology.new_stream("words", FixedBatchSpout("word string", []))
    counts = words.group_by("word").persistent_aggregate(MemoryState(), Count(), "count", name="counts")
    keep(build(topology, counts.new_values_stream()), "out")
    plan = topology.compile()
    (level,) = plan.commit
    (source,) = level.new_values
    names = [f"w{number * 7919 % rows}" for number in range(rows)]
    table = pa.table({"word": names, "count": pa.array([number * 31 % 100 for number in range(rows)], pa.int64())})
    return level_job(plan, level, ticket(1), {source: table}, lambda _: None)


def seconds_of(job: Job, runs: int) -> tuple[list[float], list[float]]:
    """Times of the oracle and of the local engine, in seconds, one for each round after a first round to warm up."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(runs + 1):
        given = []
        for engine, times in zip((OracleEngine(), LocalEngine()), taken, strict=True):
            began = time.perf_counter()
            table = dict(engine.tables(job))["out"]
            if number:
                times.append(time.perf_counter() - began)
            given.append(table)
        assert number or Counter(table_to_rows(given[0])) == Counter(table_to_rows(given[1])), "they differ"
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.commit_phase", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    print(f"{given.rows:,} new values, n = {given.runs}\n")
    print("| shape | row by row ms | local engine ms | times as fast (lowest - highest of rounds) |")
    print("|---|---|---|---|")
    for name, build in SHAPES.items():
        slow, fast = seconds_of(job_of(build, given.rows), given.runs)
        ratios = sorted(one / other for one, other in zip(slow, fast, strict=True))
        print(
            f"| {name} | {statistics.median(slow) * 1000:,.0f} | {statistics.median(fast) * 1000:,.0f} | "
            f"{statistics.median(ratios):.1f} ({ratios[0]:.1f} - {ratios[-1]:.1f}) |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
