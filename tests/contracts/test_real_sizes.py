"""Every table and file sink with batches above each buffer, block, part and request limit on the way to its store.

64 KiB is the buffer of pyarrow's streams, 4 to 5 MB is one part of an upload of deltalake and obstore. A batch of text
that does not compress is larger than all of them. It comes by link, by copy of the store, by copy through this process,
and by value; what is read back is compared byte by byte, also by a spout.
"""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_trident import DeltaState, DeltaTable, IcebergTable, TableSpout
from airflow_trident.contracts.state import Applied, StagedFiles, State, StateSpec
from airflow_trident.io.parquet import footer_bytes
from airflow_trident.io.place import PlacedFile
from airflow_trident.io.places import place_at
from airflow_trident.states.files.sink import FileSink
from tests.fixtures.azurite import CONN_ID as AZURE
from tests.fixtures.gcs import CONN_ID as GOOGLE
from tests.fixtures.hdfs import Folder
from tests.fixtures.object_store import CONN_ID as AMAZON
from tests.fixtures.object_store import Lake
from tests.fixtures.state import counts, ticket
from tests.fixtures.table import FIELDS

ROWS, LETTERS = 80_000, 80
PARTITIONS = 2
"""Each file has so many rows, in each of so many partitions."""


def large(day: int = 0) -> pa.Table:
    """6.4 MB of random letters."""
    text = base64.b64encode(os.urandom(ROWS * LETTERS * 3 // 4))
    ends = pa.array(range(0, ROWS * LETTERS + 1, LETTERS), pa.int32())
    words = pa.StringArray.from_buffers(ROWS, ends.buffers()[1], pa.py_buffer(text))
    return pa.table({"word": words, "n": pa.repeat(pa.scalar(day, pa.int64()), ROWS)})


def staged(root: str, *tables: pa.Table) -> StagedFiles:
    """As the staging area gives them: local files by their path, others by what opens and copies them."""
    storage, paths = place_at(root), list[str]()
    footers, names = dict[str, bytes](), dict[str, str]()
    for table in tables:
        name, collected = f"words/0001/rows-{len(names)}-{os.urandom(4).hex()}.parquet", list[Any]()
        storage.put(name, lambda file: pq.write_table(table, file, metadata_collector=collected))  # noqa: B023
        path = storage.at(name)
        paths.append(path)
        names[path] = name
        footers[path] = footer_bytes(collected[0])
    rows = sum(table.num_rows for table in tables)
    if storage.is_local:
        return StagedFiles(paths=tuple(paths), num_rows=rows)
    return StagedFiles(
        paths=tuple(paths),
        num_rows=rows,
        opener=lambda path: storage.open(names[path]),
        stored=lambda path: PlacedFile(storage, names[path]),
        footers=footers,
    )


def iceberg(warehouse: str, folder: Path) -> IcebergTable:
    return IcebergTable(
        "sales.orders", properties={"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": warehouse}
    )


SINKS: dict[str, Callable[[str, str, Path], Any]] = {
    "delta": lambda uri, conn_id, folder: DeltaTable(f"{uri}/lake/sales", conn_id=conn_id or None),
    "iceberg": lambda uri, conn_id, folder: iceberg(
        uri.replace("://", f"://{conn_id}@") if conn_id else f"file://{uri}", folder
    ),
    "files": lambda uri, conn_id, folder: FileSink(
        f"{uri.replace('://', f'://{conn_id}@') if conn_id else uri}/lake/sales"
    ),
}


def spec_of(factory: Any, **changes: Any) -> StateSpec:
    spec = StateSpec(topology="words", name="rows", keys=(), values=FIELDS, staged=FIELDS, factory=factory)
    return replace(spec, **changes)


def is_kept(state: State, *tables: pa.Table) -> bool:
    """Are these rows there, and no others?"""
    rows = sorted(key + row for key, row in state.items())
    return rows == sorted(
        pair for table in tables for pair in zip(table["word"].to_pylist(), table["n"].to_pylist(), strict=True)
    )


def is_read(factory: Any, *tables: pa.Table) -> bool:
    spout = TableSpout(factory, fields="word string, n long")
    emitter, metadata = spout.emitter(), spout.coordinator().initialize_transaction(1, None)
    read = pa.Table.from_batches([part for split in emitter.splits(metadata) for part in emitter.read(split)])
    return read.sort_by("word").equals(pa.concat_tables(tables).sort_by("word"))


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Staging and table are on two file systems."""

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    monkeypatch.setattr("airflow_trident.states.tables.appending.os.link", refuse)


@pytest.mark.parametrize("sink", ["delta", "iceberg"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "rewrite"])
def test_large_batches_come_from_another_file_system_in_each_mode(
    sink: str, mode: str, tmp_path: Path, no_links: None
) -> None:
    factory = SINKS[sink](str(tmp_path), "", tmp_path)
    changes: dict[str, Any] = {}
    if mode == "overwrite":
        factory = replace(factory, partition_by="n")
        changes = {"partition_by": ("n",), "overwrites": True}
    if mode == "rewrite":
        changes = {"keys": FIELDS[:1], "values": FIELDS[1:], "rewrites": True}
    spec, root = spec_of(factory, **changes), str(tmp_path / "staging")
    first, second, third = large(1), large(2), large(1)
    half = ROWS // 2
    rest = first.slice(0, half)
    if mode == "rewrite":
        third = pa.concat_tables([first.slice(half).set_column(1, "n", pa.repeat(pa.scalar(3), half)), third])
    with factory.make_state(spec) as state:
        assert state.apply_files(ticket(1), staged(root, first, second)) is Applied.APPLIED
        assert state.apply_files(ticket(2), staged(root, third)) is Applied.APPLIED
        kept = {"append": (first, second, third), "overwrite": (second, third), "rewrite": (rest, second, third)}
        assert is_kept(state, *kept[mode])


# The stand-ins of Google's and Azure's stores speak no protocol of pyiceberg's clients.
INTO_OBJECT_STORES = [
    (place, sink) for place in ("s3", "gcs", "azure") for sink in SINKS if sink != "iceberg" or place == "s3"
]


@pytest.mark.parametrize(("place", "sink"), INTO_OBJECT_STORES)
def test_large_batches_come_into_each_object_store(
    sink: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By reference from a folder, by the store's own copy, and by value."""
    fixture, conn_id, scheme = {
        "s3": ("lake", AMAZON, "s3"),
        "gcs": ("gcs_lake", GOOGLE, "gs"),
        "azure": ("container", AZURE, "abfs"),
    }[place]
    bucket = request.getfixturevalue(fixture)
    factory = SINKS[sink](f"{scheme}://{bucket.name}", conn_id, tmp_path)
    spec, first, second, third = spec_of(factory), large(1), large(2), large(3)
    with factory.make_state(spec) as state:
        if factory.capabilities.by_reference:
            assert state.apply_files(ticket(1), staged(str(tmp_path / "staging"), first)) is Applied.APPLIED
        else:
            assert state.apply(ticket(1), first) is Applied.APPLIED
        batches = [first]
        if sink != "files" and place != "azure":
            root = f"{scheme}://{conn_id}@{bucket.name}/staging"
            assert state.apply_files(ticket(2), staged(root, second)) is Applied.APPLIED
            assert state.apply(ticket(3), third) is Applied.APPLIED
            batches += [second, third]
        if place == "azure" and sink == "delta":  # azurite's listings lead delta-rs astray from the second version on
            storage = place_at(f"{scheme}://{conn_id}@{bucket.name}/lake/sales")
            (name,) = (entry.name for entry in storage.list("") if entry.name.startswith("trident-"))
            assert pq.read_table(pa.BufferReader(storage.read(name))).equals(first)
        else:
            assert is_kept(state, *batches) if sink == "files" else is_read(factory, *batches)


def test_a_delta_state_in_a_bucket_keeps_folds_and_publishes_large_batches(lake: Lake) -> None:
    spec = counts(DeltaState(f"s3://{lake.name}/states", conn_id=AMAZON))
    first, second = large(1), large(2)
    with spec.factory.make_state(spec) as state:
        for txid, rows in ((1, first), (2, first), (3, second)):
            state.apply(ticket(txid), rows)
        state.fold()
        state.publish()
        words = [(word,) for word in first["word"].to_pylist()[::1000]]
        assert set(state.get_many(words)) == {(2,)}
        assert sum(value for _, (value,) in state.items()) == 4 * ROWS


@pytest.mark.rare
def test_a_file_sink_in_hdfs_takes_a_large_batch(folder: Folder) -> None:
    spec, rows = spec_of(FileSink(f"{folder.uri}/out")), large(1)
    with spec.factory.make_state(spec) as state:
        assert state.apply(ticket(1), rows) is Applied.APPLIED
        assert is_kept(state, rows)
