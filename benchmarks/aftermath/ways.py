"""Ways to write a batch, each as its documents show it. A job is a process of its own, as a task is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.aftermath.accidents import (
    ROWS,
    TIMEOUT_S,
    Accident,
    At,
    Left,
    Place,
    arrive,
    iceberg_table,
    make_delta_table,
    spark_rows,
    values_of,
)
from benchmarks.peers import session
from tests.fixtures.delta_spark import delta_settings

ONE = {"spark.master": "local[1]"}
"""One task after the other."""


def spark_overwrite(folder: str, batch: int, place: Place) -> None:
    """`write.mode("overwrite")` of a folder for each batch."""
    frame = session(conf=ONE).read.text(f"{folder}/in/{batch}.txt")
    place.reached(At.DECIDED)
    spark_rows(frame, place).write.mode("overwrite").parquet(f"{folder}/out/batch={batch}")
    place.reached(At.WRITTEN)


def available_now(folder: str, _batch: int, place: Place) -> None:
    """Structured Streaming, `AvailableNow`, a checkpoint, and `foreachBatch` that appends."""

    def append(frame: Any, _number: int) -> None:
        place.reached(At.DECIDED)
        spark_rows(frame, place).write.mode("append").parquet(f"{folder}/out")
        place.reached(At.WRITTEN)

    _stream(folder, session(conf=ONE), append)


def foreach_txn(folder: str, _batch: int, place: Place) -> None:
    """The same into a Delta table, with `txnAppId` and `txnVersion` as Delta's documents say for `foreachBatch`."""

    def append(frame: Any, number: int) -> None:
        place.reached(At.DECIDED)
        writer = spark_rows(frame, place).write.format("delta").mode("append")
        writer.option("txnAppId", "job").option("txnVersion", number).save(f"{folder}/out")
        place.reached(At.WRITTEN)

    _stream(folder, session(conf={**ONE, **delta_settings()}), append)


def _stream(folder: str, spark: Any, append: Callable[[Any, int], None]) -> None:
    writer = spark.readStream.text(f"{folder}/in").writeStream.foreachBatch(append)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def delta_txn(folder: str, batch: int, place: Place) -> None:
    """A Delta table's own transaction numbers, by `deltalake`: look up the last number of this application, leave out a
    batch that is not above it, append to the table as it was looked at, with the number in the commit."""
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

    table = DeltaTable(f"{folder}/out")
    last = table.transaction_version("job")
    if last is not None and last >= batch:
        return
    place.reached(At.DECIDED)
    schema = pa.schema([("value", pa.string())])

    def rows() -> Iterator[pa.RecordBatch]:
        for number, value in enumerate(_lines(folder, batch)):
            if number == ROWS // 2:
                place.reached(At.MIDDLE)
            yield pa.RecordBatch.from_pydict({"value": [value]}, schema=schema)

    properties = CommitProperties(app_transactions=[Transaction("job", batch)])
    reader = pa.RecordBatchReader.from_batches(schema, rows())
    write_deltalake(table, reader, mode="append", commit_properties=properties)
    place.reached(At.WRITTEN)


def iceberg_mark(folder: str, batch: int, place: Place) -> None:
    """pyiceberg: the snapshot that appends a batch has its number as a property; what some snapshot has is left out."""
    table = iceberg_table(folder)
    if any(one.summary and one.summary.get("batch") == str(batch) for one in table.snapshots()):
        return
    place.reached(At.DECIDED)
    with table.transaction() as transaction:
        transaction.append(_batch_rows(folder, batch), snapshot_properties={"batch": str(batch)})
        place.reached(At.MIDDLE)
    place.reached(At.WRITTEN)


def iceberg_overwrite(folder: str, batch: int, place: Place) -> None:
    """pyiceberg: the rows of the batch take the place of those that have its number in a column."""
    from pyiceberg.expressions import EqualTo

    table = iceberg_table(folder)
    place.reached(At.DECIDED)
    with table.transaction() as transaction:
        transaction.overwrite(_batch_rows(folder, batch), overwrite_filter=EqualTo("batch", batch))
        place.reached(At.MIDDLE)
    place.reached(At.WRITTEN)


