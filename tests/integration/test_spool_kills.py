"""A queue behind a spool, killed at every step: no line is lost, none is counted twice, and all are acknowledged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.spouts.spool.sources import CallableSource
from airflow_trident.spouts.spool.spout import SpooledSpout
from tests.fixtures.program import run_program
from tests.programs.spooled_words import contents, put
from tools.kills import VARIABLE

REPOSITORY = Path(__file__).parent.parent.parent
LINES = [f"line-{number:02d}" for number in range(10)]
STEPS = [
    f"{step}:{number}:{when}" for step in ("poll", "ack", "link") for number in (1, 2) for when in ("before", "after")
]


def run(hosts: str, root: str, folder: Path, kills: list[str], crash: str = "") -> int:
    return run_program("spooled_words", hosts, root, folder, *kills, **{VARIABLE: crash})


@pytest.mark.zookeeper
def test_a_queue_whose_coordinator_is_killed_at_every_step_is_counted_once_and_acknowledged_whole(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    put(tmp_path, LINES)
    kills = [f"{step}={tmp_path}/{step}" for step in STEPS]
    points = (Milestone.BEGUN, Milestone.PROCESSED, Milestone.COMMITTED)
    crash = ",".join(f"{point}@2:{tmp_path}/{point}" for point in points)
    deaths = 0
    while run(zookeeper.hosts, ledger_root, tmp_path, kills, crash) != 0:
        deaths += 1
        assert deaths <= len(STEPS) + len(points)
    died_at = {path.name for path in tmp_path.glob("*:*")}
    assert died_at >= {step for step in STEPS if ":1:" in step}
    assert deaths >= len(points) + 6
    assert contents(tmp_path) == dict.fromkeys(LINES, 1)
    assert list((tmp_path / "queue" / "items").iterdir()) == [], "all are acknowledged"


def test_what_a_source_without_acknowledgement_gave_and_was_not_spooled_is_lost_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(LINES)

    def take(max_rows: int) -> list[Any]:
        return [left.pop(0) for _ in range(min(max_rows, len(left)))]

    spout = SpooledSpout(CallableSource(take, "line string"), str(tmp_path / "spool"), max_rows=3)
    topology = Topology("forgetful")
    state = SqliteState(str(tmp_path / "lines.db"))
    topology.new_stream("lines", spout).group_by("line").persistent_aggregate(state, Count(), "count")
    with MemoryLedger("forgetful") as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "staging")
        )
        runner.run(max_transactions=1)
        link = os.link

        def interrupted(source: str, target: str) -> None:
            if target.endswith(".arrow"):
                raise KeyboardInterrupt
            link(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "link", interrupted)
            with pytest.raises(KeyboardInterrupt):
                runner.run()
        runner.run()
    spec = topology.states["count"]
    with spec.factory.make_state(spec) as opened:
        counts = {str(key[0]): value[0] for key, value in opened.items()}
    assert counts == dict.fromkeys([*LINES[:3], *LINES[6:]], 1)
