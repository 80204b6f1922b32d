"""Batches that are read while they are applied: their pieces are all the rows, or an error and nothing applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident.contracts.state import Applied, StagedBatch, StateSpec
from airflow_trident.errors import StagingError
from airflow_trident.io.arrow import arrow_schema, rows_to_table
from airflow_trident.staging import area as staging_area
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import ddl
from tests.fixtures.state import FACTORIES, SINKS, counts, ticket
from tests.fixtures.table import FIELDS

MANY = 40_000
"""More rows than one piece has."""
SLOT = Slot(topology="words", incarnation="i1", txid=7, attempt=2)
PLACES = ["folder", "bucket", "ledger"]
Rows = list[tuple[Any, ...]]


def rows_of(*tables: pa.Table | pa.RecordBatch) -> Rows:
    return [tuple(row.values()) for table in tables for row in table.to_pylist()]


def numbered(first: int, many: int) -> Rows:
    return [(f"w{number}", number) for number in range(first, first + many)]


class Staged:
    """Files of one state, published."""

    def __init__(self, root: str, *files: Rows, kept_bytes: int = 0) -> None:
        self.area = StagingArea(root)
        made = [self.area.write(SLOT, "rows", rows_to_table(FIELDS, one), kept_bytes=kept_bytes) for one in files]
        self.manifest = Manifest(slot=SLOT, files=tuple(made), rows_read=0, sinks={"rows": ddl(FIELDS)})

    def batch(self) -> StagedBatch:
        return self.area.batch(self.manifest, "rows", FIELDS, SLOT.txid)

    def path(self, number: int) -> Path:
        return Path(self.area.root) / self.manifest.files[number].path


@pytest.fixture(params=PLACES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Staged]:
    if request.param == "bucket":
        uri = request.getfixturevalue("bucket").uri
        return lambda *files: Staged(f"{uri}/staging", *files)
    return lambda *files: Staged(str(tmp_path), *files, kept_bytes=2**30 if request.param == "ledger" else 0)


# ---- the pieces ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("files", [[], [[]], [[], [("a", 1)], [], [("b", 2), (None, None)]]], ids=len)
def test_files_without_rows_are_no_rows(stage: Callable[..., Staged], files: list[Rows]) -> None:
    meant = [row for rows in files for row in rows]
    batch = stage(*files).batch()
    assert batch.num_rows == len(meant)
    assert rows_of(*batch.pieces()) == meant
    assert (batch.table().schema, rows_of(batch.table())) == (arrow_schema(FIELDS), meant)


def test_two_who_read_at_once_each_get_all_rows_in_order_and_from_the_first_one(stage: Callable[..., Staged]) -> None:
    batch = stage(numbered(0, MANY), numbered(MANY, 10)).batch()
    first, meant = batch.pieces(), numbered(0, MANY + 10)
    begun = next(first)
    pairs = list(zip(first, batch.pieces(), strict=False))
    assert rows_of(begun, *(one for one, _ in pairs)) + rows_of(*first) == meant
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda _: rows_of(*batch.pieces()), range(2))) == [meant, meant]


@pytest.mark.parametrize("damage", ["gone", "longer", "cut"])
def test_a_file_that_is_gone_or_of_another_size_is_an_error_also_behind_the_first_look(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_area, "_SMALL_BYTES", 0)  # a small batch is read at the first look
    staged = Staged(str(tmp_path), numbered(0, 3), numbered(3, MANY))
    batch, path = staged.batch(), staged.path(1)
    begun = batch.pieces()
    assert rows_of(next(begun)) == numbered(0, 3)
    content = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(content + b"x" if damage == "longer" else content[:-1])
    for read in (lambda: list(begun), lambda: list(batch.pieces()), batch.table, staged.batch):
        with pytest.raises(StagingError, match=r"staged file .*(is missing|bytes instead of).*Run the processing"):
            read()
    path.write_bytes(content)
    assert rows_of(batch.table()) == numbered(0, 3 + MANY)


def test_an_object_that_is_gone_is_an_error(bucket: Any) -> None:
    staged = Staged(f"{bucket.uri}/staging", numbered(0, 3), numbered(3, 3))
    staged.area.place.delete([staged.manifest.files[1].path])
    with pytest.raises(StagingError, match="is missing"):
        staged.batch()


# ---- who applies them ------------------------------------------------------------------------------------------

STORES = ["sqlite", "postgres", "sqlalchemy on sqlite", "sqlalchemy on postgres", "redis", "delta", "memory"]


@pytest.fixture(params=[*STORES, "files", "table", "delta table", "iceberg table"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StateSpec:
    if request.param in FACTORIES:
        return counts(FACTORIES[request.param](tmp_path))
    made = replace(counts(SINKS[request.param](tmp_path)), name="rows", combiners=())
    return replace(made, keys=(), values=FIELDS, staged=FIELDS)


def held(spec: StateSpec) -> tuple[Any, Rows]:
    with spec.factory.make_state(spec) as state:
        return state.marker(), sorted(((*key, *value) for key, value in state.items()), key=repr)


def test_a_batch_whose_pieces_end_with_an_error_leaves_nothing_and_then_comes_whole(spec: StateSpec) -> None:
    parts = [[], [("a", 1)], [], [("b", 2), (None, 3)], []]
    names = [field.name for field in FIELDS]
    rows = [[dict(zip(names, row, strict=True)) for row in part] for part in parts]
    whole = [pa.RecordBatch.from_pylist(part, arrow_schema(FIELDS)) for part in rows]

    def broken() -> Iterator[pa.RecordBatch]:
        yield from whole[:-1]
        raise StagingError("a staged file is missing", "Run the processing phase again.")

    def batch(pieces: Callable[[], Iterator[pa.RecordBatch]], rows: int = 3) -> StagedBatch:
        return StagedBatch(schema=FIELDS, num_rows=rows, pieces=pieces)

    with spec.factory.make_state(spec) as state:
        assert state.apply_staged(ticket(1), batch(lambda: iter(whole))) is Applied.APPLIED
        before = held(spec)
        assert before[1] == sorted([("a", 1), ("b", 2), (None, 3)], key=repr)
        with pytest.raises(StagingError, match="is missing"):
            state.apply_staged(ticket(2), batch(broken))
        assert held(spec) == before
        assert state.apply_staged(ticket(2, fence=50), batch(lambda: iter(whole))) is Applied.APPLIED
        assert state.apply_staged(ticket(3, fence=60), batch(lambda: iter(()), 0)) is Applied.APPLIED
    marker, rows = held(spec)
    assert marker.high == 3
    assert sum(row[1] for row in rows) == 12
