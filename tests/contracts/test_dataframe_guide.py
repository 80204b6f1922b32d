"""The guide to DataFrames and SQL, run from top to bottom on Spark: what its tables have is what it says."""

from __future__ import annotations

import datetime
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import coordinate
from airflow_trident.testing import MemoryLedger
from tests.unit.test_docs import DOCS, python_of

GUIDE = DOCS / "how-to" / "use-dataframes-and-sql.md"
NOW = datetime.datetime(2026, 3, 3, 12, tzinfo=datetime.UTC)
ORDERS = [(NOW - timedelta(days=2), "ada", 300), (NOW, "ada", 100), (NOW, " Zoe", 50), (NOW, " Zoe", -10)]


def topology_of(folder: Path) -> Topology:
    text = "\n".join(python_of(GUIDE)).replace('"/data/', f'"{folder}/').replace('"/lake/', f'"{folder}/lake/')
    names: dict[str, Any] = {"__name__": "guide"}
    exec(compile(text, str(GUIDE), "exec", dont_inherit=True), names)
    found = names["topology"]
    assert isinstance(found, Topology)
    return found


def rows(folder: Path, name: str) -> list[tuple[Any, ...]]:
    import deltalake

    table = deltalake.DeltaTable(str(folder / "lake" / name)).to_pyarrow_table()
    return sorted(zip(*(table.column(field).to_pylist() for field in table.column_names), strict=True), key=str)


@pytest.mark.spark
def test_the_guide_to_dataframes_and_sql_gives_what_it_says(spark_engine: Engine, tmp_path: Path) -> None:
    topology = topology_of(tmp_path)
    (tmp_path / "orders").mkdir()
    columns = dict(zip(("at", "customer", "cents"), map(list, zip(*ORDERS, strict=True)), strict=True))
    pq.write_table(pa.table(columns), tmp_path / "orders" / "1.parquet")
    with MemoryLedger(topology.name) as ledger:
        coordinate(ledger, topology, [Claim(key="one", run_ms=int(NOW.timestamp() * 1000))])
        staging = str(tmp_path / "staging")
        assert LocalRunner(ledger=ledger, topology=topology, engine=spark_engine, staging_root=staging).run() == [1]
    shares = [("ada", 0.25), ("ada", 0.75), (" Zoe", 1.25), (" Zoe", -0.25)]
    assert {row[1:] for row in rows(tmp_path, "shares")} == set(shares)
    assert rows(tmp_path, "same") == rows(tmp_path, "shares")
    assert rows(tmp_path, "late") == [("ada", 300, NOW)]
    assert {(loaded, txid) for *_, loaded, txid in rows(tmp_path, "loaded")} == {(NOW, 1)}
    assert {row[1:] for row in rows(tmp_path, "daily")} == {("ada", 300), ("ada", 100)}
    assert {row[1:] for row in rows(tmp_path, "clean")} == {("ada", 300), ("ada", 100), ("zoe", 50)}
