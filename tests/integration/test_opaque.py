"""Opaque spouts with a real ZooKeeper and SQLite: each record once, whatever batches the attempts choose and whatever
is killed. The kills are SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.program import run_program
from tests.programs.opaque_records import contents, expected, topology
from tools.kills import VARIABLE

REPOSITORY = Path(__file__).parent.parent.parent


def run(hosts: str, root: str, folder: Path, max_pending: int, crash: str = "") -> int:
    return run_program("opaque_records", hosts, root, folder, max_pending, **{VARIABLE: crash})


@pytest.mark.zookeeper
@pytest.mark.parametrize("max_pending", [1, 2, 10])
def test_p2_p9_killed_at_every_point_no_record_is_skipped_or_doubled(
    max_pending: int, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    points = ",".join(f"{point}@3:{tmp_path}/{point}" for point in Milestone)
    kills = 0
    while run(zookeeper.hosts, ledger_root, tmp_path, max_pending, points) != 0:
        kills += 1
        assert kills <= len(Milestone)
    assert kills == len(Milestone)
    assert contents(tmp_path) == expected()
    with open_ledger(ZooKeeperSettings(hosts=zookeeper.hosts), topology(tmp_path).name, root=ledger_root) as ledger:
        records = ledger.transactions()
        assert {tx.status for tx in records} == {Status.COMMITTED}
        assert max(tx.attempt for tx in records) >= 1
