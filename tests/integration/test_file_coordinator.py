"""Batches of real files by the list of read files: whatever the times are, each file is read once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import CorruptRecordError, SourceChangedError
from airflow_trident.io.place import PosixPlace
from airflow_trident.spouts.files import read_list
from airflow_trident.spouts.files.coordinator import FileCoordinator, Listings
from airflow_trident.spouts.files.file_source import LocalFiles
from airflow_trident.spouts.files.listing import FilePattern
from airflow_trident.spouts.files.read_options import BatchRules, ChangedFiles
from airflow_trident.types import Json


def coordinator(folder: Path, **rules: Any) -> FileCoordinator:
    source = LocalFiles(FilePattern(str(folder / "in"), recursive=True))
    chosen = BatchRules(**{"max_files": 1000, "max_bytes": 1 << 30, **rules})
    made = FileCoordinator(source, chosen, Listings(source), 1 << 30)
    made.keep_notes_in(PosixPlace(str(folder / "notes")))
    return made


def put(folder: Path, name: str, content: str = "x", age_s: float | None = None) -> None:
    path = folder / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    if age_s is not None:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))


def files(metadata: Json) -> list[str]:
    assert isinstance(metadata, dict)
    listed: Any = metadata["files"]
    return [file[0] for file in listed]


@pytest.fixture(params=[64, 0], ids=["in the metadata", "in chunks"])
def tail(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_list, "TAIL_RECORDS", request.param)


@pytest.mark.usefixtures("tail")
def test_a_file_is_new_by_its_name_and_a_changed_one_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a", age_s=10**6)
    put(tmp_path, "b")
    first = coordinator(tmp_path).initialize_transaction(1, None)
    assert files(first) == ["a", "b"]
    assert not coordinator(tmp_path).is_ready(first)
    put(tmp_path, "late/c", age_s=10**8)
    os.rename(tmp_path / "in/b", tmp_path / "in/renamed")
    second = coordinator(tmp_path).initialize_transaction(2, json.loads(json.dumps(first)))
    assert files(second) == ["late/c", "renamed"]
    os.utime(tmp_path / "in/a", (1, 1))
    assert not coordinator(tmp_path).is_ready(second), "its content is the same"
    put(tmp_path, "a", "y")
    put(tmp_path, "renamed", "y")
    with pytest.raises(SourceChangedError, match=r"and 1 more in .*changed since.*changed=\"read\""):
        coordinator(tmp_path).is_ready(second)
    third = coordinator(tmp_path, changed=ChangedFiles.READ).initialize_transaction(3, second)
    assert sorted(files(third)) == ["a", "renamed"]
    assert not coordinator(tmp_path).is_ready(third)


@pytest.mark.usefixtures("tail")
def test_batches_that_begin_together_are_known_from_the_last_one(tmp_path: Path) -> None:
    for number in range(7):
        put(tmp_path, f"f{number}", age_s=100 - number)
    together = coordinator(tmp_path, max_files=3).next_batches(5, None, 9)
    assert [files(metadata) for metadata in together] == [["f0", "f1", "f2"], ["f3", "f4", "f5"], ["f6"]]
    assert not coordinator(tmp_path).is_ready(together[-1])
    with pytest.raises(SourceChangedError, match="only the last of them says which files had been read"):
        coordinator(tmp_path).is_ready(together[0])


@pytest.mark.usefixtures("tail")
def test_a_transaction_takes_a_file_as_it_is_and_later_ones_know(tmp_path: Path) -> None:
    put(tmp_path, "a")
    first = coordinator(tmp_path).initialize_transaction(1, None)
    put(tmp_path, "b")
    second = coordinator(tmp_path).initialize_transaction(2, first)
    put(tmp_path, "a", "mended")
    accepted = coordinator(tmp_path).accept_source(first)
    followed = coordinator(tmp_path).follow_source(second, accepted)
    assert not coordinator(tmp_path).is_ready(followed)
    assert files(followed) == ["b"]
    assert coordinator(tmp_path).lag(accepted) == {"files": 1, "bytes": 1}


def test_chunks_that_no_transaction_names_are_swept_and_lost_ones_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_list, "TAIL_RECORDS", 0)
    current, kept = None, dict[int, Json]()
    chooser = coordinator(tmp_path)
    for txid in range(1, 30):
        put(tmp_path, f"f{txid}")
        kept[txid] = current = chooser.initialize_transaction(txid, current)
    before = len(os.listdir(tmp_path / "notes"))
    chooser.sweep_notes([kept[txid] for txid in range(20, 30)], 29)
    assert len(os.listdir(tmp_path / "notes")) < before - 10
    for txid in range(20, 30):
        assert coordinator(tmp_path).lag(kept[txid]) == {"files": 29 - txid, "bytes": 29 - txid}
    for name in os.listdir(tmp_path / "notes"):
        os.unlink(tmp_path / "notes" / name)
    with pytest.raises(CorruptRecordError, match="the list of the files that were read is not whole"):
        coordinator(tmp_path).is_ready(current)
