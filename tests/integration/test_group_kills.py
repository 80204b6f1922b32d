"""P9 of groups: whatever a killed drain leaves of a group, whoever comes next, in whatever cut, ends the same."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.ledger.open import open_ledger
from airflow_trident.ledger.zookeeper.settings import ZooKeeperSettings
from airflow_trident.protocol.statuses import Status
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.program import run_program
from tests.programs.grouped_words import TRANSACTIONS, WORDS, contents, topology
from tools.kills import VARIABLE

pytestmark = pytest.mark.zookeeper

OF_GROUPS = [one for one in Milestone if one not in (Milestone.NEW_VALUES, Milestone.APPLIED_DOWNSTREAM)]
EXPECTED = {"one": dict(Counter(WORDS)), "two": dict(Counter(WORDS))}


def run(hosts: str, root: str, folder: Path, group: str, crash: str = "") -> int:
    return run_program("grouped_words", hosts, root, folder, group, **{VARIABLE: crash})


def all_committed(hosts: str, root: str, folder: Path) -> None:
    assert contents(folder) == EXPECTED
    with open_ledger(ZooKeeperSettings(hosts=hosts), topology(folder).name, root=root) as ledger:
        found = [(tx.txid, tx.status) for tx in ledger.transactions()]
    assert found == [(number, Status.COMMITTED) for number in range(1, TRANSACTIONS + 1)]


@pytest.mark.parametrize("txid", [4, 8])
def test_p9_a_drain_killed_at_every_point_of_a_group_ends_like_one_that_was_not_killed(
    txid: int, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    """4 ends the first group, 8 is in the middle of the second one."""
    points = ",".join(f"{point}@{txid}:{tmp_path}/{point}" for point in OF_GROUPS)
    kills = 0
    while run(zookeeper.hosts, ledger_root, tmp_path, "5" if txid == 8 else "4", points) != 0:
        kills += 1
        assert kills <= len(OF_GROUPS)
    assert kills == len(OF_GROUPS)
    all_committed(zookeeper.hosts, ledger_root, tmp_path)


@pytest.mark.parametrize("after", ["1", "3", "runner"])
@pytest.mark.parametrize("point", [Milestone.PUBLISHED, Milestone.GATE_OPENED, Milestone.APPLIED])
def test_p9_what_a_killed_group_left_is_taken_up_in_another_cut(
    point: Milestone, after: str, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    assert run(zookeeper.hosts, ledger_root, tmp_path, "5", f"{point}@3:{tmp_path}/died") == -signal.SIGKILL
    if after == "runner":  # it takes over what is committed by somebody else only when that one is known to be dead
        assert run(zookeeper.hosts, ledger_root, tmp_path, "1") == 0
    assert run(zookeeper.hosts, ledger_root, tmp_path, after) == 0
    all_committed(zookeeper.hosts, ledger_root, tmp_path)
