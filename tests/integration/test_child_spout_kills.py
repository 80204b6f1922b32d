"""A spout in another program, with its coordinator killed at every step of the spool: no item is lost, none is counted
twice, all are acknowledged, and no child outlives who started it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_trident import Count, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.milestones import Milestone
from airflow_trident.spouts.spool import spout as spout_module
from airflow_trident.storm import NodeSpout
from tests.fixtures.program import run_program
from tests.programs.child_lines import COMPONENT, contents
from tools.kills import VARIABLE

LINES = [f"line-{number:02d}" for number in range(10)]
STEPS = [
    f"{step}:{number}:{when}" for step in ("poll", "ack", "link") for number in (1, 2) for when in ("before", "after")
]


def of(folder: Path) -> list[psutil.Process]:
    """Children that read this folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if str(folder) in line and str(COMPONENT) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@pytest.mark.zookeeper
def test_a_child_whose_coordinator_is_killed_at_every_step_is_counted_once_and_acknowledged_whole(
    zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    (tmp_path / "items").mkdir()
    for line in LINES:
        (tmp_path / "items" / line).touch()
    kills = [f"{step}={tmp_path}/{step}" for step in STEPS]
    points = (Milestone.BEGUN, Milestone.PROCESSED, Milestone.COMMITTED)
    crash = ",".join(f"{point}@2:{tmp_path}/{point}" for point in points)
    deaths = 0
    while run_program("child_lines", zookeeper.hosts, ledger_root, tmp_path, *kills, **{VARIABLE: crash}) != 0:
        deaths += 1
        assert deaths <= len(STEPS) + len(points)
        psutil.wait_procs(of(tmp_path), timeout=60)
        assert of(tmp_path) == [], "it dies with who started it"
    died_at = {path.name for path in tmp_path.glob("*:*")}
    assert died_at >= {step for step in STEPS if ":1:" in step}
    assert deaths >= len(points) + 6
    assert contents(tmp_path) == dict.fromkeys(LINES, 1)
    assert list((tmp_path / "items").iterdir()) == [], "all are acknowledged"


@pytest.mark.skipif(shutil.which("node") is None, reason="components of qtopology run in Node, which is not here")
def test_what_a_spout_without_acknowledgement_gave_and_was_not_spooled_is_lost_and_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One child, which has its place in its memory alone, goes on where it was."""
    spout = NodeSpout(
        "numbers.js",
        "n long",
        str(tmp_path / "spool"),
        type="subproc",
        working_dir=str(COMPONENT.parent),
        args=["10", "seed"],
        protocol="seed",
        max_rows=3,
        idle_s=0,
    )
    topology = Topology("forgetful")
    state = SqliteState(str(tmp_path / "numbers.db"))
    topology.new_stream("numbers", spout).group_by("n").persistent_aggregate(state, Count(), "count")
    coordinator = spout.coordinator()
    monkeypatch.setattr(type(spout), "coordinator", lambda self: coordinator)
    append, calls = spout_module.Spool.append, list[Any]()

    def interrupted(self: spout_module.Spool, polled: Any) -> bool:
        calls.append(polled)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return append(self, polled)

    monkeypatch.setattr(spout_module.Spool, "append", interrupted)
    monkeypatch.setattr(type(coordinator), "close", lambda self: None)
    with MemoryLedger("forgetful") as ledger:
        runner = LocalRunner(
            ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "staging")
        )
        with pytest.raises(KeyboardInterrupt):
            runner.run()
        runner.run()
    coordinator.source.close()
    spec = topology.states["count"]
    with spec.factory.make_state(spec) as opened:
        counts = {int(key[0]): value[0] for key, value in opened.items()}
    assert counts == dict.fromkeys([10, 9, 8, 4, 3, 2, 1], 1)
