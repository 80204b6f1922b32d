"""Staged batches in the answers of drivers."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_trident.errors import StagingError
from airflow_trident.staging.answers import answered, as_answer
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot, StagedFile

SLOT = Slot(topology="fruit", incarnation="one", txid=7, attempt=1)


def batch(*contents: bytes) -> Manifest:
    files = tuple(
        StagedFile(state="count", path=f"{SLOT.path}/count-{n}.parquet", rows=1, bytes=len(content), content=content)
        for n, content in enumerate(contents)
    )
    return Manifest(slot=SLOT, files=files, rows_read=2, sinks={"count": "n long"})


def test_a_small_batch_travels_whole_and_no_file_is_written(tmp_path: Path) -> None:
    for manifest in (batch(b"one", b"two"), batch()):
        answer = as_answer(StagingArea(str(tmp_path)), manifest, 10_000)
        back = answered(answer, "there")
        assert back == manifest
        assert [file.content for file in back.files] == [file.content for file in manifest.files]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 100])
def test_the_files_of_a_larger_one_are_written_and_those_that_executors_wrote_stay_theirs(
    tmp_path: Path, limit: int
) -> None:
    manifest = batch(b"x" * 200, b"y")
    theirs = replace(manifest, files=(*manifest.files, replace(manifest.files[0], path=f"{SLOT.path}/t", content=b"")))
    back = answered(as_answer(StagingArea(str(tmp_path)), theirs, limit), "there")
    assert back == theirs
    assert [file.content for file in back.files] == [b"", b"", b""]
    assert [(tmp_path / file.path).read_bytes() for file in manifest.files] == [b"x" * 200, b"y"]
    assert not (tmp_path / SLOT.path / "t").exists()


def test_a_damaged_answer_is_an_error_that_names_it(tmp_path: Path) -> None:
    assert answered({"more": 1}, "there") is None
    whole = as_answer(StagingArea(str(tmp_path)), batch(b"one"), 10_000)["packed"]
    changed = bytearray(base64.b64decode(whole))
    changed[changed.index(b"one")] ^= 1
    for packed in ("?", whole[: len(whole) // 2 // 4 * 4], base64.b64encode(changed).decode()):
        with pytest.raises(StagingError, match="'there' is damaged"):
            answered({"packed": packed}, "there")
