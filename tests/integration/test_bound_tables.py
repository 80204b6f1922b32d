"""TableSpout of a DeltaTable in topologies that are bound to partitions: a topology by day follows another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from airflow_trident import DeltaTable, IcebergTable, MemoryState, Partitions, Sum, TableSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, PlanError, SourceChangedError
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.partitions import Partition
from airflow_trident.runtime.local import LocalRunner

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"
DAYS = Partitions("day", begin="2026-01-01")
SCHEMA = pa.schema([("shop", pa.string()), ("cents", pa.int64()), ("day", pa.date32())])


def write(folder: Path, *rows: tuple[str, int, str], mode: Any = "append", **options: Any) -> None:
    days = [DAYS.parse(day).value for *_, day in rows]
    columns = [[shop for shop, *_ in rows], [cents for _, cents, _ in rows], days]
    table = pa.table(columns, schema=SCHEMA)
    deltalake.write_deltalake(str(folder / "sales"), table, mode=mode, partition_by=["day"], **options)


def spout(folder: Path, **options: Any) -> Any:
    return TableSpout(DeltaTable(str(folder / "sales")), fields="shop string, cents long", **options)


def looked_at(folder: Path, key: str) -> Any:
    partition: Partition = DAYS.parse(key)
    coordinator = spout(folder, column="day").bound(DAYS).coordinator()
    return json.loads(json.dumps(coordinator.partition(partition)))


def cents_of(folder: Path, metadata: Any) -> list[int]:
    emitter = spout(folder, column="day").bound(DAYS).emitter()
    batches = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return sorted(cents for batch in batches for cents in batch.column("cents").to_pylist())


def test_a_look_has_the_files_of_one_partition_in_one_version(tmp_path: Path) -> None:
    write(tmp_path, ("a", 1, MONDAY), ("b", 2, MONDAY), ("a", 9, TUESDAY))
    write(tmp_path, ("a", 3, MONDAY))
    metadata = looked_at(tmp_path, MONDAY)
    write(tmp_path, ("a", 100, MONDAY))
    assert cents_of(tmp_path, metadata) == [1, 2, 3]
    assert cents_of(tmp_path, looked_at(tmp_path, MONDAY)) == [1, 2, 3, 100]
    assert cents_of(tmp_path, looked_at(tmp_path, TUESDAY)) == [9]
    assert looked_at(tmp_path, "2026-11-25") is None


def test_only_a_change_of_its_files_changes_a_partition(tmp_path: Path) -> None:
    write(tmp_path, ("a", 1, MONDAY), ("a", 9, TUESDAY))
    coordinator = spout(tmp_path, column="day").bound(DAYS).coordinator()
    before = looked_at(tmp_path, MONDAY)
    write(tmp_path, ("a", 7, TUESDAY))
    assert not coordinator.compared(before, looked_at(tmp_path, MONDAY))
    write(tmp_path, ("b", 5, MONDAY), mode="overwrite", predicate=f"day = '{MONDAY}'")
    assert coordinator.compared(before, looked_at(tmp_path, MONDAY))
    assert coordinator.size_bytes(before) > 0


def test_a_version_whose_files_were_vacuumed_is_a_changed_source(tmp_path: Path) -> None:
    write(tmp_path, ("a", 1, MONDAY))
    metadata = looked_at(tmp_path, MONDAY)
    write(tmp_path, ("b", 5, MONDAY), mode="overwrite")
    table = deltalake.DeltaTable(str(tmp_path / "sales"))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(SourceChangedError, match="is gone"):
        cents_of(tmp_path, metadata)


def test_a_topology_by_day_does_again_what_was_replaced_in_a_table(tmp_path: Path) -> None:
    topology = Topology("sums", partitions=DAYS)
    rows = topology.new_stream("rows", spout(tmp_path, column="day"))
    sums = rows.group_by("day, shop").persistent_aggregate(MemoryState(str(tmp_path)), "cents", Sum(), "n", name="sums")
    write(tmp_path, ("a", 1, MONDAY), ("b", 2, MONDAY), ("a", 9, TUESDAY))
    with MemoryLedger("sums") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        assert runner.run(partitions=[MONDAY, TUESDAY]) == [1, 2]
        write(tmp_path, ("a", 5, MONDAY), mode="overwrite", predicate=f"day = '{MONDAY}'")
        assert runner.run(partitions=[MONDAY, TUESDAY], redo="changed") == [3]
        with sums.spec.factory.make_state(sums.spec) as state:
            found = {(str(day), shop): cents for (day, shop), (cents,) in state.items()}
    assert found == {(MONDAY, "a"): 5, (TUESDAY, "a"): 9}


def test_a_follower_of_a_table_whose_partitions_are_replaced_is_told_of_bound_topologies(tmp_path: Path) -> None:
    write(tmp_path, ("a", 1, MONDAY))
    coordinator = spout(tmp_path).coordinator()
    first = coordinator.initialize_transaction(1, None)
    write(tmp_path, ("a", 5, MONDAY), mode="overwrite", predicate=f"day = '{MONDAY}'")
    with pytest.raises(SourceChangedError, match=r'bound to partitions.*name its column="day"'):
        coordinator.initialize_transaction(2, first)


def test_two_topologies_replace_partitions_of_one_table_with_what_others_wrote_into_them(tmp_path: Path) -> None:
    write(tmp_path, ("a", 1, MONDAY), ("a", 2, TUESDAY))
    table = DeltaTable(str(tmp_path / "out"), partition_by="day")

    def run(name: str, ledger: MemoryLedger, engine: LocalEngine, key: str) -> None:
        topology = Topology(name, partitions=DAYS)
        topology.new_stream("rows", spout(tmp_path, column="day")).persist_table(table, name="rows")
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


def test_tables_without_such_partitions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="Name the partition column of the table, as in column='day'"):
        Topology("sums", partitions=DAYS).new_stream("rows", spout(tmp_path))
    with pytest.raises(PlanError, match="topology 'sums' is not bound to partitions"):
        Topology("sums").new_stream("rows", spout(tmp_path, column="day"))
    with pytest.raises(ConfigurationError, match="of an Iceberg table cannot be read by a bound topology yet"):
        TableSpout(IcebergTable("a.b"), fields="n long", column="day")
    write(tmp_path, ("a", 1, MONDAY))
    with pytest.raises(ConfigurationError, match="is not partitioned by 'shop'"):
        spout(tmp_path, column="shop").bound(DAYS).coordinator().partition(DAYS.parse(MONDAY))
