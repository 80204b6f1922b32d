"""`python -m benchmarks.outage`: nobody runs the DAG for a day of small transactions, one a minute: how long to catch
up?

Each way is one run of a DAG in an Airflow of its own (``dag.test()``), with its own ledger on the embedded ZooKeeper
and a Spark that starts cold: by the task group that takes all with one task of each kind (``group="auto"``), by the
drain, and, for as many transactions as wanted, by the drain that takes one at a time. After each run the counts are
compared with those that the generator of the data knows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from benchmarks.data import Corpus, digest_of_state, make
from benchmarks.measure import Watch

MINUTES = 1_440
ALONE = "one by one"
WAYS = ("task group", "drain", ALONE)
_DAG = """\
import json
import os

from airflow.sdk import DAG

from airflow_trident import TridentDrainOperator, trident_transaction
from benchmarks.ours import topology_of
from benchmarks.peers import CORES, HEAP

task = json.loads(os.environ["OUTAGE"])
topology = topology_of(task)
conf = {"spark.master": f"local[{CORES}]", "spark.driver.memory": HEAP}
shared = {"topology": topology, "spark_conf": conf, "staging_dir": task["staging"]}
most = task["batches"]

with DAG("outage", schedule="* * * * *", catchup=False, max_active_runs=1) as dag:
    if task["way"] == "task group":
        trident_transaction(max_transactions=most, group="auto", **shared)
    else:
        group = 1 if task["way"] == "one by one" else "auto"
        TridentDrainOperator(task_id="drain", group=group, max_transactions=most, **shared)
"""
_RUN = """\
import json, time
from airflow.utils import db
db.initdb()
from outage import dag
began = time.perf_counter()
run = dag.test()
print("RESULT " + json.dumps({"s": time.perf_counter() - began, "state": run.state}), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Back:
    """Results of a run of the DAG: its seconds, the memory of its processes, their processor time."""

    s: float
    peak_mb: float
    cpu_s: float


def back_from(task: dict[str, Any], home: Path, zookeeper: EmbeddedZooKeeper) -> Back:
    """:raises RuntimeError: the run did not succeed."""
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "outage.py").write_text(_DAG, encoding="utf-8")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")},
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__TRIDENT__ROOT": task["root"],
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts}),
        "OUTAGE": json.dumps(task),
        "PYTHONPATH": os.pathsep.join([str(home / "dags"), str(Path(__file__).parents[1])]),
    }
    log = home / "log.txt"
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen([sys.executable, "-c", _RUN], env=environment, stdout=output, stderr=output)
        watch = Watch(process.pid)
        watch.start()
        process.wait()
        peak_mb, cpu_s = watch.stop()
    said = [line.removeprefix("RESULT ") for line in log.read_text().splitlines() if line.startswith("RESULT ")]
    result = json.loads(said[-1]) if said else {}
    if result.get("state") != "success":
        raise RuntimeError(f"the run was no success: {log}")
    return Back(s=result["s"], peak_mb=peak_mb, cpu_s=cpu_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outage", description=__doc__)
    parser.add_argument("--minutes", type=int, default=MINUTES, help="of the outage, one transaction each")
    parser.add_argument("--lines", type=int, default=100, help="of a transaction")
    parser.add_argument("--single", type=int, default=60, help="transactions of the last way; 0: none")
    parser.add_argument("--way", action="append", choices=WAYS, help="leave out the others")
    parser.add_argument("--folder", type=Path, default=Path(".trident-bench"), help="for data")
    given = parser.parse_args()
    ways = {way: given.single if way == ALONE else given.minutes for way in given.way or WAYS}
    print(f"{given.minutes:,} transactions of {given.lines:,} lines\n")
    print("| way | transactions | s | s for all | CPU s | peak MB |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="trident-outage-") as below:
        zookeeper = EmbeddedZooKeeper(Path(below) / "zookeeper", heap_mb=512)
        zookeeper.start()
        try:
            for name, count in ways.items():
                if count:
                    _row(name, count, given, Path(below) / name.replace(" ", "_"), zookeeper)
        finally:
            zookeeper.stop()
    return 0


def _row(name: str, count: int, given: argparse.Namespace, folder: Path, zookeeper: EmbeddedZooKeeper) -> None:
    made = make(Corpus(batches=count, lines=given.lines), given.folder.absolute() / "data")
    task = {
        "way": name,
        "data": str(made.folder),
        "batches": count,
        "staging": str(folder / "staging"),
        "state": str(folder / "state.db"),
        "root": f"/outage-{time.time_ns()}",
    }
    folder.mkdir()
    back = back_from(task, folder / "airflow", zookeeper)
    assert digest_of_state(folder / "state.db") == made.digest, f"{name} counted something else"
    all_s = back.s * given.minutes / count
    print(f"| {name} | {count:,} | {back.s:.1f} | {all_s:.0f} | {back.cpu_s:.0f} | {back.peak_mb:,.0f} |", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
