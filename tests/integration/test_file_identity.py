"""Which file is the recorded one, and which is new, on real folders: by content where times say nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_trident.errors import CorruptRecordError, SourceChangedError, SourceUnavailableError
from airflow_trident.spouts.files import coordinator as file_module
from airflow_trident.spouts.files.contents import digest_of
from airflow_trident.spouts.files.listing import FilePattern, Listing
from airflow_trident.spouts.files.spout import FileSpout
from tests.fixtures.file import begin, lines, names, put


@pytest.mark.parametrize("split_bytes", [32 << 20, 2], ids=["whole", "in parts"])
def test_a_file_that_is_restored_with_another_time_is_the_recorded_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_bytes: int
) -> None:
    path = put(tmp_path, "a.txt", "1\n2\n3\n", mtime_s=1000)
    spout = FileSpout(str(tmp_path), split_bytes=split_bytes)
    metadata = begin(spout)
    path.unlink()
    put(tmp_path, "a.txt", "1\n2\n3\n", mtime_s=5000)
    hashed: list[str] = []

    def counted(path: str) -> str:
        hashed.append(path)
        return digest_of(path)

    monkeypatch.setattr("airflow_trident.spouts.files.contents.digest_of", counted)
    assert lines(spout, metadata) == ["1", "2", "3"]
    assert len(hashed) == 1, "not once for each part"
    assert begin(spout, metadata) is None, "nor is it a changed one for the next transaction"
    put(tmp_path, "a.txt", "1\n9\n3\n", mtime_s=5000)
    with pytest.raises(SourceChangedError, match=r"its content is another\. Put it back .*accept-source TOPOLOGY TXID"):
        lines(spout, metadata)
    with pytest.raises(SourceChangedError, match="was consumed by an earlier transaction and changed since"):
        begin(spout, metadata)


def test_files_above_digest_bytes_are_known_by_size_and_time(tmp_path: Path) -> None:
    put(tmp_path, "a.txt", "1\n2\n", mtime_s=1000)
    spout = FileSpout(str(tmp_path), digest_bytes=3)
    metadata = begin(spout)
    assert lines(spout, metadata) == ["1", "2"]
    os.utime(tmp_path / "a.txt", (1001, 1001))
    with pytest.raises(SourceChangedError, match="its time is another, and its content was not recorded"):
        lines(spout, metadata)


def test_a_file_that_is_being_written_while_it_is_claimed_is_left_for_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path, "a.txt", "1\n")

    def grows(path_: str) -> str:
        path.write_text("1\n2\n")
        return digest_of(path_)

    with monkeypatch.context() as patch:
        patch.setattr("airflow_trident.spouts.files.contents.digest_of", grows)
        with pytest.raises(SourceUnavailableError, match=r"a\.txt' changed while its transaction was claimed"):
            begin(FileSpout(str(tmp_path)))
    assert lines(FileSpout(str(tmp_path)), begin(FileSpout(str(tmp_path)))) == ["1", "2"]


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/hostname", "a/../../secret.txt", "", "a\0b"])
def test_metadata_that_leaves_the_folder_is_refused_before_anything_is_read(tmp_path: Path, path: str) -> None:
    put(tmp_path, "in/a.txt", "1\n")
    secret = put(tmp_path, "secret.txt", "secret\n")
    spout = FileSpout(str(tmp_path / "in"))
    status = secret.stat()
    metadata = {**begin(spout), "files": [[path, status.st_size, status.st_mtime_ns]]}
    for read in (spout.emitter().splits, spout.emitter().text_files):
        with pytest.raises(CorruptRecordError, match="is not below the spout's folder"):
            read(metadata)


def test_a_large_folder_is_listed_once_for_many_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "LISTING_AGE", 10**9)
    many = file_module.LARGE_FOLDER_FILES
    for number in range(many):
        put(tmp_path, f"{number:04}.txt", mtime_s=1000 + number)
    listed, list_files = [], FilePattern.list

    def counted(pattern: FilePattern) -> Listing:
        listed.append(pattern)
        return list_files(pattern)

    monkeypatch.setattr(FilePattern, "list", counted)
    spout = FileSpout(str(tmp_path), max_files=many // 10)
    read, previous = [], None
    for _ in range(8):
        previous = begin(spout, previous)
        read += names(previous)
    assert len(listed) == 1
    next_one = many * 8 // 10
    put(tmp_path, f"{next_one:04}.txt", "changed\n", mtime_s=5000)
    put(tmp_path, "new.txt", mtime_s=1000 + next_one - 1)
    while (previous := begin(spout, previous)) is not None:
        read += names(previous)
    assert sorted(read) == sorted(path.name for path in tmp_path.iterdir())
    assert 1 < len(listed) < 6


@pytest.mark.parametrize(
    ("took_ms", "kept_ms"), [(0, 0), (10, 1_000), (50, 5_000), (100, 5_000), (250, 5_000), (1_000, 20_000)]
)
def test_a_listing_is_kept_for_a_hundred_times_what_it_took_but_a_long_one_for_twenty(
    took_ms: int, kept_ms: int
) -> None:
    assert file_module.kept_ns(took_ms * 10**6) == kept_ms * 10**6
