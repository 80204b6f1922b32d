"""FileSpout(replaces="file"): a file that is delivered again replaces the rows that it had, in every state."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident import (
    Count,
    DeltaTable,
    FileSink,
    FileSpout,
    MemoryState,
    Partitions,
    RedisState,
    SqliteState,
    Sum,
    Topology,
)
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import (
    ConfigurationError,
    DefinitionChangedError,
    LateBatchError,
    PlanError,
    SourceGoneError,
    TridentError,
    UserCodeError,
)
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim, Status
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.mending.rebuild import Rebuild
from airflow_trident.runtime.milestones import Milestone, told
from airflow_trident.runtime.phases import Attempts, coordinate, process

Rows = dict[str, int]
"""Shop -> cents: the content of a file."""
DAMAGE = '{"shop": "x", "cents": "oops"}\n'
STEPS = 25
ATTEMPTS = Attempts(owner="somebody", last_try=True)


def orders(folder: Path, **options: Any) -> FileSpout:
    options = {"format": "json", "fields": "shop string, cents long", "replaces": "file", **options}
    return FileSpout(str(folder / "in"), **options)


class Killed(BaseException):
    pass


class Shop:
    """A folder, and a topology that keeps its rows in three states."""

    def __init__(self, folder: Path, engine: Any, **options: Any) -> None:
        self.folder, self.engine, self.staging = folder, engine, str(folder / "staging")
        (folder / "in").mkdir(exist_ok=True)
        self.topology = Topology(f"shop-{folder.name}")
        rows = self.topology.new_stream("orders", orders(folder, **options))
        groups = rows.group_by("shop, _file")
        groups.persistent_aggregate(MemoryState(str(folder)), "cents", Sum(), "sum", name="memory")
        groups.persistent_aggregate(SqliteState(str(folder / "shop.db")), "cents", Sum(), "sum", name="sqlite")
        rows.persist_table(DeltaTable(str(folder / "table"), partition_by="_file"), name="table")
        self.ledger = MemoryLedger(self.topology.name)

    def deliver(self, name: str, rows: Rows | str) -> None:
        if not isinstance(rows, str):
            rows = "".join(json.dumps({"shop": shop, "cents": cents}) + "\n" for shop, cents in sorted(rows.items()))
        path = self.folder / "in" / f".{name}"
        path.write_text(rows)
        os.rename(path, self.folder / "in" / name)

    def run(self, **how: Any) -> list[int]:
        runner = LocalRunner(ledger=self.ledger, topology=self.topology, engine=self.engine, staging_root=self.staging)
        return runner.run(**how)

    def drain(self, group: int, claim: str) -> None:
        """Several transactions in one pass and one commit."""
        Drain(
            ledger=self.ledger,
            topology=self.topology,
            engine=self.engine,
            staging_root=self.staging,
            attempts=ATTEMPTS,
            claim=Claim(key=claim),
            limits=DrainLimits(group=group),
        ).run()

    def replay(self) -> None:
        """A person clears the runs of what failed."""
        for tx in self.ledger.transactions():
            if tx.status is Status.FAILED:
                process(self.ledger, self.topology, tx.txid, self.engine, self.staging, ATTEMPTS)

    def kept(self) -> dict[str, dict[str, Rows]]:
        """State -> file -> its rows."""
        states: dict[str, dict[str, Rows]] = {"memory": {}, "sqlite": {}, "table": {}}
        for name in ("memory", "sqlite"):
            spec = self.topology.states[name]
            with spec.factory.make_state(spec) as state:
                for (shop, file), (cents,) in state.items():
                    states[name].setdefault(file, {})[shop] = cents
        if (self.folder / "table" / "_delta_log").exists():
            for row in deltalake.DeltaTable(str(self.folder / "table")).to_pyarrow_table().to_pylist():
                shops = states["table"].setdefault(row["_file"], {})
                assert row["shop"] not in shops
                shops[row["shop"]] = row["cents"]
        return states


def everywhere(files: dict[str, Rows]) -> dict[str, dict[str, Rows]]:
    rows_by_file = {name: rows for name, rows in files.items() if rows}
    return dict.fromkeys(("memory", "sqlite", "table"), rows_by_file)


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine() as opened:
        yield opened


@pytest.fixture
def shop(tmp_path: Path, engine: LocalEngine) -> Iterator[Shop]:
    opened = Shop(tmp_path, engine)
    yield opened
    opened.ledger.close()


def test_a_file_that_comes_again_replaces_its_rows_and_no_others(shop: Shop) -> None:
    shop.deliver("a.json", {"north": 1, "south": 2})
    shop.deliver("b.json", {"north": 10})
    assert shop.run() == [1]
    shop.deliver("a.json", {"south": 3})
    shop.deliver("c.json", {"west": 7})
    assert shop.run() == [2]
    assert shop.kept() == everywhere({"a.json": {"south": 3}, "b.json": {"north": 10}, "c.json": {"west": 7}})
    os.utime(shop.folder / "in" / "a.json")
    assert shop.run() == []
    shop.deliver("b.json", "")
    assert shop.run() == [3]
    assert shop.kept() == everywhere({"a.json": {"south": 3}, "c.json": {"west": 7}})


def test_a_file_that_is_gone_needs_a_word(shop: Shop, engine: LocalEngine) -> None:
    shop.deliver("a.json", {"north": 1})
    shop.deliver("b.json", {"north": 2})
    shop.run()
    os.rename(shop.folder / "in" / "a.json", shop.folder / "a.json")
    shop.deliver("c.json", {"north": 3})
    with pytest.raises(SourceGoneError, match=r"1 files .* that were read are gone.*empty file of its name"):
        shop.run()
    assert shop.kept() == everywhere({"a.json": {"north": 1}, "b.json": {"north": 2}})
    shop.deliver("a.json", "")
    assert shop.run() == [2]
    assert shop.kept() == everywhere({"b.json": {"north": 2}, "c.json": {"north": 3}})
    os.remove(shop.folder / "in" / "b.json")
    keeping = Shop(shop.folder, engine, gone="keep")
    keeping.ledger, ledger = shop.ledger, keeping.ledger
    ledger.close()
    shop.deliver("c.json", {"north": 4})
    assert keeping.run() == [3]
    assert keeping.kept() == everywhere({"b.json": {"north": 2}, "c.json": {"north": 4}})


def test_a_damaged_file_that_is_corrected_does_not_block(shop: Shop) -> None:
    shop.deliver("a.json", DAMAGE)
    shop.deliver("b.json", {"north": 2})
    with pytest.raises(TridentError):
        shop.run()
    shop.deliver("a.json", {"north": 1})
    shop.replay()
    assert shop.run()[0] == 1
    assert shop.kept() == everywhere({"a.json": {"north": 1}, "b.json": {"north": 2}})


def test_a_file_that_changes_while_it_is_read_is_read_again(shop: Shop) -> None:
    shop.deliver("a.json", {"north": 1, "south": 1})
    changes = iter([{"north": 5}, {"north": 6}])

    def reached(milestone: Milestone, txid: int) -> None:
        if milestone is Milestone.ATTEMPT_STARTED and (rows := next(changes, None)):
            shop.deliver("a.json", rows)

    with told(reached):
        shop.run()
    assert shop.kept() == everywhere({"a.json": {"north": 6}})
    assert shop.run() == []


class Life:
    """Files come, change, are damaged and corrected, at any time; transactions are begun, processed and committed in
    any order that is possible, and killed."""

    def __init__(self, folder: Path, engine: LocalEngine, seed: int) -> None:
        self.random = random.Random(seed)
        self.shop = Shop(folder, engine, max_files=self.random.choice([1, 2, 3]), gone="keep")
        self.contents: dict[str, list[Rows]] = {}
        """File -> what it was, oldest first."""
        self.damaged: set[str] = set()
        self.claims = 0

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.change, self.change, self.change, self.run, self.kill, self.pass_over]
        step = self.random.choice([*steps, self.damage, self.pass_over, self.drain, self.shop.replay])
        with suppress(TridentError, Killed):
            step()
        self.require_contents(step.__name__)

    def change(self) -> None:
        chance = self.random
        name = chance.choice(["a.json", "b.json", "c.json", "d/e.json", "f.json"]).replace("/", "-")
        rows = {shop: chance.randrange(1000) for shop in chance.sample("xyz", chance.randrange(4))}
        self.contents.setdefault(name, [{}]).append(rows)
        self.damaged.discard(name)
        self.shop.deliver(name, rows)

    def damage(self) -> None:
        if self.contents:
            name = self.random.choice(sorted(self.contents))
            self.damaged.add(name)
            self.shop.deliver(name, DAMAGE)

    def run(self, at: Milestone | None = None) -> None:
        changes = self.random.random() < 0.4

        def reached(milestone: Milestone, txid: int) -> None:
            if changes and self.random.random() < 0.2:
                self.change()
            if milestone is at:
                raise Killed

        with told(reached):
            self.shop.run()

    def kill(self) -> None:
        self.run(self.random.choice(list(Milestone)))

    def drain(self) -> None:
        """What was begun or is processed, and what follows it, in groups: they may have the same file."""
        for _ in range(self.random.randrange(4)):
            self.change()
            outcome = self.begin()
            if isinstance(outcome, tuple) and self.random.random() < 0.7:
                process(
                    self.shop.ledger, self.shop.topology, outcome[0].txid, self.shop.engine, self.shop.staging, ATTEMPTS
                )
        self.claims += 1
        changes = self.random.random() < 0.4

        def reached(milestone: Milestone, txid: int) -> None:
            if changes and self.random.random() < 0.1:
                self.change()

        with told(reached):
            self.shop.drain(self.random.choice([2, 5]), f"drain{self.claims}/")

    def begin(self) -> object:
        self.claims += 1
        return coordinate(self.shop.ledger, self.shop.topology, [Claim(key=f"c{self.claims}")], max_pending=9)

    def pass_over(self) -> None:
        """Several transactions are begun, and processed in any order."""
        shop = self.shop
        for _ in range(3):
            self.begin()
            if self.random.random() < 0.5:
                self.change()
        open_txids = [tx.txid for tx in shop.ledger.transactions() if not tx.status.lets_others_pass]
        for txid in self.random.sample(open_txids, len(open_txids)):
            with suppress(TridentError):
                process(shop.ledger, shop.topology, txid, shop.engine, shop.staging, ATTEMPTS)
        committer = Committer(
            ledger=shop.ledger,
            topology=shop.topology,
            staging_root=shop.staging,
            attempts=ATTEMPTS,
            engine=lambda: shop.engine,
        )
        for txid in open_txids:
            committer.commit(txid, take_over=True)

    def require_contents(self, what: str) -> None:
        """Each state has of each file what it was at some time."""
        for state, files in self.shop.kept().items():
            for name, rows in files.items():
                assert rows in self.contents[name], f"{what}: {state} has {rows} of {name}"

    def end(self) -> None:
        for name in sorted(self.damaged):
            self.shop.deliver(name, self.contents[name][-1])
        self.shop.replay()
        self.shop.run()
        assert self.shop.kept() == everywhere({name: contents[-1] for name, contents in self.contents.items()})
        assert all(tx.status is Status.COMMITTED for tx in self.shop.ledger.transactions())


@pytest.mark.parametrize("seed", range(8))
def test_the_states_have_each_file_as_it_is(tmp_path: Path, engine: LocalEngine, seed: int) -> None:
    life = Life(tmp_path, engine, seed)
    for _ in range(STEPS):
        life.step()
    life.end()
    life.shop.ledger.close()


@pytest.mark.parametrize("keeps_staged", [True, False])
def test_a_state_is_rebuilt_from_the_files_that_count(shop: Shop, keeps_staged: bool) -> None:
    """What an older transaction read of a file that was replaced is gone, and nobody needs it."""
    shop.deliver("a.json", {"north": 1, "south": 2})
    shop.deliver("b.json", {"north": 10})
    shop.run()
    shop.deliver("a.json", {"south": 3})
    shop.run()
    before = shop.kept()
    (shop.folder / "shop.db").unlink()
    if not keeps_staged:
        shutil.rmtree(shop.staging)
    rebuild = Rebuild(ledger=shop.ledger, topology=shop.topology, engine=lambda: shop.engine, staging_root=shop.staging)
    assert rebuild.run(["sqlite"]).replayed["sqlite"].highest == 2
    assert shop.kept() == before


@pytest.mark.spark
def test_spark_replaces_the_rows_of_files_too(tmp_path: Path, spark_engine: SparkEngine) -> None:
    shop = Shop(tmp_path, spark_engine)
    shop.deliver("a.json", {"north": 1, "south": 2})
    shop.deliver("b.json", {"north": 10})
    shop.run()
    shop.deliver("a.json", {"south": 3})
    shop.run()
    assert shop.kept() == everywhere({"a.json": {"south": 3}, "b.json": {"north": 10}})
    shop.ledger.close()


def named_by_shop(shop: str) -> str:
    return f"{shop}.json"


def test_rows_of_another_file_are_refused(tmp_path: Path, engine: LocalEngine) -> None:
    topology = Topology("shop")
    rows = topology.new_stream("orders", orders(tmp_path)).project("shop, cents")
    named = rows.each("shop", named_by_shop, "_file string")
    named.group_by("_file").persistent_aggregate(MemoryState(str(tmp_path)), "cents", Sum(), "sum", name="sums")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"shop": "b", "cents": 1}\n')
    with MemoryLedger("shop") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        with pytest.raises(UserCodeError, match=r"rows of _file b.json"):
            runner.run()


def test_an_older_batch_never_comes_after_a_newer_one(shop: Shop) -> None:
    shop.deliver("a.json", DAMAGE)
    with pytest.raises(TridentError):
        shop.run()
    shop.ledger.skip(1, "a person")
    shop.deliver("a.json", {"north": 2})
    shop.run()
    with pytest.raises(LateBatchError):
        process(shop.ledger, shop.topology, 1, shop.engine, shop.staging, ATTEMPTS)
    assert shop.kept() == everywhere({"a.json": {"north": 2}})


def test_a_topology_that_appended_files_does_not_begin_to_replace_them(tmp_path: Path, engine: LocalEngine) -> None:
    def run(**options: Any) -> None:
        topology = Topology("shop")
        rows = topology.new_stream("orders", orders(tmp_path, partition_fields="_file", **options))
        rows.group_by("_file").persistent_aggregate(SqliteState(str(tmp_path / "s.db")), "cents", Sum(), "sum")
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging")).run()

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"shop": "b", "cents": 1}\n')
    with MemoryLedger("shop") as ledger:
        run(replaces=None)
        with pytest.raises(DefinitionChangedError):
            run()


REFUSED: dict[str, tuple[Callable[[Path, Topology], object], str]] = {
    "a state that cannot replace": (
        lambda folder, topology: (
            topology.new_stream("o", orders(folder)).group_by("_file").persistent_aggregate(RedisState(), Count(), "n")
        ),
        "cannot replace a file",
    ),
    "a sink that cannot": (
        lambda folder, topology: topology.new_stream("o", orders(folder)).partition_persist(
            FileSink(str(folder)), "shop, _file"
        ),
        "cannot replace a file",
    ),
    "keys without the file": (
        lambda folder, topology: (
            topology.new_stream("o", orders(folder)).group_by("shop").persistent_aggregate(MemoryState(), Count(), "n")
        ),
        "does not get the|has keys without '_file'",
    ),
    "a table that is not partitioned by the file": (
        lambda folder, topology: topology.new_stream("o", orders(folder)).persist_table(DeltaTable(str(folder / "t"))),
        "is not partitioned by '_file'",
    ),
    "another mode": (
        lambda folder, topology: topology.new_stream("o", orders(folder)).persist_table(
            DeltaTable(str(folder / "t"), partition_by="_file"), mode="append"
        ),
        "a batch replaces its file",
    ),
    "two streams": (
        lambda folder, topology: [topology.new_stream(name, orders(folder)) for name in ("o", "p")],
        "Give it a topology of its own",
    ),
    "new values": (
        lambda folder, topology: (
            topology.new_stream("o", orders(folder))
            .group_by("_file")
            .persistent_aggregate(MemoryState(), Count(), "n")
            .new_values_stream()
        ),
        "gives no new values",
    ),
    "a bound topology": (
        lambda folder, _: Topology("d", partitions=Partitions("day", begin="2026-01-01")).new_stream(
            "o", orders(folder)
        ),
        "a partition replaces all its files",
    ),
    "names in order": (
        lambda _, __: FileSpout("s3://a@bucket/in/", replaces="file", ordered_names=True),
        "ordered_names",
    ),
    "partitions": (lambda _, __: FileSpout("/in/{partition}/*", replaces="file"), "a partition replaces all its files"),
    "another word": (lambda folder, _: orders(folder, replaces="row"), "replaces='row'"),
    "gone without replaces": (lambda _, __: FileSpout("/in", gone="keep"), 'Add replaces="file"'),
    "gone is taken": (lambda folder, _: orders(folder, gone="take"), "gone='take'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_replace_files_is_refused_when_the_dag_is_built(name: str, tmp_path: Path) -> None:
    build, text = REFUSED[name]
    with pytest.raises((PlanError, ConfigurationError), match=text):
        build(tmp_path, Topology("shop"))


def test_the_name_is_a_field_without_being_named() -> None:
    assert Topology("a").new_stream("o", orders(Path("/x"))).fields == ("shop", "cents", "_file")
    named = orders(Path("/x"), partition_fields="_file string")
    assert Topology("b").new_stream("o", named).fields == ("shop", "cents", "_file")
