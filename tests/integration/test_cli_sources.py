"""Lists of read files in processes of their own: drains, backups and `source mark-read`, as a person types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.fixtures.airflow import airflow_home
from tests.fixtures.cli import Site, site
from tests.fixtures.file import put

__all__ = ["airflow_home", "site"]

pytestmark = [pytest.mark.zookeeper, pytest.mark.airflow]

DAG_FILE = """
from pathlib import Path

from airflow.sdk import DAG

from airflow_trident import Count, FileSpout, SqliteState, Topology, trident_transaction

FOLDER = Path(__file__).parent.parent
topology = Topology("files")
topology.new_stream("lines", FileSpout(str(FOLDER / "in"), max_files=50)).group_by("line").persistent_aggregate(
    SqliteState(str(FOLDER / "files.db")), Count(), "count", name="counts"
)
with DAG("files_dag"):
    trident_transaction(topology, engine="local")
"""
CODE = "--dag-file dags/files_dag.py"
DRAIN = f"drain files {CODE}"
MARK = f"source mark-read files lines {CODE}"


def filled(folder: Path, first: int, last: int) -> None:
    for number in range(first, last + 1):
        put(folder, f"f{number}", f"f{number}\n")


def test_processes_share_the_lists_and_a_backup_has_them(site: Site) -> None:
    home = site.home.folder
    site.home.write_dag("files_dag", DAG_FILE)
    site.home.options["AIRFLOW__TRIDENT__SOURCES_DIR"] = str(home / "lists")
    filled(home / "in", 1, 100)
    first, backup = site.tridents(DRAIN, "ledger export files --output files.json")
    assert (first.code, backup.code) == (0, 0), first.err + backup.err
    (folder,) = (home / "lists/files").glob("*/lines")
    assert len(list(folder.iterdir())) > 0
    assert json.loads((home / "files.json").read_text())["lists"]["lines"].keys() <= {
        path.name for path in folder.iterdir()
    }
    shutil.copy(home / "files.db", home / "backup.db")
    filled(home / "in", 101, 110)
    again, nothing = site.tridents(DRAIN, DRAIN)
    assert "transaction 3 is committed, 10 rows read" in again.out, again.out + again.err
    assert "nothing new" in nothing.out
    shutil.rmtree(home / "lists")
    lost, wrong, marked, empty = site.tridents(DRAIN, f"{MARK} --before yesterday", MARK, DRAIN)
    assert lost.code == 1
    assert "is not whole" in lost.error
    assert "airflow trident source mark-read TOPOLOGY STREAM" in lost.error
    assert "--before is 'yesterday'" in wrong.error
    assert "110 more files of stream lines count as read since transaction 4" in marked.out, marked.err
    assert "nothing new" in empty.out
    shutil.rmtree(home / "lists")
    site.home.options["AIRFLOW__TRIDENT__ROOT"] = f"{site.home.root}/elsewhere"
    site.home.options["AIRFLOW__TRIDENT__STAGING_DIR"] = str(home / "elsewhere")
    shutil.copy(home / "backup.db", home / "files.db")
    imported, replayed = site.tridents(f"ledger import files files.json {CODE}", DRAIN)
    assert imported.code == 0, imported.err
    assert "transaction 3 is committed, 10 rows read" in replayed.out, "those of after the backup"
