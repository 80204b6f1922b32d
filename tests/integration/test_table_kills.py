"""P9 for tables: killed at every point, while somebody else writes to the table after each kill."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.ledger.embedded.server import EmbeddedZooKeeper
from airflow_trident.runtime.milestones import Milestone
from tests.fixtures.program import run_program
from tests.fixtures.rewrites import FIELDS, appended, rows_of
from tests.fixtures.table import TABLES
from tests.programs.table_rows import MODES, ROWS, TRANSACTIONS
from tools.kills import VARIABLE

pytestmark = pytest.mark.zookeeper

CHEAP = {
    ("delta", "rewrite", "drain"),
    ("delta", "overwrite", ""),
    ("iceberg", "append", "drain"),
}
"""Each kind and each mode once; the others are for `make rare`."""


def ways() -> list[Any]:
    found = [(kind, mode, how) for kind in TABLES for mode in MODES for how in ("", "drain")]
    return [pytest.param(*way, marks=() if way in CHEAP else pytest.mark.rare, id=" ".join(way)) for way in found]


def expected(mode: str) -> Counter[tuple[int, str]]:
    if mode == "append":
        return Counter((key, word) for key, word, _ in ROWS)
    last = {key: (word, gone) for key, word, gone in ROWS}
    return Counter((key, word) for key, (word, gone) in last.items() if mode == "overwrite" or not gone)


@pytest.mark.parametrize(("kind", "mode", "how"), ways())
def test_p9_killed_at_every_point_with_others_writing_in_between_each_row_is_there_once(
    kind: str, mode: str, how: str, zookeeper: EmbeddedZooKeeper, ledger_root: str, tmp_path: Path
) -> None:
    table = TABLES[kind](tmp_path, FIELDS, partition_by=("id",) if mode == "overwrite" else ())
    points = ",".join(f"{point}@{TRANSACTIONS - 1}:{tmp_path}/{point}" for point in Milestone)
    never = {Milestone.NEW_VALUES, Milestone.APPLIED_DOWNSTREAM}  # there is no commit phase behind a state
    meant, kills = expected(mode), 0
    where = (zookeeper.hosts, ledger_root, tmp_path, kind, mode, how)
    while run_program("table_rows", *where, **{VARIABLE: points}) != 0:
        kills += 1
        assert kills <= len(Milestone)
        appended(table, rows_of((0, "theirs"), (1000 + kills, "theirs")))
        meant[1000 + kills, "theirs"] += 1
        meant[0, "theirs"] += mode == "append"  # else the last transaction replaces it
    assert {point for point in Milestone if not (tmp_path / point).exists()} <= never
    assert Counter((row["id"], row["word"]) for row in table.read().to_pylist()) == +meant
