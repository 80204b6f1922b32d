"""The parts of the demonstration: its input and damage, its processes, and what it decides to do next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from airflow_trident.errors import ConfigurationError
from airflow_trident.protocol.records import Claim, Status, TxRecord
from demo import text
from demo.changes import changes, short
from demo.folder import DemoFolder
from demo.steps import Backfill, Clear, Finish, Step, Trigger, Watch, next_step
from tools.local_airflow.processes import Processes, ServiceError
from tools.local_airflow.rest import wait_until
from tools.local_airflow.services import airflow_environment, processes_of

PARTS = text.PARTS


def record(txid: int, status: Status, *, attempt: int = 0, error: str = "") -> TxRecord:
    return TxRecord(
        txid=txid,
        status=status,
        attempt=attempt,
        metadata={"lines": {"files": [[f"part-{txid}.txt", 1, 1]]}},
        claim=Claim(key=str(txid), run_id=f"run-{txid}"),
        op="",
        error=error,
    )


# ---- what comes next -------------------------------------------------------------------------------------------

COMMITTED = [record(txid, Status.COMMITTED) for txid in range(1, PARTS + 1)]
ALL_RUNS = {f"run-{number}": "success" for number in range(1, PARTS + 1)}


@pytest.mark.parametrize(
    ("transactions", "runs", "step"),
    [
        ([], {}, Trigger(tuple(ALL_RUNS))),
        (
            COMMITTED[:2],
            {"run-1": "success", "run-2": "success"},
            Trigger(tuple(f"run-{n}" for n in range(3, PARTS + 1))),
        ),
        (COMMITTED[:-1], ALL_RUNS, Trigger((f"run-{PARTS + 1}",))),
        (COMMITTED, {**ALL_RUNS, "run-9": "running"}, Watch()),
        ([record(1, Status.FAILED)], {"run-1": "failed", "run-2": "queued"}, Watch()),
        ([record(1, Status.FAILED), record(2, Status.PROCESSED)], {"run-1": "failed"}, Backfill((1,))),
        ([record(1, Status.PROCESSED), record(2, Status.PROCESSING)], ALL_RUNS, Clear(("run-1", "run-2"))),
        (COMMITTED, {**ALL_RUNS, "run-5": "failed"}, Clear(("run-5",))),
        (COMMITTED, ALL_RUNS, Finish()),
    ],
)
def test_the_next_step_follows_from_the_ledger_and_the_runs(
    transactions: list[TxRecord], runs: dict[str, str], step: Step
) -> None:
    assert next_step(transactions, runs, PARTS) == step


def test_changes_of_the_ledger_are_told_once() -> None:
    before = {1: record(1, Status.PROCESSING)}
    after = {
        1: record(1, Status.FAILED, error="DamagedInputError: the file '/home/me/input/x.gz' is bad. Mend it"),
        2: COMMITTED[1],
    }
    told = [(line.txid, line.text) for line in changes(before, after)]
    assert told[0] == (1, "FAILED     DamagedInputError: the file 'input/x.gz' is bad")
    assert told[1:] == [(2, "begun      part-2.txt (run-2)"), (2, "PROCESSING attempt 0"), (2, "COMMITTED  fence 0")]
    assert changes(after, after) == []


def test_an_error_is_shortened_to_its_first_sentence_and_the_part_of_paths_that_tells_something() -> None:
    assert short("DamagedInputError: the file '/home/me/.trident-demo/input/x.gz' is bad. Mend\n it.") == (
        "DamagedInputError: the file 'input/x.gz' is bad"
    )


# ---- input -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> DemoFolder:
    folder = DemoFolder(tmp_path_factory.mktemp("demo"))
    text.make_text(folder.input, folder.damage, lines_of_a_part=500)
    return folder


def test_the_input_is_the_same_again_and_a_half_written_one_is_begun_anew(written: DemoFolder, tmp_path: Path) -> None:
    partial = tmp_path / "input.partial"
    partial.mkdir()
    (partial / "part-1.txt").write_text("half")
    found = text.make_text(tmp_path / "input", tmp_path / "damage.json", lines_of_a_part=500)
    assert found == text.make_text(written.input, written.damage)
    assert found.lines == PARTS * 500
    for one, other in zip(text.parts(tmp_path / "input"), text.parts(written.input), strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_the_damage_shows_in_neither_size_nor_time_and_is_repaired_once(written: DemoFolder) -> None:
    path = written.input / text.part_name(text.DAMAGED_PART)
    before = path.stat()
    with pytest.raises((OSError, zlib.error)):
        text.plain_count(written.input)
    damage = text.repair(written.input, written.damage)
    assert damage is not None
    assert damage.file == path.name
    assert text.repair(written.input, written.damage) is None
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert text.plain_count(written.input)["import"] > 0


def test_the_plain_count_counts_every_word_of_every_part(tmp_path: Path) -> None:
    for path in text.parts(tmp_path):
        content = b"To be, or NOT to be\n"
        path.write_bytes(text.gzip.compress(content) if path.suffix == ".gz" else content)
    assert text.plain_count(tmp_path) == Counter({"to": 2 * PARTS, "be": 2 * PARTS, "or": PARTS, "not": PARTS})


# ---- processes -------------------------------------------------------------------------------------------------

FAMILY = """
import os, subprocess, sys, time
program = "import time; print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", program], process_group=0)
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> DemoFolder:
    made = DemoFolder(tmp_path / "home")
    made.make()
    return made


