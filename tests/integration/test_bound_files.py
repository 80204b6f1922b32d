"""FileSpout in topologies that are bound to partitions, into tables and states, in one process."""

from __future__ import annotations

import datetime
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import (
    DeltaTable,
    FileSpout,
    FixedBatchSpout,
    MemoryState,
    Partitions,
    SqliteState,
    Sum,
    Topology,
)
from airflow_trident.contracts.spout import PartitionChange
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    EmptyPartitionError,
    IncompletePartitionError,
    LostTransactionsError,
    PlanError,
    SourceGoneError,
    SourceUnavailableError,
    UserCodeError,
)
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Status
from airflow_trident.protocol.txids import Txids
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.mending.rebuild import Rebuild, Rebuilt
from airflow_trident.spouts.files import file_source
from airflow_trident.spouts.files.contents import digests_of
from airflow_trident.spouts.files.file_source import FileSource
from tests.fixtures.file import put

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"
DAYS = Partitions("day", begin="2026-01-01", timezone="Europe/Berlin")


def shop_topology(folder: Path, path: str = "day={partition}/*.json", **options: Any) -> Topology:
    """Rows into a table by shop and day, and sums of each shop and day into a file."""
    topology = Topology("shop", partitions=DAYS)
    spout = FileSpout(str(folder / "in" / path), format="json", fields="shop string, cents long", **options)
    orders = topology.new_stream("orders", spout)
    orders.persist_table(DeltaTable(str(folder / "sales"), partition_by="shop, day"), name="sales")
    sums = orders.group_by("day, shop")
    sums.persistent_aggregate(SqliteState(str(folder / "sums.db")), "cents", Sum(), "cents", name="sums")
    return topology


def deliver(folder: Path, name: str, *rows: tuple[str, int]) -> Path:
    content = "".join(json.dumps({"shop": shop, "cents": cents}) + "\n" for shop, cents in rows)
    return put(folder / "in", name, content)


