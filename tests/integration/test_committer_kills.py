"""P9 for committers with databases of their own: killed at any point of their commit and run again, their txid makes
them exactly once."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.program import run_program
from tests.programs.committers import databases
from tests.seeds.global_count import DATA
from tests.seeds.words import BUCKET_SIZE
from tools.kills import VARIABLE

pytestmark = pytest.mark.zookeeper

WORDS = Counter(word for rows in DATA.values() for (word,) in rows)
BUCKETS = Counter(str(count // BUCKET_SIZE) for count in WORDS.values())


def held(folder: Path) -> tuple[Counter[str], Counter[str]]:
    """Words and buckets, with their counts."""
    counts, buckets = (Counter({key: value["count"] for key, value in one.all().items()}) for one in databases(folder))
    return counts, +buckets


@pytest.mark.parametrize(
    "point", [Milestone.GATE_OPENED, Milestone.APPLIED, Milestone.NEW_VALUES, Milestone.APPLIED_DOWNSTREAM]
)
def test_a_committer_that_is_killed_and_run_again_counts_each_tuple_once(
    point: Milestone, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    arguments = (zookeeper.hosts, ledger_root, tmp_path)
    assert run_program("committers", *arguments, **{VARIABLE: f"{point}@2:{tmp_path}/died"}) == -signal.SIGKILL
    assert run_program("committers", *arguments) == 0
    assert held(tmp_path) == (WORDS, BUCKETS)
