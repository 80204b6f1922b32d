"""What holds rows or logins is for its user's eyes only, unless the folder it lies in is shared."""

from __future__ import annotations

import os
import pickle
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_trident import SpooledSpout, SqliteState
from airflow_trident.contracts.state import StateSpec
from airflow_trident.engine.spark import driver_orders
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.private_files import read_own
from airflow_trident.runtime.drains import app as drain_app
from airflow_trident.spouts import CallableSource
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Manifest, Slot
from airflow_trident.types import ddl, parse_declared

SCHEMA = parse_declared("word string, n long")
SLOT = Slot(topology="words", incarnation="i1", txid=1, attempt=0)


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def stage(folder: Path) -> None:
    area = StagingArea(str(folder))
    file = area.write(SLOT, "counts", pa.table({"word": ["a"], "n": [1]}, schema=arrow_schema(SCHEMA)))
    area.publish(Manifest(slot=SLOT, files=(file,), rows_read=1, sinks={"counts": ddl(SCHEMA)}))


def spool(folder: Path) -> None:
    spout = SpooledSpout(CallableSource(lambda _: [("a", 1)], "word string, n long"), str(folder))
    assert spout.coordinator().initialize_transaction(1, None)


def keep(folder: Path) -> None:
    factory = SqliteState(str(folder / "a.db"))
    spec = StateSpec(topology="t", name="s", keys=SCHEMA[:1], values=SCHEMA[1:], staged=SCHEMA, factory=factory)
    with factory.make_state(spec) as state:
        assert state.marker() is None
        assert len(list(folder.iterdir())) == 3, "with its log and shared memory"
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((folder / "a.db").stat().st_mode)


WRITERS: dict[str, Callable[[Path], None]] = {"staging": stage, "spool": spool, "SqliteState": keep}


def modes(folder: Path) -> set[tuple[str, int]]:
    """Kinds and modes of all that was made; the bits that a folder inherits left out."""
    found = [folder, *folder.rglob("*")]
    return {("folder" if path.is_dir() else "file", path.stat().st_mode & 0o777) for path in found}


@pytest.mark.parametrize("writer", WRITERS)
def test_files_are_for_their_user_only(tmp_path: Path, writer: str) -> None:
    tmp_path.chmod(0o755)
    WRITERS[writer](tmp_path / "made")
    assert modes(tmp_path / "made") == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("shared", "folders", "files"), [(0o2770, 0o770, 0o660), (0o777, 0o777, 0o666)])
def test_in_a_shared_folder_they_are_for_those_whom_it_is_shared_with(
    tmp_path: Path, writer: str, shared: int, folders: int, files: int
) -> None:
    place = tmp_path / "made"
    place.mkdir()
    place.chmod(shared)
    WRITERS[writer](place)
    assert modes(place) == {("folder", folders), ("file", files)}
    for folder in filter(Path.is_dir, place.rglob("*")):
        assert folder.stat().st_mode & stat.S_ISGID == shared & stat.S_ISGID


def test_everybodys_temporary_folder_is_not_taken_for_a_shared_one(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    stage(tmp_path / "made")
    assert modes(tmp_path / "made") == {("folder", 0o700), ("file", 0o600)}


# ---- what is unpickled -----------------------------------------------------------------------------------------


class Harm:
    """Whoever unpickles it runs what others wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.path),)


def test_an_order_that_others_may_write_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    order, result, harm = tmp_path / "x.order", tmp_path / "x.result", tmp_path / "harm"
    order.write_bytes(pickle.dumps(Harm(harm)))
    order.chmod(0o620)
    # as spark-submit starts it: a file, whose folder is first on the path
    command = [sys.executable, drain_app.__file__, str(order), str(result)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert result.exists(), done.stderr
    assert "may be written by others (mode 620)" in result.read_text()
    assert not harm.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_an_order_of_another_user_is_refused_before_it_is_unpickled(tmp_path: Path) -> None:
    order, result, harm = tmp_path / "x.order", tmp_path / "x.result", tmp_path / "harm"
    order.write_bytes(pickle.dumps(Harm(harm)))
    order.chmod(0o600)
    os.chown(order, 65534, -1)
    assert drain_app.main(str(order), str(result)) == 1
    assert "belongs to user 65534 and this process to user 0" in result.read_text()
    assert not harm.exists()
    with pytest.raises(ConfigurationError, match="Let the driver run as the user of the task"):
        read_own(str(order), "the order of a job")


def test_an_order_of_this_user_is_read(tmp_path: Path) -> None:
    path = driver_orders.place(str(tmp_path), "x", ".job", b"order")
    assert driver_orders.read_order(path, "the order of a job") == b"order"


def test_of_an_order_that_cannot_be_written_whole_nothing_stays(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))  # as a full disk
    try:
        with pytest.raises(OSError, match="too large"):
            driver_orders.place(str(tmp_path), "x", ".order", b"a password and more")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []
