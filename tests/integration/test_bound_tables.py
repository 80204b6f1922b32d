"""TableSpout of a DeltaTable in topologies that are bound to partitions: a topology by day follows another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.transforms import IdentityTransform

from airflow_trident import DeltaTable, MemoryState, Partitions, Sum, TableSpout, Topology
from airflow_trident.contracts.bound_spout import bound
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, PlanError, SourceChangedError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.partitions import Partition
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.catalog import open_catalog
from tests.fixtures.state import iceberg_table

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"
DAYS = Partitions("day", begin="2026-01-01")
SCHEMA = pa.schema([("shop", pa.string()), ("cents", pa.int64()), ("day", pa.date32())])


class Delta:
    """A table by day that another program writes."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "sales")

    def write(self, *rows: tuple[str, int, str]) -> None:
        deltalake.write_deltalake(self.path, table_of(*rows), mode="append", partition_by=["day"])

    def replace(self, day: str, *rows: tuple[str, int, str]) -> None:
        deltalake.write_deltalake(
            self.path, table_of(*rows), mode="overwrite", partition_by=["day"], predicate=f"day = '{day}'"
        )

    def spout(self, **options: Any) -> Any:
        return TableSpout(DeltaTable(self.path), fields="shop string, cents long", **options)

    def forget_versions(self) -> None:
        table = deltalake.DeltaTable(self.path)
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


class Iceberg:
    def __init__(self, folder: Path) -> None:
        self.factory = iceberg_table(folder, "sales.rows")
        catalog = open_catalog(**self.factory.properties)
        catalog.create_namespace_if_not_exists("sales")
        self.table = catalog.create_table("sales.rows", schema=SCHEMA, properties={"format-version": "2"})
        with self.table.update_spec() as spec:
            spec.add_field("day", IdentityTransform(), "by_day")

    def write(self, *rows: tuple[str, int, str]) -> None:
        self.table.append(table_of(*rows))

    def replace(self, day: str, *rows: tuple[str, int, str]) -> None:
        self.table.overwrite(table_of(*rows), overwrite_filter=EqualTo("day", day))

    def spout(self, **options: Any) -> Any:
        return TableSpout(self.factory, fields="shop string, cents long", **options)

    def forget_versions(self) -> None:
        self.table.refresh()
        *old, _ = [snapshot.snapshot_id for snapshot in self.table.metadata.snapshots]
        self.table.maintenance.expire_snapshots().by_ids(old).commit()


