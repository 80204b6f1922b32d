"""P9 for copy-on-write: killed at every point, while somebody else writes to the table after each kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.program import run_program
from tests.fixtures.rewrites import appended, found, keyed, rows_of
from tests.programs.rewritten_table import ROWS
from tools.kills import VARIABLE

pytestmark = pytest.mark.zookeeper


@pytest.mark.parametrize("how", ["", "drain"])
def test_p9_killed_at_every_point_with_others_writing_in_between_each_key_has_its_last_row(
    how: str, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    table = keyed(tmp_path)
    points = ",".join(f"{point}@4:{tmp_path}/{point}" for point in Milestone)
    expected = {key: word for key, word, gone in ROWS if not gone}
    expected.pop(2)
    kills = 0
    while run_program("rewritten_table", zookeeper.hosts, ledger_root, tmp_path, how, **{VARIABLE: points}) != 0:
        kills += 1
        assert kills <= len(Milestone)
        appended(table, rows_of((0, "theirs"), (1000 + kills, "theirs")))
        expected[1000 + kills] = "theirs"
    assert kills == len(Milestone) - 2, "there is no commit phase behind a state"
    assert found(table) == sorted(expected.items())
