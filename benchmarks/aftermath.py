"""`python -m benchmarks.aftermath`: what each way of writing a batch leaves behind after an accident, counted in rows.

Batches of 1,000 rows. Each job is a process of its own, as a task is. A job is killed with SIGKILL at a named place, or
paused there while another one runs to its end. Nobody cleans up between jobs: so it is with a retry, with a clear, and
with a scheduler that takes a living task for dead.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS = 1_000
BEFORE, MIDDLE, AFTER, PAUSED = "before", "middle", "after", "paused"
TIMEOUT_S = 600


# ---- accidents -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One job: the batch that it writes, and its accident. A paused job goes on when the next one has ended."""

    batch: int
    accident: str = ""


ACCIDENTS: dict[str, tuple[int, tuple[Step, ...]]] = {
    "retry: killed when all was written, run again": (1, (Step(1, AFTER), Step(1))),
    "kill: killed while it wrote, run again": (1, (Step(1, MIDDLE), Step(1))),
    "clear: it had succeeded, run again": (1, (Step(1), Step(1))),
    "late: killed before it wrote, run again when the next batch is in": (2, (Step(1, BEFORE), Step(2), Step(1))),
    "two at once: thought dead, and went on beside its retry": (1, (Step(1, PAUSED), Step(1))),
}
"""Accident -> the number of batches, and the jobs. The right result is each batch once."""


@dataclass(frozen=True)
class Place:
    """The place of a job's accident. It is sent to Spark's workers."""

    folder: str
    accident: str
    driver: int

    def reached(self, where: str) -> None:
        """Die here, or wait here, once, if that is the job's accident."""
        if self.accident == PAUSED and where == MIDDLE:
            Path(self.folder, "paused").touch()
            while not Path(self.folder, "go on").exists():
                time.sleep(0.02)
        elif self.accident == where:
            os.kill(self.driver, signal.SIGKILL)
            signal.pause()  # in a worker of Spark: its driver is gone, and the worker is ended, too


# ---- ways ------------------------------------------------------------------------------------------------------


