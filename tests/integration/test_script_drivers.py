"""The drivers of a script's older attempts: looked for, ended, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_trident.engine.engine import Job
from airflow_trident.engine.spark import airflow_trident_script, driver_orders
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.older_orders import OlderOrder
from airflow_trident.engine.spark.order_takers import NOBODY_KNOWN, Taker, take, take_back
from airflow_trident.errors import SparkJobError, StoreUnavailableError
from airflow_trident.staging.manifest import Slot
from tests.fixtures.script import Run, daily, engine, job_of, written

GOOD = {"customer": ("string", ["ann"]), "cents": ("long", [12])}
LEAVE = "airflow_trident.engine.spark.script.leave"


def well(run: Run) -> None:
    written(run.folder("daily"), GOOD)


class Ended:
    """Which drivers were ended, by whose word."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str | None]] = []

    def __call__(self, order: OlderOrder, holder: Taker | None) -> str:
        self.found.append((order.name, holder and holder.driver_id))
        return holder.driver_id if holder else ""


def killed(job: Job, before: Callable[[Run], None] = lambda _: None) -> Run:
    """A run whose task is killed, so that it removes nothing."""
    runs: list[Run] = []

    def dies(run: Run) -> None:
        before(run)
        raise KeyboardInterrupt

    with patch(LEAVE), pytest.raises(KeyboardInterrupt):
        engine(dies, runs).run(job)
    return runs[0]