@pytest.fixture
def processes(folder: DemoFolder) -> Iterator[Processes]:
    made = processes_of(folder)
    yield made
    made.stop(grace_s=0)


def started_family(processes: Processes) -> tuple[int, int]:
    """A child and its own child, which is in another process group; both run when this returns."""
    pid = processes.start("family", [sys.executable, "-c", FAMILY], dict(os.environ))
    assert wait_until(lambda: "up" in processes.log("family").read_text(), timeout_s=60)
    return pid, int(processes.log("family").read_text().split()[0])


def test_stopping_ends_the_children_and_their_children_and_nobody_else(
    processes: Processes, folder: DemoFolder
) -> None:
    pid, grandchild = started_family(processes)
    # in the same directory, as a user's shell may be, but not started here
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=folder.work, stdin=subprocess.PIPE) as stranger:
        processes.stop()
        assert not psutil.pid_exists(pid)
        assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_what_a_killed_child_left_running_is_found_by_the_next_life(processes: Processes, folder: DemoFolder) -> None:
    _, grandchild = started_family(processes)
    processes.kill("family")
    assert psutil.Process(grandchild).status() != psutil.STATUS_ZOMBIE
    assert processes_of(folder).kill_remains() == 1
    assert not psutil.pid_exists(grandchild) or psutil.Process(grandchild).status() == psutil.STATUS_ZOMBIE
    assert processes_of(folder).kill_remains() == 0


def test_a_child_that_ends_is_an_error_with_the_end_of_its_log(processes: Processes) -> None:
    processes.start("brief", [sys.executable, "-c", "print('what it said'); raise SystemExit(3)"], dict(os.environ))

    def ended() -> bool:
        try:
            processes.require_alive()
        except ServiceError as error:
            return "brief ended with exit status 3" in str(error) and "what it said" in str(error)
        return False

    assert wait_until(ended, timeout_s=60)


def test_the_lines_of_a_command_are_told_as_they_come(processes: Processes) -> None:
    lines: list[str] = []
    for word in ("one", "two"):
        processes.run("said", [sys.executable, "-c", f"print({word!r}); print('end')"], dict(os.environ), lines.append)
    assert lines == ["one", "end", "two", "end"]
    command = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"]
    with pytest.raises(ServiceError, match="signal SIGKILL"):
        processes.run("killed", command, dict(os.environ))


def test_a_second_demonstration_in_the_same_folder_is_refused(folder: DemoFolder) -> None:
    program = (
        "import sys; from pathlib import Path; from demo.folder import DemoFolder\n"
        "with DemoFolder(Path(sys.argv[1])).locked(): pass"
    )
    command = [sys.executable, "-c", program, str(folder.root)]
    with folder.locked():
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "another process is at work in" in done.stderr
    with folder.locked():
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="TRIDENT_DEMO_HOME"):
        DemoFolder(tmp_path / "file" / "home").make()


def test_nothing_of_the_callers_airflow_and_spark_reaches_the_demonstration(
    folder: DemoFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", "/elsewhere")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "other")
    monkeypatch.setenv("SPARK_HOME", "/elsewhere")
    environment = airflow_environment(folder, port=1, zookeeper="127.0.0.1:2")
    assert environment["AIRFLOW_HOME"] == str(folder.airflow)
    assert "AIRFLOW__CORE__FERNET_KEY" not in environment
    assert "SPARK_HOME" not in environment


def test_the_demonstration_ends_with_the_page_where_the_plugin_has_it() -> None:
    from airflow_trident.links import transaction_url
    from demo.run import page_of

    assert page_of("http://127.0.0.1:8080", "word_count") == f"http://127.0.0.1:8080{transaction_url('word_count')}"
