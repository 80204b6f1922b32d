"""The whole demonstration, killed on the way: it goes on from there, and its counts are never wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from demo.folder import DEFAULT_NAME, VARIABLE, DemoFolder

pytestmark = [pytest.mark.airflow, pytest.mark.zookeeper, pytest.mark.spark, pytest.mark.rare]

EQUAL = "EQUAL, to the last unit"


def demo(folder: Path) -> subprocess.Popen[str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in (VARIABLE, "PYTHONDONTWRITEBYTECODE")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "demo", "--lines", "300"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background may have let them ignore it, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - no threads here
    )


def signalled_at(folder: Path, text: str, number: signal.Signals) -> tuple[int, str]:
    """Run it until it prints `text`, send it the signal; its exit status and all that it printed."""
    with demo(folder) as running:
        assert running.stdout is not None
        said = []
        for line in running.stdout:
            said.append(line)
            if text in line:
                running.send_signal(number)
                break
        rest, _ = running.communicate()
    return running.returncode, "".join(said) + rest


def to_the_end(folder: Path) -> str:
    with demo(folder) as running:
        said, _ = running.communicate()
    assert running.returncode == 0, said
    return said


def at_work_in(folder: Path) -> list[str]:
    """The processes that have their working directory there."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder):
                found.append(" ".join(process.cmdline()))
    return found


def test_killed_and_interrupted_it_goes_on_and_ends_with_equal_counts(tmp_path: Path) -> None:
    home = DemoFolder(tmp_path / DEFAULT_NAME)
    try:
        status, said = signalled_at(tmp_path, "PROCESSING attempt 0", signal.SIGKILL)
        assert status == -signal.SIGKILL, said
        assert at_work_in(home.root), "Airflow and ZooKeeper outlive a kill of the demonstration"

        status, said = signalled_at(tmp_path, "COMMITTED", signal.SIGINT)
        assert status == 130, said
        assert "of a demo that was killed" in said
        assert at_work_in(home.root) == []

        said = to_the_end(tmp_path)
        assert EQUAL in said
        # the committer that is to be killed may have been spared: the backfill commits, too
        assert {one.name for one in home.kills.iterdir()} >= {"emitter", "failed-5"}
        assert at_work_in(home.root) == []
        assert [path.name for path in tmp_path.iterdir()] == [DEFAULT_NAME]
    finally:
        end(home)


def end(home: DemoFolder) -> None:
    """Stop what a failed test would leave running."""
    from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
    from tools.local_airflow.services import processes_of

    processes_of(home).kill_remains()
    EmbeddedZooKeeper(home.zookeeper).stop()
