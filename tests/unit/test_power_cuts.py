"""What a writer calls durable is there after a power cut: staged batches, spooled ones, and those of a file sink or
a table.

Each writer is also run with one sort of sync left out, which must be noticed: the suite would not see a writer that
syncs nothing at all otherwise.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_trident import SpooledSpout
from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import TridentError
from airflow_trident.io.arrow import arrow_schema, table_to_rows
from airflow_trident.io.place import make_folder
from airflow_trident.spouts import CallableSource
from airflow_trident.staging.area import StagingArea, make_slot_folder
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.states.files.sink import FileSink
from airflow_trident.types import ddl, parse_declared
from tests.fixtures.state import ticket
from tests.power_cuts import Disk

SCHEMA = parse_declared("word string, n long")
ROWS = [("a", 1), ("b", 2)]


def table() -> pa.Table:
    words, numbers = zip(*ROWS, strict=True)
    return pa.table([words, numbers], schema=arrow_schema(SCHEMA))


@dataclass(frozen=True)
class Writer:
    """`write(folder)`: make a transaction's batch durable; `read(folder)`: what is found of it after a power cut."""

    write: Callable[[Path], None]
    read: Callable[[Path], list[tuple[object, ...]]]


# ---- staging ---------------------------------------------------------------------------------------------------


def slot(txid: int) -> Slot:
    return Slot(topology="words", incarnation="i1", txid=txid, attempt=3)


def staged(folder: Path, *, counts_first: bool = False) -> None:
    """Two transactions, the second in folders of which some are there."""
    area = StagingArea(str(folder / "staging"))
    for txid in (1, 2):
        if counts_first:  # as a pass of Spark does, before any data
            make_slot_folder(area.root, slot(txid))
        file = area.write(slot(txid), "counts", table())
        area.publish(Manifest(slot=slot(txid), files=(file,), rows_read=2, sinks={"counts": ddl(SCHEMA)}))


def staged_by_a_killed_process(folder: Path) -> None:
    """Its folders are there, and it never came to sync them."""
    make_folder(str(folder / "staging" / "words" / "i1"))
    for txid in (1, 2):
        (folder / "staging" / slot(txid).path).mkdir(parents=True)
    staged(folder)


def read_staged(folder: Path) -> list[tuple[object, ...]]:
    area = StagingArea(str(folder / "staging"))
    found = [area.read(area.load(slot(txid)), "counts", SCHEMA) for txid in (1, 2)]
    assert found[0] == found[1]
    return table_to_rows(found[0])


# ---- spool -----------------------------------------------------------------------------------------------------


def spout(folder: Path, rows: list[tuple[object, ...]]) -> SpooledSpout:
    left = [rows]
    return SpooledSpout(
        CallableSource(lambda _: left.pop() if left else None, "word string, n long"), str(folder / "new" / "spool")
    )


def spooled(folder: Path) -> None:
    assert spout(folder, ROWS).coordinator().initialize_transaction(1, None)


def spooled_by_a_killed_process(folder: Path) -> None:
    """It published the batch, and never came to sync the folder: the next coordinator records it."""
    fsync = os.fsync
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None if _is_folder(descriptor, "spool") else fsync(descriptor))
        spooled(folder)
    assert spout(folder, []).coordinator().initialize_transaction(1, None)


def _is_folder(descriptor: int, name: str) -> bool:
    return os.readlink(f"/proc/self/fd/{descriptor}").endswith(f"/{name}")


def read_spooled(folder: Path) -> list[tuple[object, ...]]:
    found = spout(folder, [])
    metadata = found.coordinator().initialize_transaction(1, None)
    assert metadata is not None, "the batch that the ledger has is not there"
    emitter = found.emitter()
    return [row for split in emitter.splits(metadata) for one in emitter.read(split) for row in table_to_rows_of(one)]


def table_to_rows_of(batch: pa.RecordBatch) -> list[tuple[object, ...]]:
    return table_to_rows(pa.Table.from_batches([batch]))


# ---- file sink -------------------------------------------------------------------------------------------------


def sink(folder: Path) -> StateSpec:
    return StateSpec(
        topology="t", name="s", keys=(), values=SCHEMA, staged=SCHEMA, factory=FileSink(str(folder / "new" / "out"))
    )


def sunk(folder: Path) -> None:
    spec = sink(folder)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), table())


def read_sunk(folder: Path) -> list[tuple[object, ...]]:
    spec = sink(folder)
    with spec.factory.make_state(spec) as state:
        marker = state.marker()
        assert marker is not None, "it forgot what it applied"
        return [row for _, row in state.items()]


WRITERS = {
    "staging": Writer(staged, read_staged),
    "staging, counts first": Writer(lambda folder: staged(folder, counts_first=True), read_staged),
    "staging, folders of a killed process": Writer(staged_by_a_killed_process, read_staged),
    "spool": Writer(spooled, read_spooled),
    "spool, published by a killed process": Writer(spooled_by_a_killed_process, read_spooled),
    "file sink": Writer(sunk, read_sunk),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_was_said_to_be_durable_survives_a_power_cut(tmp_path: Path, name: str) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    disk = Disk(place)
    with disk.recording():
        WRITERS[name].write(place)
    assert WRITERS[name].read(disk.survivors(tmp_path / "after")) == ROWS


@pytest.mark.parametrize("left_out", ["files", "folders", "everything"])
@pytest.mark.parametrize("name", [name for name in WRITERS if "killed" not in name])
def test_a_writer_that_does_not_sync_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, left_out: str
) -> None:
    place = tmp_path / "disk"
    place.mkdir()
    disk = Disk(place)
    with disk.recording():
        fsync = os.fsync

        def lazy(descriptor: int) -> None:
            kind = "folders" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "files"
            if left_out not in (kind, "everything"):
                fsync(descriptor)

        monkeypatch.setattr(os, "fsync", lazy)
        WRITERS[name].write(place)
        monkeypatch.undo()
    with pytest.raises((TridentError, AssertionError, OSError)):
        assert WRITERS[name].read(disk.survivors(tmp_path / "after")) == ROWS