def _batch_rows(folder: str, batch: int) -> Any:
    import pyarrow as pa

    return pa.table({"value": _lines(folder, batch), "batch": [batch] * ROWS})


def _lines(folder: str, batch: int) -> list[str]:
    return Path(folder, "in", f"{batch}.txt").read_text().splitlines()


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
        if seen == 1:
            place.reached(At.DECIDED)
        if seen == ROWS // 2:
            place.reached(At.MIDDLE)
        return [value]

    if place.accident == Accident.RETRY:  # the sink has the batch, and the ledger does not know
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
    "Spark, `overwrite` of a folder for each batch": spark_overwrite,
    "`foreachBatch` that appends": available_now,
    "`foreachBatch`, Delta's `txnVersion`": foreach_txn,
    "Delta's transaction numbers, `deltalake`": delta_txn,
    "Iceberg by hand, a mark in the snapshot": iceberg_mark,
    "Iceberg by hand, `overwrite` of the batch": iceberg_overwrite,
    "ours, `TridentDrainOperator`": ours,
}
DELTA = (foreach_txn, delta_txn)


# ---- jobs ------------------------------------------------------------------------------------------------------


def job(way: str, folder: str, batch: int, accident: str) -> None:
    """One job, in a process of its own."""
    place = Place(folder, accident, os.getpid())
    place.reached(At.BEGIN)
    WAYS[way](folder, batch, place)
    place.reached(At.ENDED)


def left_by(way: str, accident: Accident, zookeeper: str) -> Left:
    """Play an accident. Nobody cleans up between jobs: so it is with a retry, a clear, and a living task that a
    scheduler takes for dead.

    :param zookeeper: of ours: hosts, a space, and a root of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "AFTERMATH_ZOOKEEPER": zookeeper,
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1",
        }
        jobs = _Jobs(way, folder, environment)
        arrive(folder, 1)
        if WAYS[way] in DELTA:
            make_delta_table(folder)
        first = jobs.begin(1, "" if accident is Accident.CLEAR else accident)
        ended = []
        if accident.waits:
            jobs.until_paused(first)
        else:
            ended.append(jobs.end(first))
        if accident is Accident.LATE:
            arrive(folder, 2)
            ended.append(jobs.end(jobs.begin(2, "")))
        ended.append(jobs.end(jobs.begin(1, "")))
        if accident.waits:
            Path(folder, "go on").touch()
            ended.append(f"the old one: {jobs.end(first)}")
        return Left.of(values_of(folder), accident, ", ".join(ended))


class _Jobs:
    """The jobs of one accident."""

    def __init__(self, way: str, folder: str, environment: dict[str, str]) -> None:
        self._way = way
        self._folder = folder
        self._environment = environment

    def begin(self, batch: int, accident: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "benchmarks.aftermath", "--job", self._way, self._folder, str(batch), accident]
        with Path(self._folder, "log").open("wb") as log:
            return subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL, stderr=log)

    def end(self, process: subprocess.Popen[bytes]) -> str:
        try:
            code = process.wait(timeout=TIMEOUT_S)
        finally:
            process.kill()
        return {0: "success", -signal.SIGKILL: "killed"}.get(code, f"failed: {self._error()}")

    def until_paused(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not Path(self._folder, "paused").exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise RuntimeError(f"the job did not come to its place: {self._said()[-3000:]}")
            time.sleep(0.02)

    def _said(self) -> str:
        return Path(self._folder, "log").read_text(errors="replace")

    def _error(self) -> str:
        """The class of the last error."""
        errors = re.findall(
            r"^(?:Caused by: )?(?:\w+\.)*(\w+(?:Error|Exception|Conflict))\b", self._said(), re.MULTILINE
        )
        return errors[-1] if errors else "?"