def in_driver(path: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What the script's module does in a driver of a standalone cluster, which a worker runs in this folder."""
    program = """
import airflow_trident_script as trident, sys
class Spark:
    class conf:
        get = staticmethod(lambda name, default: sys.argv[1])
print(trident.transaction(Spark)["attempt"])
"""
    folder.mkdir(exist_ok=True)
    environment = {"PYTHONPATH": str(Path(airflow_trident_script.__file__).parent)}
    command = [sys.executable, "-c", program, path]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_drivers_of_older_attempts_are_ended_before_the_script_is_submitted_again_and_no_others(
    tmp_path: Path,
) -> None:
    job, told, ended = job_of(daily(tmp_path), tmp_path), list[str](), Ended()
    for other in (  # whoever begins ends what is older: the newest one first
        replace(job.slot, attempt=3),
        replace(job.slot, attempt=1, txid=2),
        replace(job.slot, attempt=1, topology="dailies"),
        replace(job.slot, attempt=1, incarnation="j"),
    ):
        killed(replace(job, slot=other), lambda run: run.known("driver-9"))
    wrote = killed(replace(job, slot=replace(job.slot, attempt=1)))
    assert in_driver(wrote.job_path, tmp_path / "driver-8").stdout == "1\n"
    unknown = killed(job)
    known = killed(job, lambda run: run.known("driver-7"))
    newer = replace(job, slot=replace(job.slot, attempt=2), progress=told.append)
    engine(well, end=ended).run(replace(newer, trial=True))
    assert ended.found == []  # it is beside the attempts

    def looks(run: Run) -> None:
        assert len(ended.found) == 3
        well(run)

    engine(looks, end=ended).run(newer)
    names = [one.tags.order for one in (unknown, known, wrote)]
    assert sorted(ended.found, key=str) == sorted(zip(names, [None, "driver-7", "driver-8"], strict=True), key=str)
    ends = [line for line in told if "older attempt" in line]
    assert sorted(ends) == [
        f"ended driver-{n}, the driver of an older attempt: what it does counts no more" for n in (7, 8)
    ]
    left = {str(path.parent.relative_to(tmp_path / "staging")) for path in tmp_path.rglob("*.script.json*")}
    assert left == {f"daily/i/{1:019d}/3", f"daily/i/{2:019d}/1", f"dailies/i/{1:019d}/1", f"daily/j/{1:019d}/1"}
    engine(well, end=ended).run(newer)
    assert len(ended.found) == 3


def test_a_driver_that_begins_when_a_newer_attempt_has_looked_for_it_reads_nothing(tmp_path: Path) -> None:
    job = job_of(daily(tmp_path), tmp_path)
    late = killed(job)
    engine(well).run(replace(job, slot=replace(job.slot, attempt=1)))
    said = in_driver(late.job_path, tmp_path / "driver-1")
    assert said.returncode == 1
    assert "is gone: its task has ended, or a newer attempt of the transaction has begun" in said.stderr
    said = in_driver(str(tmp_path / "elsewhere" / "job"), tmp_path / "driver-1")
    assert "FileNotFoundError" in said.stderr.splitlines()[-1]  # it does not see the staging folder


def test_a_driver_that_takes_the_job_while_a_newer_attempt_takes_it_back_is_known(tmp_path: Path) -> None:
    """It replaces the note, and only then reads the job: between the two the newer attempt may have removed that."""
    run = killed(job_of(daily(tmp_path), tmp_path))
    remove = driver_orders.remove

    def begins_just_before(address: str) -> None:
        assert in_driver(address, tmp_path / "driver-1").returncode == 0
        remove(address)

    with patch.object(driver_orders, "remove", begins_just_before):
        holder = take_back(run.job_path)
    assert holder is not None
    assert holder.driver_id == "driver-1"
    # and one that began before is in the note
    assert take(run.job_path, Taker.this_process()) == holder


def test_a_note_is_left_where_a_driver_may_go_on_and_none_where_it_cannot(tmp_path: Path) -> None:
    job, ended = job_of(daily(tmp_path), tmp_path), Ended()

    def away(run: Run) -> None:
        run.known("driver-3")
        raise SparkJobError("no Spark master answers", "Wait.")

    def fails(run: Run) -> None:
        raise RuntimeError("Error code is: 1")

    for play in (away, fails):
        with pytest.raises(SparkJobError):
            engine(play).run(job)
    assert len(list(tmp_path.rglob("*.taken"))) == 2
    assert not list(tmp_path.rglob("*.script.json"))
    engine(well, end=ended).run(replace(job, slot=replace(job.slot, attempt=1)))
    assert {driver for _, driver in ended.found} == {"driver-3", ""}
    assert not list(tmp_path.rglob("*.taken"))


def test_a_staging_folder_that_takes_no_note_does_not_end_the_run(tmp_path: Path) -> None:
    def full(*_: object) -> None:
        raise StoreUnavailableError("the staging folder is full", "Free some space.")

    def plays(run: Run) -> None:
        with patch.object(driver_orders, "take", full):
            run.known("driver-3")
        well(run)

    assert engine(plays).run(job_of(daily(tmp_path), tmp_path)).rows == {"daily": 1}


def test_what_the_module_notes_is_read_as_what_a_driver_of_ours_notes(tmp_path: Path) -> None:
    run = killed(job_of(daily(tmp_path), tmp_path))
    assert in_driver(run.job_path, tmp_path / "elsewhere").returncode == 0
    assert not list(tmp_path.rglob("*.taken"))  # other clusters know the driver by its tag
    assert in_driver(run.job_path, tmp_path / "driver-20261124-0001").returncode == 0
    holder = take(run.job_path, Taker.this_process())
    assert holder != NOBODY_KNOWN
    assert (holder.driver_id, holder.pid > 0) == ("driver-20261124-0001", True)
    assert json.loads(Path(run.job_path).read_text())["transaction"]["attempt"] == 0


@pytest.mark.spark
def test_where_python_has_no_library_for_the_staging_folder_hadoop_writes_the_note(
    spark_engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one that is there, as S3A, which takes no name just once; then the job is read."""
    run = killed(job_of(daily(tmp_path), tmp_path))
    own = Taker.this_process()
    assert take(run.job_path, own) == own
    (tmp_path / "driver-5").mkdir()
    monkeypatch.chdir(tmp_path / "driver-5")
    url = Path(run.job_path).as_uri()
    attached = spark_engine.sessions.open(Slot(topology="t", incarnation="i", txid=1, attempt=0))
    try:
        airflow_trident_script._note(attached.session, url)
        assert json.loads(airflow_trident_script._text_at(attached.session, url)) == run.job
        assert take(run.job_path, own).driver_id == "driver-5"
        Path(run.job_path).unlink()
        with pytest.raises(RuntimeError, match="is gone: its task has ended, or a newer attempt"):
            airflow_trident_script._text_at(attached.session, url)
    finally:
        attached.release()
