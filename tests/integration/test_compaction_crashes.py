"""A compaction by Spark that is killed at each of its writes changes nothing that counts, and its retry ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_trident.contracts.state import Applied
from tests.contracts.test_table_upserts import changes, changes_table, latest, three
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES

WORKER = """
import sys
from pathlib import Path

from pyiceberg.table.update.snapshot import _OverwriteFiles

from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.connect import ConnectSessions
from airflow_trident.runtime.upkeep import keep_up
from tests.contracts.test_table_upserts import changes_table
from tests.fixtures.table import TABLES, die_at

folder, kind, url, when, name = Path(sys.argv[1]), *sys.argv[2:]
table = changes_table(TABLES[kind], folder)
with table.opened() as state:
    owners = {"compact_table": SparkEngine, "_bring": type(state), "commit": _OverwriteFiles}
    owner = owners.get(name) or (table.steps[name](state) if name else None)
if name:
    die_at(owner, name, when)
with SparkEngine(ConnectSessions(url)) as engine:
    done = keep_up(table.spec, Upkeep.COMPACT, lambda line: None, engine=engine, staging_root=str(folder / "staging"))
print(done)
"""


@pytest.mark.rare
@pytest.mark.parametrize("kind", TABLES)
def test_a_compaction_by_spark_killed_at_one_write_after_the_other_reads_right_and_ends(
    kind: str, connect_server: str, tmp_path: Path
) -> None:
    table = changes_table(TABLES[kind], tmp_path)
    with table.opened() as state:
        three(state, tmp_path)
    steps = list(table.steps)
    early = ["compact_table", "_bring", *steps[: steps.index(table.decisive) + 1]]
    cuts = [*(("before", step) for step in early), ("after", "compact_table"), ("after", table.decisive)]

    def run(when: str, step: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", WORKER, str(tmp_path), kind, connect_server, when, step]
        return subprocess.run(program, check=False, capture_output=True, text=True)

    for when, step in cuts:
        dead = run(when, step)
        assert dead.returncode == -signal.SIGKILL, dead.stderr[-3000:]
        is_there = (when, step) == ("after", table.decisive)
        assert latest(table) == {1: "c", 3: "d"}
        assert table.read().num_rows == (2 if is_there else 5), (when, step)
    with table.opened() as state:
        newer = changes(tmp_path, 4, (1, "e", None))
        assert state.apply_files(ticket(4), newer) is Applied.APPLIED
    for expected in ("True", "False"):
        done = run("", "")
        assert (done.returncode, done.stdout.split()[-1:]) == (0, [expected]), done.stderr[-3000:]
    assert latest(table) == {1: "e", 3: "d"}
    assert table.read().num_rows == 2
