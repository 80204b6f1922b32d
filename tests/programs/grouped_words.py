"""Counts words in one process: ``python -m tests.programs.grouped_words HOSTS ROOT FOLDER GROUP [HOW ...]``.

GROUP: a number or ``auto``: a drain that takes so many transactions at a time; ``runner``: one after the other, as in a
notebook; ``tasks``: like the tasks of one run that takes all; ``backfill``: like a person's backfill.
HOW: ``spark``: with its own Spark; ``halves``: passes with transaction 3 and others fail, so they are run again in
halves; ``lossy``: of every four steps of the ledger one is lost, and of another one the answer; ``apart``: the plan
must know the transaction of each row (otherwise groups are merged by key, if the engine does that); ``made``: words go
through a function of DataFrames, and only Spark can run it.

It has two states in two databases and no commit phase. Crash tests of groups kill it and run it again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from airflow_trident import Count, FixedBatchSpout, Function, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import OutcomeUnknownError, SparkJobError
from airflow_trident.ledger.ledger import Ledger, ZNodeLedger
from airflow_trident.ledger.znodes import Op
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.drains.process_many import process_many
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.open_resources import OpenCoordinators
from airflow_trident.runtime.phases import Attempts, coordinate
from airflow_trident.staging.manifest import Manifest
from tools import kills

WORDS = [f"word{number % 7}" for number in range(48)]
TRANSACTIONS = 12
PROCESS = "GROUPED_WORDS_PROCESS"
"""Environment variable with the process id of the drain, for the workers of its Spark."""


class Weigh(Function):
    """Gives 1.0 for each word. The program may die here, in the middle of a pass."""

    def prepare(self, context: OperationContext) -> None:
        self._txid = context.txid

    def execute(self, word: str) -> Iterator[float]:
        kills.die(kills.IN_PASS, self._txid, int(os.environ[PROCESS]))
        yield 1.0


def weighty(frame: Any) -> Any:
    """All words of a batch, by an aggregation: so it matters which rows the function gets."""
    return (
        frame.groupBy("word")
        .agg({"weight": "count"})
        .selectExpr("word", "explode(array_repeat(1.0D, int(`count(weight)`))) AS weight")
    )


def topology(folder: Path, *how: str) -> Topology:
    made = Topology("grouped_words")
    spout = FixedBatchSpout("word string", WORDS, 4)
    weighed = made.new_stream("words", spout).each("word", Weigh(), "weight")
    words = (weighed.transform(weighty, "word string, weight double") if "made" in how else weighed).group_by("word")
    stores = {name: SqliteState(str(folder / f"{name}.db")) for name in ("one", "two")}
    words.persistent_aggregate(stores["one"], Count(), "n", name="one")
    if "apart" in how:  # a sum of floats depends on the order, so no two batches are merged
        words.persistent_aggregate(stores["two"], "weight", Sum(), "n", name="two")
    else:
        words.persistent_aggregate(stores["two"], Count(), "n", name="two")
    return made


def contents(folder: Path, *how: str) -> dict[str, dict[str, float]]:
    """The content of the states."""
    found: dict[str, dict[str, float]] = {}
    for name, spec in topology(folder, *how).states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = {key: count for (key,), (count,) in state.items()}
    return found


def engine_of(how: Sequence[str]) -> Engine:
    if "spark" not in how:
        return LocalEngine()
    from airflow_trident.engine.spark.engine import SparkEngine
    from airflow_trident.engine.spark.sessions.local import LocalSessions

    return SparkEngine(LocalSessions("local[2]", conf={"spark.driver.memory": "512m"}))


def refuse(run_group: Callable[[Sequence[Job]], Manifest]) -> Callable[[Sequence[Job]], Manifest]:
    """A `run_group` that can only process transaction 3 alone."""

    def run_small_group(jobs: Sequence[Job]) -> Manifest:
        if len(jobs) > 1 and any(job.slot.txid == 3 for job in jobs):
            raise SparkJobError("too much at once", "Run it again.")
        return run_group(jobs)

    return run_small_group


class Lossy(ZooKeeperZNodes):
    """Of every four steps the first one is lost, and of the third one the answer."""

    def __init__(self, settings: ZooKeeperSettings) -> None:
        super().__init__(settings)
        self._faults = cycle(("request", "", "answer", ""))

    def multi(self, ops: Sequence[Op]) -> None:
        fault = next(self._faults)
        if fault != "request":
            super().multi(ops)
        if fault:
            raise OutcomeUnknownError(f"the {fault} was lost", "Run the same step again.")


def as_tasks(ledger: Ledger, made: Topology, staging: str, engine: Engine) -> None:
    """Coordinator, emitter and committer of a run that takes all, in passes of five."""
    with OpenCoordinators(made, ledger) as opened:
        claims = [Claim(key=f"run/{number}") for number in range(TRANSACTIONS)]
        coordinate(ledger, made, claims, max_pending=TRANSACTIONS, coordinators=opened)
    txids, attempts = range(1, TRANSACTIONS + 1), Attempts(owner="emit")
    for ended in process_many(
        ledger,
        made,
        txids,
        engine,
        staging,
        attempts,
        print,
        group=5,
        is_free=lambda tx: tx.status is Status.PROCESSING,
    ):
        assert not ended.failures
    committer = Committer(
        ledger=ledger, topology=made, staging_root=staging, attempts=Attempts(owner="commit"), engine=lambda: engine
    )
    committer.commit(TRANSACTIONS, take_over=True)


def as_backfill(ledger: Ledger, made: Topology, staging: str, engine: Engine) -> None:
    """A backfill of transactions that a coordinator has begun and nobody has processed."""
    for number in range(TRANSACTIONS):
        coordinate(ledger, made, [Claim(key=f"run/{number}")], max_pending=TRANSACTIONS)
    done = Backfill(
        ledger=ledger, topology=made, engine=lambda: engine, staging_root=staging, owner="a person", group=5
    ).run(Selection(first=1))
    assert not [one for one in done if one.outcome is BackfillOutcome.FAILED], done


def main(hosts: str, root: str, folder: str, group: str, *how: str) -> None:
    os.environ[PROCESS] = str(os.getpid())
    made, staging = topology(Path(folder), *how), f"{folder}/staging"
    settings = ZooKeeperSettings(hosts=hosts)
    client = (Lossy if "lossy" in how else ZooKeeperZNodes)(settings)
    engine = engine_of(how)
    if "halves" in how:
        engine.run_group = refuse(engine.run_group)  # type: ignore[method-assign]
    with ZNodeLedger(client, made.name, root) as ledger, engine:
        if group == "runner":
            LocalRunner(ledger=ledger, topology=made, engine=engine, staging_root=staging).run()
            return
        if group in ("tasks", "backfill"):
            (as_tasks if group == "tasks" else as_backfill)(ledger, made, staging, engine)
            return
        Drain(
            ledger=ledger,
            topology=made,
            engine=engine,
            staging_root=staging,
            attempts=Attempts(owner="drain"),
            claim=Claim(key="drain"),
            limits=DrainLimits(group=group),
        ).run()


if __name__ == "__main__":
    kills.install()
    main(*sys.argv[1:])