class Shop:
    """The topology in this process, with its ledger."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.topology = folder, shop_topology(folder, **options)
        self.ledger = MemoryLedger("shop")

    def deliver(self, name: str, *rows: tuple[str, int]) -> Path:
        return deliver(self.folder, name, *rows)

    def run(self, *keys: str, **how: Any) -> list[int]:
        with LocalEngine() as engine:
            runner = LocalRunner(
                ledger=self.ledger, topology=self.topology, engine=engine, staging_root=str(self.folder / "staging")
            )
            return runner.run(partitions=keys, **how)

    @property
    def rows(self) -> list[tuple[str, str, int]]:
        """(day, shop, cents) in the table; the sums must be those of these rows."""
        rows = sorted((str(day), shop, cents) for (), (shop, cents, day) in self.items("sales"))
        sums: dict[tuple[str, str], int] = {}
        for day, shop, cents in rows:
            sums[day, shop] = sums.get((day, shop), 0) + cents
        assert {(str(day), shop): cents for (day, shop), (cents,) in self.items("sums")} == sums
        return rows

    def items(self, name: str) -> list[Any]:
        spec = self.topology.states[name]
        with spec.factory.make_state(spec) as state:
            return list(state.items())


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    opened = Shop(tmp_path)
    yield opened
    opened.ledger.close()


def test_a_lost_state_is_rebuilt_without_what_newer_transactions_replaced(shop: Shop) -> None:
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300), ("west", 8))
    shop.deliver(f"day={TUESDAY}/a.json", ("north", 7))
    shop.run(MONDAY, TUESDAY)
    shop.deliver(f"day={MONDAY}/a.json", ("north", 301))
    assert shop.run(MONDAY) == [3]
    before = shop.rows
    shutil.rmtree(shop.folder / "staging")
    (shop.folder / "sums.db").unlink()
    work = Rebuild(
        ledger=shop.ledger, topology=shop.topology, engine=LocalEngine, staging_root=str(shop.folder / "staging")
    )
    assert work.run() == Rebuilt(replayed={"sums": Txids.span(1, 3)}, lost={})
    assert shop.rows == before
    assert shop.run(MONDAY) == [4]
    (shop.folder / "sums.db").unlink()
    shop.deliver(f"day={TUESDAY}/a.json", ("north", 8))
    with pytest.raises(LostTransactionsError, match=r"state 'sums' lacks 2"):
        Rebuild(
            ledger=shop.ledger, topology=shop.topology, engine=LocalEngine, staging_root=str(shop.folder / "elsewhere")
        ).run()


# ---- what is delivered -----------------------------------------------------------------------------------------


def test_late_corrected_and_deleted_files_and_a_shop_that_left(shop: Shop) -> None:
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300), ("south", 1))
    shop.deliver(f"day={TUESDAY}/a.json", ("north", 7))
    assert shop.run(MONDAY, TUESDAY) == [1, 2]
    late = shop.deliver(f"day={MONDAY}/b.json", ("north", 5))
    assert shop.run(MONDAY, TUESDAY, redo="changed") == [3]
    tuesday = [(TUESDAY, "north", 7)]
    assert shop.rows == [(MONDAY, "north", 5), (MONDAY, "north", 300), (MONDAY, "south", 1), *tuesday]
    shop.deliver(f"day={MONDAY}/a.json", ("north", 301))  # the shop in the south has left the day
    assert shop.run(MONDAY) == [4]
    assert shop.rows == [(MONDAY, "north", 5), (MONDAY, "north", 301), *tuesday]
    late.unlink()
    with pytest.raises(
        SourceGoneError, match=r"parts of the partition 2026-11-23 that are gone: 1 \(orders: b\.json\)"
    ):
        shop.run(MONDAY)
    assert shop.run(MONDAY, gone="take") == [5]
    assert shop.rows == [(MONDAY, "north", 301), *tuesday]


def test_a_day_whose_files_expired_keeps_its_rows_and_an_empty_one_becomes_empty_if_a_person_says_so(
    shop: Shop,
) -> None:
    path = shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    with pytest.raises(EmptyPartitionError, match="no source of topology 'shop' has data of the partition 2026-11-24"):
        shop.run(TUESDAY)
    shop.run(MONDAY)
    path.unlink()
    path.parent.rmdir()
    with pytest.raises(SourceGoneError):
        shop.run(MONDAY)
    assert shop.rows == [(MONDAY, "north", 300)]
    assert shop.run(MONDAY, gone="take", empty="take") == [2]
    assert shop.rows == []


def test_a_touched_file_is_no_change(shop: Shop) -> None:
    path = shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    shop.run(MONDAY)
    os.utime(path, (1, 1))
    assert shop.run(MONDAY, redo="changed") == []


def test_a_look_at_files_that_are_as_they_were_reads_no_content(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        shop.deliver(f"day={MONDAY}/{number}.json", ("north", number))
    shop.run(MONDAY)
    read: list[str] = []

    def digests(base: str, files: Any, limit_bytes: int) -> dict[str, str]:
        read.extend(file.path for file in files)
        return digests_of(base, files, limit_bytes)

    monkeypatch.setattr(file_source, "digests_of", digests)
    assert shop.run(MONDAY, redo="changed") == []
    assert read == []
    shop.deliver(f"day={MONDAY}/1.json", ("south", 9))
    assert shop.run(MONDAY, redo="changed") == [2]
    assert read == ["1.json"]
    assert shop.rows == [(MONDAY, "north", 0), (MONDAY, "north", 2), (MONDAY, "south", 9)]


def test_a_folder_that_is_not_there_is_no_empty_day_if_that_above_is_missing_too(tmp_path: Path) -> None:
    shop = Shop(tmp_path)  # the file system is not mounted
    with pytest.raises(SourceUnavailableError, match="there is no"):
        shop.run(MONDAY, empty="take")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("{partition}.json", "2026-11-23.json"),
        ("{partition:%Y/%m/%d}", "2026/11/23/x.json"),
        ("*/day={partition}/*.json", "shop=1/day=2026-11-23/x.json"),
        ("{partition:%Y}/{partition:%m-%d}*.json", "2026/11-23-orders.json"),
        ("day={partition}/**", "day=2026-11-23/a/b/x.json"),
    ],
)
def test_the_key_may_be_anywhere_in_the_path(tmp_path: Path, path: str, name: str) -> None:
    shop = Shop(tmp_path, path=path)
    shop.deliver(name, ("north", 300))
    shop.deliver(name.replace("23", "24"), ("north", 1))
    shop.run(MONDAY)
    assert shop.rows == [(MONDAY, "north", 300)]


def test_a_day_is_complete_when_its_marker_is_there(tmp_path: Path) -> None:
    shop = Shop(tmp_path, done="_SUCCESS")
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    with pytest.raises(IncompletePartitionError, match=r"has no '_SUCCESS'"):
        shop.run(MONDAY)
    assert shop.ledger.transactions() == []
    put(tmp_path / "in", f"day={MONDAY}/_SUCCESS")
    shop.run(MONDAY)
    assert shop.rows == [(MONDAY, "north", 300)]


@dataclass(frozen=True)
class Beside:
    """A place in which another delivery goes on before each look at it."""

    place: FileSource
    go_on: Callable[[], None]

    def __getattr__(self, name: str) -> Any:
        if name in ("list", "claimed"):
            self.go_on()
        return getattr(self.place, name)


def test_a_look_has_the_files_of_one_delivery_or_is_refused(tmp_path: Path) -> None:
    """However a marker is removed, files are written, and it is put back between the steps of a look."""
    for number, steps in enumerate(itertools.product(range(5), repeat=4)):
        if sum(steps) <= 4:
            look_beside_a_delivery(tmp_path / str(number), steps)


def look_beside_a_delivery(folder: Path, steps: tuple[int, ...]) -> None:
    """`steps`: how many of the delivery's are made before each step of the look."""
    day = f"day={MONDAY}"
    deliver(folder, f"{day}/a.json", ("north", 1))
    put(folder / "in", f"{day}/_SUCCESS")
    delivery = iter(
        [
            (folder / "in" / day / "_SUCCESS").unlink,
            lambda: deliver(folder, f"{day}/a.json", ("north", 20)),
            lambda: deliver(folder, f"{day}/b.json", ("south", 300)),
            lambda: put(folder / "in", f"{day}/_SUCCESS"),
        ]
    )
    at_call = iter(steps)

    def go_on() -> None:
        for step in itertools.islice(delivery, next(at_call, 0)):
            step()

    files = FileSpout(f"{folder}/in/day={{partition}}/*.json", format="json", fields="n long", done="_SUCCESS")
    spout = files.bound(DAYS)
    beside = replace(spout, source_at=lambda path: Beside(spout.source_at(path), go_on))
    try:
        metadata = beside.coordinator().partition(DAYS.parse(MONDAY))
    except (IncompletePartitionError, SourceUnavailableError):
        return
    assert {path: size for path, size, *_ in metadata["files"]} in (
        {"a.json": 30},
        {"a.json": 31, "b.json": 32},
    ), steps


