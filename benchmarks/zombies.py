"""`python -m benchmarks.zombies`: a slow old attempt against its replacement, on every state, sink and stock writer.

The old attempt of a batch is paused where it hurts most: its rows are ready, or half written, but not committed. The
new attempt runs to its end, then the old one goes on. Both orders of their ends are tried. The right result is the
batch once. The stock writers are Spark's own, as people use them for "idempotent" batches.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_trident import Count, FixedBatchSpout, Topology
from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TridentError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, CommitTicket
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.runtime.staged_batches import apply_batch, staged_batch
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest

ROWS = 1_000
KEYS = 100


@dataclass(frozen=True)
class Result:
    """`rows`: number of rows in the store at the end; `ROWS` is right."""

    store: str
    case: str
    rows: int
    said: str

    @property
    def right(self) -> bool:
        return self.rows == ROWS


# ---- ours ------------------------------------------------------------------------------------------------------


def ours(name: str, factory_of: Callable[[Path], StateFactory], staging: str = "") -> list[Result]:
    """Four places where the old attempt may be when the new one overtakes it.

    :param staging: where to stage instead of in a folder.
    """
    results = []
    for case, run in (
        ("old emitter ends after the new attempt's commit", _late_emitter),
        ("old emitter ends between the new one's processing and commit", _emitter_between),
        ("old committer applies after the new one's commit", _late_committer),
        ("old committer was killed after it applied, before it said so", _applied_not_said),
    ):
        with tempfile.TemporaryDirectory() as folder:
            results.append(run(name, case, World(Path(folder), factory_of(Path(folder)), staging)))
    return results


def counting(keys: list[str], batch_rows: int, factory: StateFactory) -> Topology:
    """A topology whose state `counts` has the count of each key, or the rows themselves if it is a sink."""
    topology = Topology(f"zombies_{uuid.uuid4().hex[:8]}")
    stream = topology.new_stream("rows", FixedBatchSpout("key string", keys, batch_rows))
    if factory.capabilities.appends:
        stream.partition_persist(factory, "key", name="counts")
    else:
        stream.group_by("key").persistent_aggregate(factory, Count(), "count", name="counts")
    return topology


def rows_in(counts: StateSpec) -> int:
    """The number of rows that a state of :func:`counting` has taken."""
    appends = counts.factory.capabilities.appends
    with counts.factory.make_state(counts) as state:
        return sum(1 if appends else value[0] for _, value in state.items())


class World:
    """One transaction of ROWS rows, with a ledger of its own."""

    def __init__(self, folder: Path, factory: StateFactory, staging: str = "") -> None:
        self.topology = counting([f"k{number % KEYS}" for number in range(ROWS)], ROWS, factory)
        self.ledger = MemoryLedger(self.topology.name)
        self.staging = staging or str(folder / "staging")
        self.said: list[str] = []
        coordinate(self.ledger, self.topology, [Claim(key="run")])

    def emit(self, who: str, engine: Engine | None = None) -> None:
        self._note(
            who,
            lambda: process(self.ledger, self.topology, 1, engine or LocalEngine(), self.staging, Attempts(owner=who)),
        )

    def commit(self, who: str) -> None:
        self._note(who, lambda: self._committer(who).commit(1, take_over=True))

    def _committer(self, who: str) -> Committer:
        return Committer(
            ledger=self.ledger,
            topology=self.topology,
            staging_root=self.staging,
            attempts=Attempts(owner=who),
            engine=LocalEngine,
        )

    def gate(self, who: str) -> CommitTicket:
        (ticket,) = self.ledger.gate([1], owner=who)
        return ticket

    def apply(self, who: str, ticket: CommitTicket) -> None:
        """Apply a batch as a committer does after it passed the gate, however long ago: files by reference, if the
        state takes them."""
        (sink,) = self.topology.compile().staged

        def run() -> None:
            area = StagingArea(self.staging)
            batch = staged_batch(area, area.load(ticket.staged), ticket, sink)
            spec = self.topology.states["counts"]
            with spec.factory.make_state(spec) as state:
                apply_batch(state, ticket, batch)

        self._note(who, run)

    def _note(self, who: str, action: Callable[[], object]) -> None:
        try:
            action()
            self.said.append(f"{who}: ok")
        except TridentError as error:
            self.said.append(f"{who}: {type(error).__name__}")

    def result(self, name: str, case: str) -> Result:
        return Result(name, case, rows_in(self.topology.states["counts"]), ", ".join(self.said))


class Slow(LocalEngine):
    """Stages its rows, and waits before it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.staged, self.go_on = threading.Event(), threading.Event()

    def run(self, job: Job) -> Manifest:
        manifest = super().run(job)
        self.staged.set()
        self.go_on.wait()
        return manifest


