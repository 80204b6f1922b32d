"""Staging folders that cannot be used: what is said, and that nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident.errors import (
    ConfigurationError,
    Outcome,
    StoreUnavailableError,
    TridentError,
)
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.io.place import folder_error, put_if_absent, write_durably
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import parse_declared

SLOT = Slot(topology="words", incarnation="i1", txid=7, attempt=2)


def test_a_root_that_is_a_file_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "staging").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot write into the staging folder .*staging'"):
        StagingArea(str(tmp_path / "staging")).write(SLOT, "counts", rows_to_table(parse_declared("n long"), []))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def write_in_another_process(folder: Path, limit: str = "") -> str:
    """What a writer without root's rights prints; `limit` is run before it writes."""
    script = f"""
import os, resource, sys
import pyarrow.parquet
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.errors import TridentError
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import parse_declared
table = rows_to_table(parse_declared("n long"), [(i * i % 9973,) for i in range(100_000)])
if os.geteuid() == 0:
    os.setgroups([])
    os.setuid(65534)
{limit}
try:
    StagingArea(sys.argv[1]).write(Slot(topology="t", incarnation="i", txid=1, attempt=0), "s", table)
except TridentError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(folder)], check=True, capture_output=True, text=True)
    return done.stdout


def test_a_read_only_root_is_a_configuration_error_with_its_cure(open_folder: Path) -> None:
    folder = open_folder / "closed"
    folder.mkdir(mode=0o555)
    said = write_in_another_process(folder)
    assert said.startswith(f"ConfigurationError cannot write into the staging folder '{folder}'")
    assert "may write to" in said


def test_a_full_root_is_retryable_and_leaves_nothing(open_folder: Path) -> None:
    """A limit of the file size stands for the full disk: the write fails half-way in the same place."""
    folder = open_folder / "small"
    folder.mkdir()
    folder.chmod(0o777)
    said = write_in_another_process(folder, "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))")
    assert said.startswith(f"StoreUnavailableError the staging folder '{folder}' is full")
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("code", "kind", "outcome"),
    [
        ("ENOSPC", StoreUnavailableError, Outcome.RETRY),
        ("EDQUOT", StoreUnavailableError, Outcome.RETRY),
        ("EROFS", ConfigurationError, Outcome.FAIL),
        ("EIO", StoreUnavailableError, Outcome.RETRY),
    ],
)
def test_each_error_of_the_system_is_sorted_by_what_to_do(
    code: str, kind: type[TridentError], outcome: Outcome
) -> None:
    import errno

    error = folder_error(OSError(getattr(errno, code), "why"), "/f", "the staging folder")
    assert type(error) is kind
    assert error.outcome is outcome
    assert "'/f'" in str(error)
    assert "why" in str(error)


def test_a_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def write(file: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_durably(str(tmp_path / "x"), write)
    assert not os.listdir(tmp_path)


def test_without_hard_links_the_name_is_still_taken_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "m"
    assert put_if_absent(str(path), b"one")
    assert not put_if_absent(str(path), b"two")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["m"]