def _spark_rows(frame: Any, place: Place) -> Any:
    """The rows unchanged; in the middle of them the place is reached."""

    def rows(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            place.reached(MIDDLE)
            yield batch.slice(half)

    return frame.mapInArrow(rows, "value string")


def spark_append(folder: str, batch: int, place: Place) -> None:
    """`write.mode("append")`."""
    from benchmarks.peers import session

    frame = session().read.text(f"{folder}/in/{batch}.txt")
    _spark_rows(frame, place).write.mode("append").parquet(f"{folder}/out")


def spark_overwrite(folder: str, batch: int, place: Place) -> None:
    """`write.mode("overwrite")` of a folder for each batch."""
    from benchmarks.peers import session

    frame = session().read.text(f"{folder}/in/{batch}.txt")
    _spark_rows(frame, place).write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")


def available_now(folder: str, _batch: int, place: Place) -> None:
    """Structured Streaming, `AvailableNow`, a checkpoint, and `foreachBatch` that appends."""
    from benchmarks.peers import session

    def append(frame: Any, _number: int) -> None:
        _spark_rows(frame, place).write.mode("append").parquet(f"{folder}/out")
        place.reached(AFTER)

    writer = session().readStream.text(f"{folder}/in").writeStream.foreachBatch(append)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def delta_txn(folder: str, batch: int, place: Place) -> None:
    """A Delta table's own transaction numbers, by `deltalake`: look up the last number of this application, leave out a
    batch that is not above it, append with the number in the commit."""
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    table = f"{folder}/out"
    last = DeltaTable(table).transaction_version("job") if DeltaTable.is_deltatable(table) else None
    if last is not None and last >= batch:
        return
    rows = pa.table({"value": Path(folder, "in", f"{batch}.txt").read_text().splitlines()})
    place.reached(MIDDLE)
    properties = CommitProperties(app_transactions=[Transaction("job", batch)])
    write_deltalake(table, rows, mode="append", commit_properties=properties)


def ours(folder: str, _batch: int, place: Place) -> None:
    """airflow-trident: a drain, as `TridentDrainOperator` runs it, into a `FileSink`."""
    from airflow_trident import FileSink, FileSpout, Topology
    from airflow_trident.engine.local import LocalEngine
    from airflow_trident.ledger.open import open_ledger
    from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
    from airflow_trident.protocol.records import Claim
    from airflow_trident.runtime.drains.drain import Drain
    from airflow_trident.runtime.phases import Attempts
    from tools import kills

    seen = 0

    def through(value: str) -> list[str]:
        nonlocal seen
        seen += 1
        if seen == ROWS // 2:
            place.reached(MIDDLE)
        return [value]

    if place.accident == AFTER:  # after the sink has the batch, and before the ledger knows
        os.environ[kills.VARIABLE] = f"applied@1:{folder}/killed"
        kills.install()
    topology = Topology("aftermath")
    lines = topology.new_stream("lines", FileSpout(f"{folder}/in/*.txt", format="text", max_files=1))
    lines.each("line", through, "value string").partition_persist(FileSink(f"{folder}/out"), "value", name="rows")
    hosts, root = os.environ["AFTERMATH_ZOOKEEPER"].split()
    me = f"job {os.getpid()}"
    with open_ledger(ZooKeeperSettings(hosts=hosts), topology.name, root=root) as ledger, LocalEngine() as engine:
        Drain(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=f"{folder}/staging",
            attempts=Attempts(owner=me),
            claim=Claim(key=me),
        ).run()


WAYS: dict[str, Callable[[str, int, Place], None]] = {
    "Spark, `append`": spark_append,
    "Spark, `overwrite` of a folder for each batch": spark_overwrite,
    "`AvailableNow`, checkpoint, `foreachBatch` that appends": available_now,
    "Delta's application transactions (`deltalake`)": delta_txn,
    "airflow-trident": ours,
}


# ---- jobs ------------------------------------------------------------------------------------------------------


def job(way: str, folder: str, step: Step) -> None:
    """One job, in a process of its own."""
    place = Place(folder, step.accident, os.getpid())
    place.reached(BEFORE)
    WAYS[way](folder, step.batch, place)
    place.reached(AFTER)


def rows_after(way: str, steps: tuple[Step, ...], environment: dict[str, str]) -> tuple[int, str]:
    """The number of rows in the end, and how the jobs ended."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "in").mkdir()
        ended: list[str] = []
        waiting: subprocess.Popen[bytes] | None = None
        for step in steps:
            _make_batch(folder, step.batch)
            process = _begin(way, folder, step, environment)
            if step.accident == PAUSED:
                waiting = process
                _until(Path(folder, "paused"), process)
                continue
            ended.append(_end(process))
        if waiting is not None:
            Path(folder, "go on").touch()
            ended.append(f"the old one: {_end(waiting)}")
        return _count(f"{folder}/out"), ", ".join(ended)


def _make_batch(folder: str, batch: int) -> None:
    path = Path(folder, "in", f"{batch}.txt")
    if not path.exists():
        path.write_text("".join(f"{batch}-{number}\n" for number in range(ROWS)))


def _begin(way: str, folder: str, step: Step, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.aftermath", "--job", way, folder, str(step.batch), step.accident]
    with Path(folder, "log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=log)


def _end(process: subprocess.Popen[bytes]) -> str:
    code = process.wait(timeout=TIMEOUT_S)
    return {0: "success", -signal.SIGKILL: "killed"}.get(code, "failed")


def _until(flag: Path, process: subprocess.Popen[bytes]) -> None:
    while not flag.exists():
        if process.poll() is not None:
            said = flag.with_name("log").read_text()[-2000:]
            raise RuntimeError(f"the job ended ({process.returncode}) before it was to be stopped: {said}")
        time.sleep(0.02)


def _count(out: str) -> int:
    """All rows that a reader of the folder or table sees."""
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    if not Path(out).exists():
        return 0
    if DeltaTable.is_deltatable(out):
        return int(DeltaTable(out).to_pyarrow_dataset().count_rows())
    return int(ds.dataset(out, format="parquet").count_rows())


# ---- all -------------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.aftermath", description=__doc__)
    parser.add_argument("--job", nargs=4, metavar=("WAY", "FOLDER", "BATCH", "ACCIDENT"), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", metavar="WAY", help="ways with this in their name")
    parser.add_argument("--accident", default="", metavar="WHAT", help="accidents with this in their name")
    given = parser.parse_args()
    if given.job:
        way, folder, batch, accident = given.job
        job(way, folder, Step(int(batch), accident))
        return 0
    from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper

    ours_right = True
    print("| way | what happened | rows | of | how the jobs ended |\n|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as data, ExitStack() as stack:
        server = EmbeddedZooKeeper(data)
        stack.callback(server.stop)
        server.start()
        ways = [way for way in WAYS if given.only in way]
        for number, (way, (what, (batches, steps))) in enumerate((w, a) for w in ways for a in ACCIDENTS.items()):
            if given.accident not in what:
                continue
            environment = {
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "AFTERMATH_ZOOKEEPER": f"{server.hosts} /aftermath-{number}",
            }
            rows, ended = rows_after(way, steps, environment)
            right = rows == batches * ROWS
            ours_right &= right or WAYS[way] is not ours
            shown = f"{rows:,}" if right else f"**{rows:,}**"
            print(f"| {way} | {what} | {shown} | {batches * ROWS:,} | {ended} |", flush=True)
    return 0 if ours_right else 1


if __name__ == "__main__":
    sys.exit(main())