@pytest.fixture(params=[Delta, Iceberg], ids=["delta", "iceberg"])
def sales(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def table_of(*rows: tuple[str, int, str]) -> pa.Table:
    days = [DAYS.parse(day).value for *_, day in rows]
    columns = [[shop for shop, *_ in rows], [cents for _, cents, _ in rows], days]
    return pa.table(columns, schema=SCHEMA)


def looked_at(sales: Any, key: str) -> Any:
    partition: Partition = DAYS.parse(key)
    coordinator = sales.spout(column="day").bound(DAYS).coordinator()
    return json.loads(json.dumps(coordinator.partition(partition)))


def cents_of(sales: Any, metadata: Any) -> list[int]:
    emitter = sales.spout(column="day").bound(DAYS).emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return sorted(cents for batch in batches for cents in batch.column("cents").to_pylist())


def test_a_look_has_the_files_of_one_partition_in_one_version(sales: Any) -> None:
    sales.write(("a", 1, MONDAY), ("b", 2, MONDAY), ("a", 9, TUESDAY))
    sales.write(("a", 3, MONDAY))
    metadata = looked_at(sales, MONDAY)
    sales.write(("a", 100, MONDAY))
    assert cents_of(sales, metadata) == [1, 2, 3]
    assert cents_of(sales, looked_at(sales, MONDAY)) == [1, 2, 3, 100]
    assert cents_of(sales, looked_at(sales, TUESDAY)) == [9]
    assert looked_at(sales, "2026-11-25") is None


def test_only_a_change_of_its_files_changes_a_partition(sales: Any) -> None:
    sales.write(("a", 1, MONDAY), ("a", 9, TUESDAY))
    coordinator = sales.spout(column="day").bound(DAYS).coordinator()
    before = looked_at(sales, MONDAY)
    sales.write(("a", 7, TUESDAY))
    assert not coordinator.compared(before, looked_at(sales, MONDAY))
    sales.replace(MONDAY, ("b", 5, MONDAY))
    assert coordinator.compared(before, looked_at(sales, MONDAY))
    assert coordinator.size_bytes(before) > 0


def test_a_version_that_is_kept_no_longer_is_a_changed_source(sales: Any) -> None:
    sales.write(("a", 1, MONDAY))
    metadata = looked_at(sales, MONDAY)
    sales.replace(MONDAY, ("b", 5, MONDAY))
    sales.forget_versions()
    with pytest.raises(SourceChangedError, match=r"is gone|any more"):
        cents_of(sales, metadata)


def test_a_topology_by_day_does_again_what_was_replaced_in_a_table(sales: Any, tmp_path: Path) -> None:
    topology = Topology("sums", partitions=DAYS)
    rows = topology.new_stream("rows", sales.spout(column="day"))
    sums = rows.group_by("day, shop").persistent_aggregate(MemoryState(str(tmp_path)), "cents", Sum(), "n", name="sums")
    sales.write(("a", 1, MONDAY), ("b", 2, MONDAY), ("a", 9, TUESDAY))
    with MemoryLedger("sums") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        assert runner.run(partitions=[MONDAY, TUESDAY]) == [1, 2]
        sales.replace(MONDAY, ("a", 5, MONDAY))
        assert runner.run(partitions=[MONDAY, TUESDAY], redo="changed") == [3]
        with sums.spec.factory.make_state(sums.spec) as state:
            cents_by_key = {(str(day), shop): cents for (day, shop), (cents,) in state.items()}
    assert cents_by_key == {(MONDAY, "a"): 5, (TUESDAY, "a"): 9}


@pytest.mark.spark
def test_spark_reads_the_files_of_one_partition_itself(sales: Any, spark_session: Any) -> None:
    sales.write(("a", 1, MONDAY), ("b", 2, MONDAY), ("a", 9, TUESDAY))
    spout = bound("rows", sales.spout(column="day"), DAYS)
    metadata = spout.coordinator().partition(DAYS.parse(MONDAY))
    frame = spout.emitter().data_frame(spark_session, metadata)
    assert frame is not None
    assert sorted(map(tuple, frame.frame.collect())) == [
        ("a", 1, DAYS.parse(MONDAY).value),
        ("b", 2, DAYS.parse(MONDAY).value),
    ]


def test_a_follower_of_a_table_whose_partitions_are_replaced_is_told_of_bound_topologies(sales: Any) -> None:
    sales.write(("a", 1, MONDAY))
    coordinator = sales.spout().coordinator()
    first = coordinator.initialize_transaction(1, None)
    sales.replace(MONDAY, ("a", 5, MONDAY))
    with pytest.raises(SourceChangedError, match=r'bound to partitions.*name its column="day"'):
        coordinator.initialize_transaction(2, first)


def test_two_topologies_replace_partitions_of_one_table_with_what_others_wrote_into_them(tmp_path: Path) -> None:
    sales = Delta(tmp_path)
    sales.write(("a", 1, MONDAY), ("a", 2, TUESDAY))
    table = DeltaTable(str(tmp_path / "out"), partition_by="day")

    def run(name: str, ledger: MemoryLedger, engine: LocalEngine, key: str) -> None:
        topology = Topology(name, partitions=DAYS)
        topology.new_stream("rows", sales.spout(column="day")).persist_table(table, name="rows")
        staging = str(tmp_path / "staging")
        LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=staging).run(partitions=[key])

    with MemoryLedger("one") as one, MemoryLedger("two") as two, LocalEngine() as engine:
        run("one", one, engine, MONDAY)
        run("two", two, engine, TUESDAY)
        foreign = pa.table([["b"], [7], [DAYS.parse(MONDAY).value]], schema=SCHEMA)
        deltalake.write_deltalake(str(tmp_path / "out"), foreign, mode="append")
        assert sorted(row["cents"] for row in rows_of(tmp_path)) == [1, 2, 7]
        run("one", one, engine, MONDAY)
    assert sorted((str(row["day"]), row["cents"]) for row in rows_of(tmp_path)) == [(MONDAY, 1), (TUESDAY, 2)]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return deltalake.DeltaTable(str(folder / "out")).to_pyarrow_table().to_pylist()


def test_tables_without_such_partitions_are_refused(sales: Any) -> None:
    with pytest.raises(PlanError, match="Name the partition column of the table, as in column='day'"):
        Topology("sums", partitions=DAYS).new_stream("rows", sales.spout())
    with pytest.raises(PlanError, match="topology 'sums' is not bound to partitions"):
        Topology("sums").new_stream("rows", sales.spout(column="day"))
    sales.write(("a", 1, MONDAY))
    for other in ("shop", "by_day"):
        with pytest.raises(ConfigurationError, match=f"is not partitioned by '{other}'"):
            sales.spout(column=other).bound(DAYS).coordinator().partition(DAYS.parse(MONDAY))


def test_an_iceberg_table_that_was_never_written_has_nothing(tmp_path: Path) -> None:
    assert looked_at(Iceberg(tmp_path), MONDAY) is None


def test_a_partition_column_that_is_renamed_is_a_changed_source(tmp_path: Path) -> None:
    sales = Iceberg(tmp_path)
    sales.write(("a", 1, MONDAY))
    metadata = looked_at(sales, MONDAY)
    with sales.table.update_schema() as update:
        update.rename_column("day", "date")
    with pytest.raises(SourceChangedError, match="is no longer partitioned by 'day'"):
        cents_of(sales, metadata)
