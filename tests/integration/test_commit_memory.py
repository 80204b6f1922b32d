"""A batch that is larger than a committer's memory is committed: it is read while it is applied, or its files
are added to a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_trident.contracts.state import State
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest
from airflow_trident.types import ddl
from tests.fixtures.object_store import CONN_ID, Lake
from tests.fixtures.postgres import PostgresServer
from tests.programs import gigabyte
from tests.programs.large_commit import SLOT, sink_of, topology_of

FILES = 8
ROWS = 40_000
"""In each file."""
WIDE = 600
"""Characters of a key: 192 MB of them, which are small as Parquet."""
MEGABYTES = 160
"""What a committer may take besides what it has before."""


def stage(kind: str, folder: Path, root: str) -> int:
    """How many rows."""
    sink, area = sink_of(topology_of(kind, folder)), StagingArea(root)
    files = []
    for part in range(FILES):
        keys = pa.array([f"{number:012}".ljust(WIDE, "x") for number in range(part, FILES * ROWS, FILES)])
        numbers = [pa.array([1] * ROWS, pa.int64())] * (len(sink.schema) - 1)
        files.append(area.write(SLOT, sink.name, pa.table([keys, *numbers], schema=arrow_schema(sink.schema))))
    area.publish(Manifest(slot=SLOT, files=tuple(files), rows_read=0, sinks={sink.name: ddl(sink.schema)}))
    return FILES * ROWS


def commit(kind: str, folder: Path, how: str, root: str) -> subprocess.CompletedProcess[str]:
    # Another pool takes memory in advance, and malloc keeps what was freed, each as much as it likes.
    quiet = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    env = {**os.environ, **quiet}
    program = [sys.executable, "-m", "tests.programs.large_commit", kind, str(folder), how, str(MEGABYTES), root]
    return subprocess.run(program, env=env, capture_output=True, text=True, check=False)


def rows_in(kind: str, folder: Path, state: State) -> int:
    if kind == "files":
        return sum(path.read_bytes().count(b"\n") for path in (folder / "out").glob("*.json"))
    return sum(1 for _ in state.items())


@pytest.mark.parametrize(
    ("kind", "staging"),
    [
        ("SQLite", "a bucket"),
        pytest.param("PostgreSQL", "a folder", marks=pytest.mark.rare),
        pytest.param("rows in PostgreSQL", "a bucket", marks=pytest.mark.rare),
        ("files", "a bucket"),
        ("a table", "a bucket"),
    ],
)
def test_a_committer_applies_more_than_it_has_memory_for(
    kind: str, staging: str, tmp_path: Path, postgres: PostgresServer, lake: Lake
) -> None:
    root = f"s3://{CONN_ID}@{lake.name}/staging" if staging == "a bucket" else str(tmp_path / "staging")
    rows = stage(kind, tmp_path, root)
    done = commit(kind, tmp_path, "as it comes", root)
    assert (done.returncode, done.stdout) == (0, "applied\n"), done.stderr[-3000:]
    sink = sink_of(topology_of(kind, tmp_path))
    with sink.state.factory.make_state(sink.state) as state:
        assert rows_in(kind, tmp_path, state) == rows
        marker = state.marker()
        assert marker is not None
        assert marker.high == 2


def test_the_same_as_a_table_is_more_than_it_may_take(tmp_path: Path) -> None:
    """Else the limit would prove nothing."""
    root = str(tmp_path / "staging")
    stage("SQLite", tmp_path, root)
    done = commit("SQLite", tmp_path, "whole", root)
    assert done.returncode == 1
    said = done.stderr.splitlines()[-1]
    assert "malloc of size" in said or "MemoryError" in said


@pytest.mark.rare
@pytest.mark.parametrize("kind", gigabyte.KINDS)
def test_ten_million_rows_are_staged_and_committed_in_a_gigabyte(
    kind: str, tmp_path: Path, postgres: PostgresServer
) -> None:
    rows = 10_000_000
    program = [sys.executable, "-m", "tests.programs.gigabyte", kind, str(tmp_path), str(rows), "1024"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    status, peak_mb = done.stdout.split()
    assert status == "COMMITTED"
    assert int(peak_mb) < 1024
    assert gigabyte.found(kind, tmp_path) == (rows, rows * (rows - 1) // 2)
