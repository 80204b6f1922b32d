"""Our contenders: the drain, and a task for each phase. Ledger, protocol and states are those that Airflow's tasks use.
Airflow itself is left out: it would cost every contender the same second for each task."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from airflow_trident import Count, FileSpout, PostgresState, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.operations.expressions import col, explode, split
from airflow_trident.plan.stages import Coalescing
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.manifest import Manifest, Slot
from benchmarks.data import FILES_PER_BATCH
from benchmarks.measure import environment
from benchmarks.peers import CORES, HEAP, counted, submitted_to, worded

POSTGRES = "benchmark_postgres"
"""Name of a connection in the environment of the contenders that use it."""


WORD_COUNT = """
SELECT word, count(*) AS count FROM (SELECT explode(split(value, ' ')) AS word FROM {lines}) GROUP BY word
"""
"""What `counted` does, as a query."""


def words_of(line: str) -> Iterator[str]:
    """A user's function for one line."""
    yield from line.split()


def topology_of(task: dict[str, Any]) -> Topology:
    topology = Topology("bench")
    kind = "parquet" if task.get("parquet") else "text"
    spout = FileSpout(task["data"], format=kind, fields="value string", max_files=FILES_PER_BATCH, max_bytes=2**40)
    lines = topology.new_stream("lines", spout)
    state = (
        PostgresState(POSTGRES, schema=task["postgres"], table="counts")
        if task.get("postgres")
        else SqliteState(task["state"], table="counts")
    )
    if task.get("own") or task.get("sql"):
        fields = "word string, count long"
        mine = lines.sql(WORD_COUNT, fields) if task.get("sql") else lines.transform(counted, fields)
        mine.group_by("word").persistent_aggregate(state, "count", Sum(), "count", name="counts")
        return topology
    if task.get("rowwise"):
        words = lines.transform(worded, "word string", rowwise=True)
    elif task.get("functions"):
        words = lines.each("value", words_of, "word string")
    else:
        words = lines.each(explode(split(col("value"), " ")), "word")
    words.group_by("word").persistent_aggregate(state, Count(), "count", name="counts")
    return topology


def ledger_of(task: dict[str, Any], *, incarnation: str = "") -> ZNodeLedger:
    settings = ZooKeeperSettings(hosts=task["zookeeper"])
    return open_ledger(settings, "bench", root=task["root"], incarnation=incarnation)


# ---- the drain -------------------------------------------------------------------------------------------------


class ByTransaction(SparkEngine):
    """Processes groups by transaction, as if the state were not merged by exact built-ins."""

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        return super().run_group([by_transaction(job) for job in jobs])


def by_transaction(job: Job) -> Job:
    coalesces = replace(job.plan.coalesces, how=Coalescing.BY_TRANSACTION)
    return replace(job, plan=replace(job.plan, coalesces=coalesces))


def drain(task: dict[str, Any]) -> dict[str, Any]:
    """Many transactions in one Spark application."""
    with ledger_of(task) as ledger:
        return drained(task, ledger)


def drained(task: dict[str, Any], ledger: Ledger) -> dict[str, Any]:
    from airflow_trident.engine.spark.sessions.local import LocalSessions

    topology = topology_of(task)
    sessions = LocalSessions(f"local[{CORES}]", conf={"spark.driver.memory": HEAP}, one_shot=False)
    with (ByTransaction if task.get("by_transaction") else SparkEngine)(sessions) as engine:
        sessions.open(Slot(topology="bench", incarnation="none", txid=0, attempt=0)).release()
        began = time.perf_counter()
        result = Drain(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=task["staging"],
            attempts=Attempts(owner="benchmark"),
            claim=Claim(key="benchmark"),
            limits=DrainLimits(max_pending=task.get("max_pending"), group=task.get("group", "auto")),
        ).run()
        work_s = time.perf_counter() - began
    assert len(result.committed) == task["batches"], result
    return {"work_s": work_s}


# ---- a phase per task ------------------------------------------------------------------------------------------


def phases(task: dict[str, Any]) -> dict[str, Any]:
    """Coordinator, emitter and committer of each batch, each in a process of its own, one after the other."""
    spent = {"coordinate": 0.0, "process": 0.0, "commit": 0.0}
    for batch in range(1, task["batches"] + 1):
        for phase in spent:
            began = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.contender", f"phase_{phase}", task["path"], str(batch)]
            subprocess.run(command, check=True, env=environment())
            spent[phase] += time.perf_counter() - began
    return {f"{phase}_s": seconds / task["batches"] for phase, seconds in spent.items()}


def phase_coordinate(task: dict[str, Any], batch: int) -> None:
    with ledger_of(task) as ledger:
        coordinate(ledger, topology_of(task), [Claim(key=f"run-{batch}")])


def phase_process(task: dict[str, Any], batch: int) -> None:
    with ledger_of(task) as ledger, _engine(task) as engine:
        process(ledger, topology_of(task), batch, engine, task["staging"], Attempts(owner="benchmark"))


def phase_commit(task: dict[str, Any], batch: int) -> None:
    with ledger_of(task) as ledger:
        Committer(
            ledger=ledger,
            topology=topology_of(task),
            staging_root=task["staging"],
            attempts=Attempts(owner="benchmark"),
            engine=lambda: _engine(task),
        ).commit(batch)


def _engine(task: dict[str, Any]) -> Engine:
    if task.get("connect"):
        from airflow_trident.engine.spark.sessions.connect import ConnectSessions

        return SparkEngine(ConnectSessions(task["connect"]))
    from airflow_trident.engine.spark.submit import SubmitEngine
    from tests.fixtures.spark_submit import SparkSubmitProcess

    submit = SparkSubmitProcess(*submitted_to(task))
    return SubmitEngine(submit, submit.cancel)
