"""`python -m benchmarks.children`: the cost of a bolt in another program for each row, beside a Python function.

All split lines, in the pass that a Spark worker runs, over one partition whose rows are generated and not kept. Each
run is a process of its own; rounds are interleaved, and each begins with another component.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_trident import Aggregator, FixedBatchSpout, OperationContext, Topology
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.operations.interfaces import Collector
from airflow_trident.plan.stages import Plan
from airflow_trident.storm import (
    BaseBatchBolt,
    BasicBolt,
    BatchOutputCollector,
    BoltTuple,
    NodeBolt,
    OutputFieldsDeclarer,
    ShellBolt,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
)
from airflow_trident.storm.components import qtopology, running
from airflow_trident.storm.components.bolt import ChildBolt
from tests.fixtures.pieces import keep

TESTED = str(Path(__file__).parents[1] / "tests" / "programs" / "components")
OWN = str(Path(__file__).parent / "components")
BATCH_ROWS = 10_000
LOOK_S = 0.02
WORDS = ("snow", "white", "and", "the", "seven", "dwarfs")


def split(line: str) -> list[str]:
    return line.split()


class Splitter(BaseBatchBolt):
    """The same function as a batch bolt of Storm."""

    def prepare(
        self,
        conf: Mapping[str, Any],
        context: TopologyContext,
        collector: BatchOutputCollector,
        id: TransactionAttempt,
    ) -> None:
        self._collector, self._id = collector, id

    def execute(self, tuple: BoltTuple) -> None:
        for word in tuple.get_string(1).split():
            self._collector.emit([self._id, word])

    def finish_batch(self) -> None:
        pass

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


class SplitterOfStream(Aggregator[None]):
    """The same function as an aggregator of a stream; a batch bolt becomes such an aggregator."""

    def init(self, batch: TransactionAttempt, collector: Collector) -> None:
        return None

    def aggregate(self, state: None, collector: Collector, *values: Any) -> None:
        for word in values[0].split():
            collector.emit(word)

    def complete(self, state: None, collector: Collector) -> None:
        pass


class OneByOne(BasicBolt):
    """The same function as a basic bolt of Storm."""

    def execute(self, tuple: BoltTuple, collector: BatchOutputCollector) -> None:
        attempt, line = tuple
        for word in line.split():
            collector.emit([attempt, word])

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("id, word string")


BOLTS: dict[str, BaseBatchBolt[Any] | BasicBolt] = {"batch bolt": Splitter(), "basic bolt": OneByOne()}


def python(*arguments: str, **options: Any) -> ShellBolt:
    return ShellBolt([sys.executable, *arguments], cwd=TESTED, **options)


def storm(**options: Any) -> ShellBolt:
    return python(os.path.join(OWN, "storm_splitter.py"), env={"PYTHONPATH": os.environ["STORM"]}, **options)


def storm_js() -> ShellBolt:
    return ShellBolt(["node", os.path.join(OWN, "storm_splitter.js")], env={"NODE_PATH": os.environ["STORM"]})


def one_by_one() -> NodeBolt:
    """A bolt to which each row, emit and acknowledgement is sent alone."""
    folder = Path(tempfile.mkdtemp(prefix="trident-bench-"))
    for name in ("preload.js", "host.js"):
        text = Path(qtopology.script(name)).read_text(encoding="utf-8")
        (folder / name).write_text(text.replace("const BATCH = 512;", "const BATCH = 1;"), encoding="utf-8")
    qtopology.BATCH_ROWS = 1
    qtopology.script = lambda name: str(folder / name)
    return NodeBolt("splitter.js", working_dir=TESTED)


COMPONENTS: dict[str, Callable[[], ChildBolt]] = {
    "hosted module": lambda: NodeBolt("splitter.js", working_dir=TESTED),
    "hosted module, a message each": one_by_one,
    "pystorm": lambda: python("with_pystorm.py", "Split"),
    "streamparse": lambda: python("-m", "streamparse.run", "with_streamparse.Splitter"),
    "storm.js": storm_js,
    "storm.py": storm,
    "storm.py, task ids ahead": lambda: storm(task_ids_ahead=1000),
    "0.7 program": lambda: NodeBolt("program.js", working_dir=TESTED, type="subproc"),
}
NAMES = ("Python function", "basic bolt", "aggregator", "batch bolt", *COMPONENTS)


def made(name: str) -> Plan:
    lines = FixedBatchSpout("line string", [])
    if name in BOLTS:
        builder = TransactionalTopologyBuilder("bench", "lines", lines, 1)
        builder.set_bolt("split", BOLTS[name], 1).local_or_shuffle_grouping("lines")
        builder.end_stream("split", keep)
        return builder.build().compile()
    topology = Topology("bench")
    stream = topology.new_stream("lines", lines)
    if name == "aggregator":
        keep(stream.partition_aggregate("line", SplitterOfStream(), "word string"))
    else:
        keep(stream.flat_map(COMPONENTS[name]() if name in COMPONENTS else split, "word string"))
    return topology.compile()


def batches(rows: int, emits: int) -> Iterator[Any]:
    import pyarrow as pa

    words = " ".join((WORDS * 2)[: emits - 1])
    for start in range(0, rows, BATCH_ROWS):
        given = range(start, min(rows, start + BATCH_ROWS))
        yield pa.record_batch({"line": [f"{words} {number}".lstrip() for number in given]})


def measured(name: str, emits: int, rows: int) -> dict[str, float]:
    """Measured in this process. A small partition goes first, because some things are imported and read only once."""
    (stage,) = made(name).stages
    through = FusedPass.of(stage.nodes, stage.before)
    context = OperationContext(0, 1, txid=1, attempt=0, topology="bench")
    assert sum(part.num_rows for part in through(batches(100, emits), context)) == 100 * emits
    spent, child, began = time.process_time(), _of_children(), time.perf_counter()
    with peak_of_children() as peak_mb:
        found = sum(part.num_rows for part in through(batches(rows, emits), context))
    taken = time.perf_counter() - began
    worker_us, child_us = (time.process_time() - spent) / rows * 1e6, (_of_children() - child) / rows * 1e6
    assert found == rows * emits, (found, rows * emits)
    return {
        "rows_per_s": rows / taken,
        "worker_us": worker_us,
        "child_us": child_us,
        "worker_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "child_mb": peak_mb(),
    }


@contextmanager
def peak_of_children() -> Iterator[Callable[[], float]]:
    """The highest resident memory of a child that starts during the block, in MB. The kernel forgets it when the child
    ends, so a thread reads it all the time. (The value of ``getrusage`` begins with the size of the forking
    process.)"""
    pids: list[int] = []
    peak_kb = 0
    over = threading.Event()

    class Noted(running.Channel):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            pids.append(self.pid)

    def look() -> None:
        nonlocal peak_kb
        while not over.wait(LOOK_S):
            for pid in pids:
                try:
                    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
                except OSError:  # the child has ended
                    continue
                found = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
                peak_kb = max(peak_kb, *found, 0)

    usual, running.Channel = running.Channel, Noted  # type: ignore[misc]
    looks = threading.Thread(target=look)
    looks.start()
    try:
        yield lambda: peak_kb / 1024
    finally:
        running.Channel = usual  # type: ignore[misc]
        over.set()
        looks.join()


def _of_children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def run(name: str, emits: int, rows: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.children", "--one", name, "--emits", str(emits), "--rows", str(rows)]
    told: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.children", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--emits", type=int, action="append", help="of each row; default: 1 and 7")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--among", action="append", choices=NAMES)
    parser.add_argument("--one", choices=NAMES, help="one run in this process, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.one, given.emits[0], given.rows)))
        return 0
    names = [name for name in given.among or NAMES if not name.startswith("storm.") or os.environ.get("STORM")]
    if len(names) < len(given.among or NAMES):
        print("storm.py and storm.js are left out: STORM names no folder with them")
    for emits in given.emits or (1, 7):
        told: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for number in range(given.runs):
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                told[name].append(run(name, emits, given.rows))
        print(f"\n{given.rows:,} rows of {emits} emits, n = {given.runs}\n")
        print("| component | rows/s | CPU us a row: worker | + child | both, lowest - highest | worker MB | child MB |")
        print("|---|---|---|---|---|---|---|")
        for name, runs in told.items():
            print(_line(name, runs), flush=True)
    return 0


def _line(name: str, runs: list[dict[str, float]]) -> str:
    def middle(what: str) -> float:
        return statistics.median(one[what] for one in runs)

    both = sorted(one["worker_us"] + one["child_us"] for one in runs)
    return (
        f"| {name} | {middle('rows_per_s'):,.0f} | {middle('worker_us'):.1f} | {middle('child_us'):.1f} | "
        f"{both[0]:.1f} - {both[-1]:.1f} | {middle('worker_mb'):.0f} | "
        f"{middle('child_mb'):.0f} |"
    )


if __name__ == "__main__":
    raise SystemExit(main())