@pytest.mark.parametrize("content", ['{"shop": "north", "cents": "x"}\n', '{"shop"'])
def test_a_damaged_file_is_corrected_and_its_day_asked_for_again(tmp_path: Path, content: str) -> None:
    shop = Shop(tmp_path)
    put(tmp_path / "in", f"day={MONDAY}/a.json", content)
    with pytest.raises(DamagedInputError, match=f"TOPOLOGY --partition {MONDAY}") as damaged:
        shop.run(MONDAY)
    assert "accept-source" not in str(damaged.value), "the next request reads the file as it is"
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    shop.run(MONDAY)
    assert shop.rows == [(MONDAY, "north", 300)]


# ---- rows of another day ---------------------------------------------------------------------------------------


def own_day(shop: str) -> Iterator[tuple[datetime.date]]:
    """What a user takes for the day: that of the time in the row, and not that of the folder."""
    yield (datetime.date(2026, 11, 24),)


def foreign(folder: Path, state: Any) -> Topology:
    topology = Topology("shop", partitions=DAYS)
    spout = FileSpout(f"{folder}/in/day={{partition}}/*.json", format="json", fields="shop string, cents long")
    days = topology.new_stream("orders", spout).project("shop, cents").each("shop", own_day, "day date")
    if isinstance(state, DeltaTable):
        days.persist_table(state, name="out")
    else:
        days.group_by("day").persistent_aggregate(state, "cents", Sum(), "cents", name="out")
    return topology


