"""What a commit by reference reads does not grow with the files of its batch: their footers come with the manifest."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_trident import FixedBatchSpout
from airflow_trident.errors import StagingError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.plan.nodes import PersistNode
from airflow_trident.runtime.staged_batches import apply_batch, staged_batches
from airflow_trident.staging import footers
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile, decode, encode
from airflow_trident.topology.topology import Topology
from airflow_trident.types import ddl
from tests.fixtures.state import SINKS, ticket
from tests.fixtures.table import FIELDS

_watched: list[tuple[str, list[str]]] = []


def _look(event: str, given: tuple[Any, ...]) -> None:
    if event == "open" and _watched and str(given[0]).startswith(_watched[-1][0]):
        _watched[-1][1].append(str(given[0]))


sys.addaudithook(_look)


def opened(root: Path, txid: int, many: int, kind: str, *, known: bool = True) -> list[str]:
    """Commits a batch of so many files: which staged ones are opened?

    :param known: with their footers.
    """
    topology = Topology("words")
    stream = topology.new_stream("rows", FixedBatchSpout(ddl(FIELDS), [], 1))
    stream.persist_table(SINKS[kind](root / "table"), name="rows")
    plan, area = topology.compile(), StagingArea(str(root / "staging"))
    (sink,) = plan.sinks
    assert isinstance(sink, PersistNode)
    slot = Slot(topology="words", incarnation="i1", txid=txid, attempt=0)
    tables = [rows_to_table(FIELDS, [(f"w{number}", number), (None, 7)]) for number in range(many)]
    files = tuple(area.write(slot, "rows", one, by_reference=known and sink.by_reference) for one in tables)
    manifest = area.load(area.publish(Manifest(slot=slot, files=files, rows_read=0, sinks=plan.staged_fields)))
    with sink.state.factory.make_state(sink.state) as state:
        seen: list[str] = []
        _watched.append((str(root / "staging"), seen))
        try:
            now = ticket(txid, attempt=0)
            apply_batch(state, now, staged_batches(area, manifest, now, plan)["rows"])
        finally:
            _watched.pop()
        assert sum(1 for _ in state.items()) >= 2 * many
    return seen


@pytest.mark.parametrize("kind", ["delta table", "iceberg table"])
def test_a_commit_by_reference_opens_none_of_its_files(kind: str, tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    assert opened(tmp_path, 1, 2, kind) == opened(tmp_path, 2, 40, kind) == []
    assert len(opened(tmp_path, 3, 5, kind, known=False)) == 5, "a manifest of a version before"


def staged(area: StagingArea) -> Manifest:
    slot = Slot(topology="words", incarnation="i1", txid=7, attempt=2)
    tables = [rows_to_table(FIELDS, [(f"w{number}", number)]) for number in range(3)]
    files = tuple(area.write(slot, "rows", one, by_reference=True) for one in tables)
    return Manifest(slot=slot, files=files, rows_read=3, sinks={"rows": ddl(FIELDS)})


def test_a_footer_is_that_of_its_file_and_a_manifest_without_them_is_read(tmp_path: Path) -> None:
    area = StagingArea(str(tmp_path))
    found = area.load(area.publish(staged(area)))
    files = area.files(found, "rows", FIELDS)
    assert files is not None
    for part in files.parts():
        (tmp_path / "footer").write_bytes(part.footer)
        assert pq.read_metadata(tmp_path / "footer").equals(pq.read_metadata(part.path))
    old = json.loads(encode(found))
    del old["footers"]
    read = decode(json.dumps(old).encode(), "m.json")
    assert read == found
    assert not any(file.footer for file in read.files)


def test_damaged_footers_are_a_damaged_manifest_and_too_many_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = staged(StagingArea(str(tmp_path)))
    written = json.loads(encode(manifest))
    for damaged in ("", "!", "AAAA", 7, written["footers"][:-8], footers.pack_footers([b"x"])):
        with pytest.raises(StagingError, match=r"'m\.json' is damaged: its footers"):
            decode(json.dumps({**written, "footers": damaged}).encode(), "m.json")
    monkeypatch.setattr(footers, "MOST_BYTES", 10)
    assert "footers" not in json.loads(encode(manifest))
    unknown: tuple[StagedFile, ...] = tuple(replace(file, footer=b"") for file in manifest.files)
    assert "footers" not in json.loads(encode(replace(manifest, files=unknown)))


@pytest.mark.parametrize("kind", ["delta table", "iceberg table"])
def test_footers_of_wide_files_are_read_from_the_files_and_not_kept_by_the_driver(tmp_path: Path, kind: str) -> None:
    """A footer of 200 columns has 40 KB, and there may be thousands of files."""
    topology, area = Topology("words"), StagingArea(str(tmp_path / "staging"))
    fields = ", ".join(f"c{number} long" for number in range(200))
    topology.new_stream("rows", FixedBatchSpout(fields, [], 1)).persist_table(SINKS[kind](tmp_path), name="rows")
    plan = topology.compile()
    (sink,) = plan.sinks
    assert isinstance(sink, PersistNode)
    slot = Slot(topology="words", incarnation="i1", txid=1, attempt=0)
    table = rows_to_table(sink.schema, [tuple(range(200))])
    files = tuple(area.write(slot, "rows", table, by_reference=True) for _ in range(3))
    assert not any(file.footer for file in files)
    manifest = area.load(area.publish(Manifest(slot=slot, files=files, rows_read=0, sinks=plan.staged_fields)))
    with sink.state.factory.make_state(sink.state) as state:
        apply_batch(state, ticket(1), staged_batches(area, manifest, ticket(1), plan)["rows"])
        assert [row for _, row in state.items()] == 3 * [tuple(range(200))]
