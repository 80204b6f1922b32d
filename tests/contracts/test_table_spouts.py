"""What one topology appends to a table, another one reads from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident import FixedBatchSpout, MemoryLedger, MemoryState, ParquetTable, TableSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.table import TABLES


@pytest.mark.parametrize("kind", TABLES)
def test_a_topology_goes_on_from_the_table_of_another(tmp_path: Path, kind: str) -> None:
    table = TABLES[kind](tmp_path)
    first, second = Topology("first"), Topology("second")
    source = FixedBatchSpout("word string, n long", [("a", 1), ("b", 2), ("a", 3)], 1)
    first.new_stream("words", source).persist_table(table.spec.factory)
    words = second.new_stream("words", TableSpout(table.spec.factory, fields="word string, n long", max_files=1))
    words.persist_table(ParquetTable(str(tmp_path / "copy")))
    with MemoryLedger("first") as one, MemoryLedger("second") as two:
        engine, staging = LocalEngine(), str(tmp_path / "st")
        LocalRunner(ledger=one, topology=first, engine=engine, staging_root=staging).run()
        runner = LocalRunner(ledger=two, topology=second, engine=engine, staging_root=staging)
        runner.run()
        table.append("other")
        runner.run()
    rows = ParquetTable(str(tmp_path / "copy")).dataset().to_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [("a", 1), ("a", 3), ("b", 2), ("other", 0)]


def test_what_has_no_rows_to_follow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"TableSpout got .*Give a DeltaTable, an IcebergTable or a Parq"):
        TableSpout(MemoryState(), fields="word string")


def test_it_is_the_spout_of_the_format(tmp_path: Path) -> None:
    table = TABLES["delta"](tmp_path).spec.factory
    assert TableSpout(table, fields="word string").describe() == f"DeltaSpout({tmp_path}/sales)"
    with pytest.raises(ConfigurationError, match="max_files"):
        TableSpout(table, fields="word string", max_files=0)
