"""Processes that are stopped at each milestone of a transaction, while others do the work. All of them are there at the
same time, each of an older attempt than the next one; then they go on. The stops are SIGSTOP."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.grouped_words import OF_GROUPS
from tests.fixtures.program import REPOSITORY
from tests.fixtures.spark import wait_for
from tests.programs import grouped_words, word_count
from tools.kills import STOPS

pytestmark = pytest.mark.zookeeper


def started(program: str, arguments: Sequence[str], log: Path, point: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", f"tests.programs.{program}", *arguments]
    with log.open("wb") as said:
        return subprocess.Popen(command, env=os.environ | {STOPS: point}, cwd=REPOSITORY, stdout=said, stderr=said)


def has_stopped(process: subprocess.Popen[bytes], marker: Path, log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    if not marker.exists():
        return False
    ps = subprocess.run(["ps", "-o", "state=", "-p", f"{process.pid}"], capture_output=True, text=True, check=True)
    return ps.stdout.startswith("T")


@pytest.mark.parametrize(
    ("program", "topology", "contents", "how", "txid", "points"),
    [
        pytest.param(
            *("grouped_words", grouped_words.topology, grouped_words.contents, "5", 8, OF_GROUPS),
            id="groups",
            marks=pytest.mark.rare,
        ),
        pytest.param(
            *("word_count", word_count.topology, word_count.contents, "3", 3, tuple(Milestone)), id="a commit phase"
        ),
    ],
)
def test_drains_stopped_at_every_milestone_change_nothing_when_they_go_on_after_another_one_has_done_the_work(
    program: str,
    topology: Callable[[Path], object],
    contents: Callable[[Path], dict[str, object]],
    how: str,
    txid: int,
    points: Sequence[Milestone],
    zookeeper: EmbeddedZooKeeper,
    ledger_root: str,
    tmp_path: Path,
) -> None:
    arguments = [zookeeper.hosts, ledger_root, str(tmp_path), how]
    name: str = topology(tmp_path).name  # type: ignore[attr-defined]
    zombies: list[subprocess.Popen[bytes]] = []

    def seen() -> list[object]:
        with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), name, root=ledger_root) as ledger:
            return [list(ledger.transactions()), contents(tmp_path)]

    try:
        for point in points:
            marker = tmp_path / f"at-{point}"
            log = tmp_path / f"{point}.log"
            zombies.append(started(program, arguments, log, f"{point}@{txid}:{marker}"))
            wait_for(lambda: has_stopped(zombies[-1], marker, log), 900)  # noqa: B023
        log = tmp_path / "last.log"
        assert started(program, arguments, log).wait() == 0, log.read_text()
        before = seen()
        for zombie in zombies:
            zombie.send_signal(signal.SIGCONT)
            zombie.wait()
            assert seen() == before
    finally:
        for zombie in zombies:
            zombie.kill()
    transactions, found = before
    assert {tx.status for tx in transactions} == {Status.COMMITTED}  # type: ignore[attr-defined]
    if program == "grouped_words":
        assert found == {state: dict(Counter(grouped_words.WORDS)) for state in ("one", "two")}
    else:
        words = sum(len(line.split()) for (line,) in word_count.LINES)
        assert sum(value for _, (value,) in found["count"]) == words  # type: ignore[index]
