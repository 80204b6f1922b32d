"""A batch in a person's words, of the metadata that real spouts record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_trident import FileSpout
from airflow_trident.plugin.rows import batch_words, size_words
from airflow_trident.types import Json


def first_batch(spout: object) -> Json:
    coordinator = spout.coordinator()  # type: ignore[attr-defined]
    try:
        return coordinator.initialize_transaction(1, None)
    finally:
        coordinator.close()


def test_files_are_counted_and_named(tmp_path: Path) -> None:
    for name, size in (("07.json", 1024), ("08.json", 512), ("09.json", 0)):
        (tmp_path / name).write_text("x" * size)
        os.utime(tmp_path / name, (1, 1))
    metadata = first_batch(FileSpout(str(tmp_path / "*.json"), format="text"))
    assert batch_words({"lines": metadata}) == {"lines": "3 files, 1.5 KB: 07.json to 09.json"}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (
            {"topics": {"clicks": {"id": "x", "partitions": {"0": [5, 9], "1": [0, 1]}}}, "version": 1},
            "clicks: 5 offsets in 2 partitions",
        ),
        ({"from": 7, "to": 1007, "rows": 1000}, "1,000 rows, keys above 7 up to 1007"),
        ({"files": []}, "no file"),
    ],
)
def test_other_known_shapes_are_told(metadata: Json, words: str) -> None:
    assert batch_words({"one": metadata}) == {"one": words}


@pytest.mark.parametrize("metadata", [None, 7, {}, {"files": 7}, {"files": [[]]}, {"topics": {"a": None}}, {"x": 1}])
def test_what_has_no_known_shape_is_left_to_the_record_itself(metadata: Json) -> None:
    assert batch_words({"one": metadata}) == {}


def test_sizes_have_one_unit() -> None:
    assert [size_words(n) for n in (0, 1023, 1536, 3 * 1024**4)] == ["0 B", "1,023 B", "1.5 KB", "3.0 TB"]