@pytest.mark.parametrize("kind", ["table", "state"])
def test_rows_of_another_day_are_refused_while_they_are_processed(tmp_path: Path, kind: str) -> None:
    table = DeltaTable(str(tmp_path / "out"), partition_by="day")
    shop = Shop(tmp_path)
    shop.topology = foreign(tmp_path, table if kind == "table" else MemoryState(str(tmp_path)))
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    with pytest.raises(UserCodeError, match="the batch of the partition 2026-11-23 has rows of day 2026-11-24"):
        shop.run(MONDAY)
    assert [tx.status for tx in shop.ledger.transactions()] == [Status.SKIPPED]
    shop.deliver(f"day={TUESDAY}/a.json", ("north", 5))
    assert shop.run(TUESDAY) == [2]


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["table", "state"])
def test_spark_refuses_rows_of_another_day_and_replaces_the_right_ones(
    spark_engine: SparkEngine, tmp_path: Path, kind: str
) -> None:
    shop, table = Shop(tmp_path), DeltaTable(str(tmp_path / "out"), partition_by="day")
    wrong = foreign(tmp_path, table if kind == "table" else MemoryState(str(tmp_path)))
    shop.deliver(f"day={MONDAY}/a.json", ("north", 300))
    staging = str(tmp_path / "staging")
    runner = LocalRunner(ledger=MemoryLedger("shop"), topology=wrong, engine=spark_engine, staging_root=staging)
    with pytest.raises(UserCodeError, match="the batch of the partition 2026-11-23 has rows of day 2026-11-24"):
        runner.run(partitions=[MONDAY])
    if kind == "table":
        right = LocalRunner(
            ledger=shop.ledger, topology=shop.topology, engine=spark_engine, staging_root=str(tmp_path / "right")
        )
        right.run(partitions=[MONDAY])
        shop.deliver(f"day={MONDAY}/a.json", ("south", 1))
        right.run(partitions=[MONDAY])
        assert shop.rows == [(MONDAY, "south", 1)]


# ---- refused when the DAG is built -----------------------------------------------------------------------------


def orders(topology: Topology, path: str = "/in/day={partition}/*.csv", **options: Any) -> Any:
    return topology.new_stream("orders", FileSpout(path, format="csv", fields="shop string, cents long", **options))


def keep_all(state: Any, tuples: Any) -> None: ...


