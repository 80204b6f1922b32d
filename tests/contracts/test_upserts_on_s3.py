"""Tables of changes in a bucket: the latest row of a key counts, on a server that fails and loses answers."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import FixedBatchSpout, MemoryLedger, TableSpout, Topology
from airflow_trident.contracts.state import Applied
from airflow_trident.contracts.upkeep import Upkeep
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import FencedError, OutcomeUnknownError, StagingError
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.upkeep import keep_up
from tests.contracts.test_spouts import metadata_of_all, rows_of
from tests.contracts.test_table_upserts import changes, changes_table, latest, three
from tests.contracts.test_tables_on_s3 import DECISIVE, FACTORIES
from tests.faults.http_proxy import Verdict
from tests.fixtures.object_store import CONN_ID, Lake
from tests.fixtures.program import run_code
from tests.fixtures.state import ticket
from tests.fixtures.table import TABLES, before_the_commit

FORMATS = pytest.mark.parametrize(
    "kind", ["parquet", *(pytest.param(one, marks=pytest.mark.rare) for one in ("delta", "iceberg"))], indirect=True
)
"""For what the libraries of Delta and Iceberg do in a folder, too (test_table_upserts), on the same paths."""


@pytest.fixture(params=FACTORIES)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def table_in(kind: str, bucket: str, folder: Path) -> Any:
    """As tests see it. Nothing of it is read as files: only the factory is of the bucket."""
    table = changes_table(TABLES[kind], folder)
    table.spec = replace(table.spec, factory=FACTORIES[kind](bucket, folder))
    return table


@pytest.fixture
def table(kind: str, lake: Lake, tmp_path: Path) -> Any:
    return table_in(kind, lake.name, tmp_path)


def test_a_topology_upserts_from_a_bucket_into_a_bucket_and_its_table_is_compacted_and_followed(
    kind: str, lake: Lake, tmp_path: Path
) -> None:
    """Staged files are objects, too."""
    topology, factory = Topology("words"), FACTORIES[kind](lake.name, tmp_path)
    rows = [(1, "old", 1, False), (1, "a", 2, False), (2, "b", 1, False), (2, None, 3, True), (3, "c", 3, False)]
    spout = FixedBatchSpout("id long, word string, at long, gone boolean", rows, 3)
    topology.new_stream("changes", spout).persist_table(
        factory, mode="upsert", keys="id", order_by="at", deleted="gone"
    )
    staging = f"s3://{CONN_ID}@{lake.name}/staging"
    with MemoryLedger("words") as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=staging).run()
    seen = TableSpout(factory, fields="id long, _txid long", changes="skip")
    (metadata,) = metadata_of_all(seen)
    assert sorted(rows_of(seen, metadata)) == [(1, 1), (2, 1), (2, 2), (3, 2)]
    for done in (True, False):
        assert keep_up(topology.states["rows"], Upkeep.COMPACT, lambda line: None) is done
        assert {row["id"]: row["word"] for row in factory.latest().to_pylist()} == {1: "a", 3: "c"}


@FORMATS
def test_the_latest_row_of_a_key_counts_also_late_and_again(table: Any, tmp_path: Path) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        assert latest(table) == {1: "c", 3: "d"}
        again = ticket(3, fence=40)
        assert state.apply_files(again, changes(tmp_path, 3, (1, "again", None))) is Applied.ALREADY
        state.apply_files(ticket(5), changes(tmp_path, 5, (3, "e", None)))
        assert state.compact()
        late = changes(tmp_path, 4, (2, "late", None), (3, "late", None))
        assert state.apply_files(ticket(4, late=True, fence=70), late) is Applied.APPLIED
    assert latest(table) == {1: "c", 2: "late", 3: "e"}


@pytest.mark.parametrize("verdict", [Verdict.LOSE, pytest.param(Verdict.UNAVAILABLE, marks=pytest.mark.rare)])
def test_a_compaction_of_which_the_answer_is_lost_or_refused_is_there_or_not(
    table: Any, kind: str, lake: Lake, tmp_path: Path, verdict: Verdict
) -> None:
    method, containing = DECISIVE[kind]
    with table.opened() as state:
        three(state, tmp_path)
        lake.server.rule(method, verdict, containing=containing)
        try:
            state.compact()
        except OutcomeUnknownError:
            state.compact()
        assert not state.compact()
        assert len(list(state.items())) == 2
    assert latest(table) == {1: "c", 3: "d"}


WORKER = """
import sys
from pathlib import Path
from tests.contracts.test_upserts_on_s3 import table_in
from tests.fixtures.table import die_at

kind, bucket, folder, when = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]
table = table_in(kind, bucket, folder)
state = table.opened()
die_at(table.steps[table.decisive](state), table.decisive, when)
state.compact()
"""


@FORMATS
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.rare), "after"])
def test_a_compaction_killed_around_its_commit_changes_nothing_that_counts(
    table: Any, kind: str, lake: Lake, tmp_path: Path, when: str
) -> None:
    with table.opened() as state:
        three(state, tmp_path)
    assert run_code(WORKER, kind, lake.name, tmp_path, when).returncode == -signal.SIGKILL
    assert latest(table) == {1: "c", 3: "d"}
    with table.opened() as state:
        assert state.compact() is (when == "before")
        assert state.apply_files(ticket(4), changes(tmp_path, 4, (1, "e", None))) is Applied.APPLIED
    assert latest(table) == {1: "e", 3: "d"}


@FORMATS
def test_a_commit_beside_a_compaction_stays_and_a_zombie_changes_nothing(
    table: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer() -> None:
        with table.opened() as other:
            other.apply_files(ticket(4, fence=99), changes(tmp_path, 4, (1, "newer", None)))

    with table.opened() as state:
        three(state, tmp_path)
        before_the_commit(table, state, monkeypatch, newer)
        assert state.compact()
        with pytest.raises(FencedError):
            state.apply_files(ticket(4, fence=98), changes(tmp_path, 4, (1, "zombie", None)))
    assert latest(table) == {1: "newer", 3: "d"}


def test_changes_of_which_the_staged_file_is_gone_are_not_there(table: Any, tmp_path: Path) -> None:
    with table.opened() as state:
        three(state, tmp_path)
        batch = changes(tmp_path, 4, (1, "x", None))
        Path(batch.paths[0]).unlink()
        with pytest.raises(StagingError, match="is missing"):
            state.apply_files(ticket(4), batch)
    assert latest(table) == {1: "c", 3: "d"}
