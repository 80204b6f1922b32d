"""Count words in one process: ``python -m tests.programs.grouped_words HOSTS ROOT FOLDER GROUP [HOW ...]``.

GROUP: by a drain that takes so many transactions at a time (a number, or ``auto``); ``runner``: one after the other, as
a notebook does; ``tasks``: as the tasks of one run do that takes all; ``backfill``: by a person.
HOW: ``spark``: with a Spark of its own; ``halves``: passes with transaction 3 and others fail, so that they are run
again in halves; ``lossy``: of four steps of the ledger one is lost, and of one the answer; ``apart``: the plan wants to
know of each row whose it is (else groups are merged by key, where the engine does that).

Two states in two databases and nothing behind them: what the crash tests of groups kill and run again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, Function, SqliteState, Sum, Topology
from airflow_trident.engine.base import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import OutcomeUnknownError, SparkJobError
from airflow_trident.ledger.base import Ledger
from airflow_trident.ledger.znode_ledger import ZNodeLedger
from airflow_trident.ledger.znodes import Op
from airflow_trident.ledger.zookeeper.client import ZooKeeperZNodes
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.operations.api import OperationContext
from airflow_trident.protocol.records import Claim
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.backfill import Backfill, BackfillOutcome, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.coordinators import OpenCoordinators
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.drains.process_many import process_many
from airflow_trident.runtime.group_phases import coordinate_many
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate
from airflow_trident.staging.manifest import Manifest
from tools import kills

WORDS = [f"word{number % 7}" for number in range(48)]
TRANSACTIONS = 12
PROCESS = "GROUPED_WORDS_PROCESS"
"""Variable of the environment: the drain, for workers of its Spark."""


class Weigh(Function):
    """1.0 a word; may be where the program dies in the middle of a pass."""

    def prepare(self, context: OperationContext) -> None:
        self._txid = context.txid

    def execute(self, word: str) -> Iterator[float]:
        kills.die(kills.IN_PASS, self._txid, int(os.environ[PROCESS]))
        yield 1.0


def topology(folder: Path, *how: str) -> Topology:
    made = Topology("grouped_words")
    spout = FixedBatchSpout("word string", WORDS, 4)
    words = made.new_stream("words", spout).each("word", Weigh(), "weight").group_by("word")
    stores = {name: SqliteState(str(folder / f"{name}.db")) for name in ("one", "two")}
    words.persistent_aggregate(stores["one"], Count(), "n", name="one")
    if "apart" in how:  # a sum of floats depends on the order, so no two batches are merged
        words.persistent_aggregate(stores["two"], "weight", Sum(), "n", name="two")
    else:
        words.persistent_aggregate(stores["two"], Count(), "n", name="two")
    return made


def contents(folder: Path, *how: str) -> dict[str, dict[str, float]]:
    """What the states hold."""
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
    """It gets by with transaction 3 if there is no other one beside it."""

    def run_small_group(jobs: Sequence[Job]) -> Manifest:
        if len(jobs) > 1 and any(job.slot.txid == 3 for job in jobs):
            raise SparkJobError("too much at once", "Run it again.")
        return run_group(jobs)

    return run_small_group


class Lossy(ZooKeeperZNodes):
    """Of four steps the first one is lost, and of the third the answer."""

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
    with OpenCoordinators(made) as opened:
        claims = [Claim(key=f"run/{number}") for number in range(TRANSACTIONS)]
        coordinate_many(ledger, made, claims, opened, max_pending=TRANSACTIONS, attempt_by="", check_states=True)
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
    """Of transactions that a coordinator has begun, and nobody has processed."""
    for number in range(TRANSACTIONS):
        coordinate(ledger, made, Claim(key=f"run/{number}"), max_pending=TRANSACTIONS)
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
