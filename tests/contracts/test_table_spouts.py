"""What one topology appends to a table, another one reads from it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import DataScan

from airflow_trident import DeltaTable, FixedBatchSpout, MemoryState, TableSpout, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError, DamagedInputError
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.spouts.delta.log import DeltaLog
from airflow_trident.spouts.files.columns import rows_of_file
from airflow_trident.spouts.iceberg.spout import IcebergLog
from airflow_trident.testing import MemoryLedger
from airflow_trident.testing.suites import batch_rows, metadata_of_all
from airflow_trident.types import parse_declared
from tests.fixtures.state import batch, ticket
from tests.fixtures.table import TABLES


@pytest.mark.parametrize("kind", TABLES)
def test_a_topology_goes_on_from_the_table_of_another(tmp_path: Path, kind: str) -> None:
    table = TABLES[kind](tmp_path)
    first, second = Topology("first"), Topology("second")
    source = FixedBatchSpout("word string, n long", [("a", 1), ("b", 2), ("a", 3)], 1)
    first.new_stream("words", source).persist_table(table.spec.factory)
    words = second.new_stream("words", TableSpout(table.spec.factory, fields="word string, n long", max_files=1))
    words.persist_table(DeltaTable(str(tmp_path / "copy")))
    with MemoryLedger("first") as one, MemoryLedger("second") as two:
        engine, staging = LocalEngine(), str(tmp_path / "st")
        LocalRunner(ledger=one, topology=first, engine=engine, staging_root=staging).run()
        runner = LocalRunner(ledger=two, topology=second, engine=engine, staging_root=staging)
        runner.run()
        table.append("other")
        runner.run()
    rows = deltalake.DeltaTable(str(tmp_path / "copy")).to_pyarrow_table().to_pylist()
    assert sorted((row["word"], row["n"]) for row in rows) == [("a", 1), ("a", 3), ("b", 2), ("other", 0)]


FILES = 12


def whole_looks(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the files of each look at a whole table."""
    looks = list[int]()
    owner, name = (deltalake.DeltaTable, "get_add_actions") if kind == "delta" else (DataScan, "plan_files")
    look = getattr(owner, name)

    def counted(*args: Any, **options: Any) -> Any:
        files = look(*args, **options)
        files = files if kind == "delta" else list(files)
        looks.append(files.num_rows if kind == "delta" else len(files))
        return files

    monkeypatch.setattr(owner, name, counted)
    return looks


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_all_batches_of_a_snapshot_look_at_the_whole_table_once(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TABLES[kind](tmp_path)
    with table.opened() as state:
        for txid in range(1, FILES + 1):
            state.apply(ticket(txid), batch(table.spec, ("a", txid)))
    looks = whole_looks(kind, monkeypatch)
    metadata, read = None, list[Any]()
    while True:
        spout = TableSpout(table.spec.factory, fields="word string, n long", max_files=1)
        more = spout.coordinator().initialize_transaction(1, metadata)
        if more is None:
            break
        assert spout.coordinator().lag(more) == {"files": FILES - len(read) - 1}
        metadata = more
        read += batch_rows(spout, metadata)
    assert sorted(n for _, n in read) == [*range(1, FILES + 1)]
    assert looks == [FILES]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_the_lag_reads_each_waiting_version_once(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TABLES[kind](tmp_path)
    table.opened().close()
    spout = TableSpout(table.spec.factory, fields="word string, n long", max_files=1, start="latest")
    log = {"delta": DeltaLog, "iceberg": IcebergLog}[kind]
    reads, change = list[int](), log.change

    def counted(self: Any, number: int, version_id: int | None) -> Any:
        reads.append(number)
        return change(self, number, version_id)

    metadata = spout.coordinator().initialize_transaction(1, None)
    for _ in range(FILES):
        table.append()
    monkeypatch.setattr(log, "change", counted)
    for batches in range(1, FILES):
        metadata = spout.coordinator().initialize_transaction(batches, metadata)
        assert spout.coordinator().lag(metadata) == {"files": FILES - batches}
    assert len(reads) <= 4 * FILES, "three for each batch, and each waiting version once"


def test_what_has_no_rows_to_follow_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"TableSpout got .*Give a DeltaTable or an IcebergTable"):
        TableSpout(MemoryState(), fields="word string")


def test_it_is_the_spout_of_the_format(tmp_path: Path) -> None:
    table = TABLES["delta"](tmp_path).spec.factory
    assert TableSpout(table, fields="word string").describe() == f"TableSpout({tmp_path}/sales)"
    with pytest.raises(ConfigurationError, match="max_files"):
        TableSpout(table, fields="word string", max_files=0)


def damage(path: Path) -> None:
    """The pages of its columns; the footer stays as it is."""
    footer, content = pq.read_metadata(path).row_group(0), bytearray(path.read_bytes())
    for place in range(footer.num_columns):
        column = footer.column(place)
        begin = column.dictionary_page_offset or column.data_page_offset
        content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.unlink()  # else the staged file is changed, too
    path.write_bytes(content)


@pytest.mark.parametrize("kind", TABLES)
def test_a_file_with_damaged_pages_is_damaged_and_no_storage_that_does_not_answer(tmp_path: Path, kind: str) -> None:
    table = TABLES[kind](tmp_path)
    table.opened().close()
    table.append()
    spout = TableSpout(table.spec.factory, fields="word string, n long")
    metadata = spout.coordinator().initialize_transaction(1, None)
    assert batch_rows(spout, metadata) == [("other", 0)]
    (path,) = tmp_path.rglob("*.parquet")
    damage(path)
    with pytest.raises(DamagedInputError, match=rf"{path.name}.* cannot be read as"):
        batch_rows(spout, metadata)


class Silent(io.BytesIO):
    """A file whose storage answers `answers` times."""

    answers = 0

    def read(self, size: int | None = -1) -> bytes:
        self.answers -= 1
        if self.answers < 0:
            raise OSError("no answer")
        return super().read(size)


def read_with(file: Silent, answers: int) -> type[Exception] | None:
    """The error, if there is one."""
    file.answers = answers
    file.seek(0)
    try:
        list(rows_of_file(file, parse_declared("n long"), {}))
    except (OSError, pa.ArrowException) as error:
        return type(error)
    return None


def test_a_storage_that_does_not_answer_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [1, 2]}), path)
    sound = Silent(path.read_bytes())
    damage(path)
    damaged = Silent(path.read_bytes())
    assert {read_with(sound, answers) for answers in range(20)} == {OSError, None}
    assert {read_with(damaged, answers) for answers in range(20)} == {OSError, pa.ArrowInvalid}


@pytest.mark.parametrize("kind", TABLES)
def test_a_drain_knows_how_large_a_batch_is_but_for_what_an_older_package_recorded(tmp_path: Path, kind: str) -> None:
    table = TABLES[kind](tmp_path)
    table.opened().close()
    for word in ("a", "b", "c"):
        table.append(word)
    spout = TableSpout(table.spec.factory, fields="word string, n long", max_files=2)
    coordinator, emitter = spout.coordinator(), spout.emitter()
    two, one = metadata_of_all(spout)
    sizes = [sum(split.size_bytes or 0 for split in emitter.splits(metadata)) for metadata in (two, one)]
    assert [coordinator.size_bytes(metadata) for metadata in (two, one)] == sizes
    assert sizes[0] > sizes[1] > 0
    older: Any = {name: value for name, value in two.items() if name != "bytes"}
    assert coordinator.size_bytes(older) is None
    assert emitter.splits(older) == emitter.splits(two)
    assert coordinator.initialize_transaction(2, older) == one
    assert coordinator.size_bytes({"files": []}) is None, "of another spout: an error when it is read"