def _with_slow_emitter(world: World, meanwhile: Callable[[], None]) -> None:
    slow = Slow()
    old = threading.Thread(target=world.emit, args=("old emitter", slow))
    old.start()
    slow.staged.wait()
    meanwhile()
    slow.go_on.set()
    old.join()


def _late_emitter(name: str, case: str, world: World) -> Result:
    def meanwhile() -> None:
        world.emit("new emitter")
        world.commit("committer")

    _with_slow_emitter(world, meanwhile)
    world.commit("committer again")
    return world.result(name, case)


def _emitter_between(name: str, case: str, world: World) -> Result:
    _with_slow_emitter(world, lambda: world.emit("new emitter"))
    world.commit("committer")
    return world.result(name, case)


def _late_committer(name: str, case: str, world: World) -> Result:
    world.emit("emitter")
    ticket = world.gate("old committer")
    world.commit("new committer")
    world.apply("old committer", ticket)
    return world.result(name, case)


def _applied_not_said(name: str, case: str, world: World) -> Result:
    world.emit("emitter")
    world.apply("old committer", world.gate("old committer"))
    world.commit("new committer")
    return world.result(name, case)


# ---- stock -----------------------------------------------------------------------------------------------------


def stock(mode: str, *, old_ends_last: bool) -> Result:
    """Two Spark jobs write the same batch with `DataFrame.write.mode(mode)`; each has two tasks, which write half each.

    The old job is paused when its first task has written its rows and its second one begins.
    """
    from benchmarks.peers import session

    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    folder = Path(tempfile.mkdtemp())
    out, flags = str(folder / "batch"), folder / "flags"
    flags.mkdir()
    said: list[str] = []

    def write(who: str, wait_for: Path | None) -> None:
        begun = flags / "begun"

        def rows(parts: object) -> object:
            import time

            import pyarrow as pa

            for part in parts:  # type: ignore[attr-defined]
                for number in part.column(0).to_pylist():
                    if number == 1 and wait_for is not None:
                        begun.touch()
                        while not wait_for.exists():
                            time.sleep(0.02)
                    yield pa.RecordBatch.from_pydict({"key": [f"k{row % KEYS}" for row in range(ROWS // 2)]})

        try:
            spark.range(0, 2, 1, 2).mapInArrow(rows, "key string").write.mode(mode).parquet(out)
            said.append(f"{who}: ok")
        except Exception as error:  # noqa: BLE001 - the report shows whatever Spark says
            said.append(f"{who}: {type(error).__name__}")

    go_on, newer_on = flags / "go on", flags / "newer on"
    old = threading.Thread(target=write, args=("old", go_on))
    old.start()
    _until(flags / "begun")
    if old_ends_last:
        write("new", None)
        go_on.touch()
        old.join()
    else:
        (flags / "begun").unlink()
        new = threading.Thread(target=write, args=("new", newer_on))
        new.start()
        _until(flags / "begun")
        go_on.touch()
        old.join()
        newer_on.touch()
        new.join()
    rows = -1
    with suppress(Exception):
        rows = spark.read.parquet(out).count()
    shutil.rmtree(folder, ignore_errors=True)
    which = "last" if old_ends_last else "first"
    return Result(f"Spark, mode {mode!r}", f"old attempt ends {which}", rows, ", ".join(said))


def _until(flag: Path) -> None:
    pause = threading.Event()
    while not flag.exists():
        pause.wait(0.02)


# ---- all -------------------------------------------------------------------------------------------------------


def stores() -> dict[str, Callable[[Path], StateFactory]]:
    """States and sinks of the contract tests, with real servers, and those that apply a batch and lose the answer."""
    from tests.fixtures.state import FACTORIES, SINKS

    return {**FACTORIES, **{f"sink: {name}": factory for name, factory in SINKS.items()}}


def matrix(*, with_stock: bool = True) -> list[Result]:
    """Every state and sink, and the stock writers."""
    results = [result for name, factory_of in stores().items() for result in ours(name, factory_of)]
    if with_stock:
        results += [stock(mode, old_ends_last=last) for mode in ("overwrite", "append") for last in (True, False)]
    return results


def as_table(results: list[Result]) -> str:
    lines = ["| store | case | rows of 1,000 | what each said |", "|---|---|---|---|"]
    for one in results:
        rows = f"{one.rows:,}" if one.right else f"**{one.rows:,}**"
        lines.append(f"| {one.store} | {one.case} | {rows} | {one.said} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zombies", description=__doc__)
    parser.add_argument("--no-stock", action="store_true", help="ours only; starts no Spark")
    results = matrix(with_stock=not parser.parse_args().no_stock)
    print(as_table(results))
    mine = [one for one in results if not one.store.startswith("Spark")]
    print(f"\nours: {sum(one.right for one in mine)} of {len(mine)} exactly once")
    return 0 if all(one.right for one in mine) else 1


if __name__ == "__main__":
    sys.exit(main())