REFUSED = {
    "an unbound topology": (lambda topology: orders(Topology("x")), "topology 'x' is not bound to partitions"),
    "no place in the path": (lambda topology: orders(topology, "/in/*.csv"), r"Put \{partition\} in its place"),
    "a path of several days": (
        lambda topology: orders(topology, "/in/{partition:%m}/*.csv"),
        "several days have the same path",
    ),
    "a path of several years": (
        lambda topology: orders(topology, "/in/{partition:%m%d}/*.csv"),
        "several days have the same path",
    ),
    "a path in which the 11th of January is the 1st of November": (
        lambda topology: orders(topology, "/in/{partition:%Y%-m%-d}/*.csv"),
        "several days have the same path",
    ),
    "a marker of several days": (
        lambda topology: orders(topology, "/in/*-{partition}.csv", done="_SUCCESS"),
        "several partitions have one folder",
    ),
    "a limit of files": (lambda topology: orders(topology, max_files=2), "with max_files in a bound topology"),
    "a begin of the spout": (lambda topology: orders(topology, since="2026-01-01T00:00:00Z"), "with since in a bound"),
    "changed files": (lambda topology: orders(topology, changed="read"), "with changed in a bound topology"),
    "a spout without days": (
        lambda topology: topology.new_stream("numbers", FixedBatchSpout("n long", [1])),
        "does not know where the data of a day are",
    ),
    "a field like the column": (
        lambda topology: orders(topology, partition_fields="day date"),
        "has the field 'day', as the partition column",
    ),
    "a named mode": (
        lambda topology: orders(topology).persist_table(DeltaTable("/x", partition_by="day"), mode="append"),
        "mode='append' in a topology that is bound",
    ),
    "a table of other partitions": (
        lambda topology: orders(topology).persist_table(DeltaTable("/x", partition_by="shop")),
        "is not partitioned by 'day'",
    ),
    "keys without the day": (
        lambda topology: orders(topology).group_by("shop").persistent_aggregate(MemoryState(), "cents", Sum(), "n"),
        "has keys without 'day'|does not get the partition column",
    ),
    "an updater": (
        lambda topology: orders(topology).partition_persist(MemoryState(), "day, shop, cents", keep_all, keys="day"),
        "has an updater",
    ),
    "new values": (
        lambda topology: (
            orders(topology)
            .group_by("day, shop")
            .persistent_aggregate(MemoryState(), "cents", Sum(), "n")
            .new_values_stream()
        ),
        "gives no new values",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_partitions_is_refused_when_the_dag_is_built(name: str) -> None:
    build, message = REFUSED[name]
    with pytest.raises(PlanError, match=message):
        build(Topology("bound", partitions=DAYS))


def test_a_marker_without_a_place_in_the_path_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"done='_SUCCESS', and the path has no \{partition\}"):
        FileSpout("/in/*.csv", format="csv", fields="n long", done="_SUCCESS")


@pytest.mark.parametrize("done", ["a/b", "*.done", "..", True])
def test_a_marker_that_is_no_name_of_a_file_is_refused(done: Any) -> None:
    with pytest.raises(ConfigurationError, match="it is no name of a file"):
        FileSpout("/in/{partition}/*.csv", format="csv", fields="n long", done=done)


@pytest.mark.parametrize(
    "path", ["{partition:%Y}/{partition:%m}/{partition:%d}/*.json", "{partition:%Y-%-m-%-d}/*.json"]
)
def test_a_path_that_tells_days_apart_is_taken(path: str) -> None:
    orders(Topology("bound", partitions=DAYS), f"/in/{path}")


def test_rows_are_put_by_key_without_an_updater(tmp_path: Path) -> None:
    topology = Topology("shop", partitions=DAYS)
    spout = FileSpout(f"{tmp_path}/in/{{partition}}.json", format="json", fields="shop string, cents long")
    topology.new_stream("orders", spout).partition_persist(
        SqliteState(str(tmp_path / "x.db")), "day, shop, cents", keys="day, shop", name="sums"
    )
    shop = Shop(tmp_path)
    shop.topology = topology
    shop.deliver(f"{MONDAY}.json", ("north", 1), ("south", 2))
    shop.run(MONDAY)
    shop.deliver(f"{MONDAY}.json", ("south", 3))
    shop.run(MONDAY)
    assert [(shop_name, cents) for (_, shop_name), (cents,) in shop.items("sums")] == [("south", 3)]


# ---- reading ---------------------------------------------------------------------------------------------------


def test_a_bound_emitter_reads_less_and_names_its_files(tmp_path: Path) -> None:
    (tmp_path / f"day={MONDAY}").mkdir()
    table = pa.table({"n": pa.array([1, 2], pa.int64()), "unused": pa.array(["", ""])})
    pq.write_table(table, tmp_path / f"day={MONDAY}" / "a.parquet")
    spout = FileSpout(
        f"{tmp_path}/day={{partition}}/*", format="parquet", fields="n long, unused string", partition_fields="_file"
    ).bound(DAYS)
    coordinator, partition = spout.coordinator(), DAYS.parse(MONDAY)
    metadata = json.loads(json.dumps(coordinator.partition(partition)))
    emitter = spout.emitter().prune(("_file", "n"))
    (split,) = emitter.splits(metadata)
    assert emitter.name_of(split) == f"the file '{tmp_path}/day={MONDAY}/a.parquet'"
    (batch,) = emitter.read(split)
    assert batch.to_pylist() == [{"_file": "a.parquet", "n": 1}, {"_file": "a.parquet", "n": 2}]
    assert coordinator.size_bytes(metadata) == (tmp_path / f"day={MONDAY}" / "a.parquet").stat().st_size
    assert coordinator.compared(metadata, metadata) == PartitionChange()
