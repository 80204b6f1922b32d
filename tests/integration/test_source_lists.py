"""The list of read files through the phases, each in objects of its own as in tasks: nothing is lost or read twice."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_trident import Count, FileSpout, FixedBatchSpout, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    CorruptRecordError,
    SourceChangedError,
    TransitionError,
)
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime import open_resources
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.open_resources import SourceNotes
from airflow_trident.runtime.phases import coordinate
from airflow_trident.runtime.source_lists import export_ledger, import_ledger, mark_read
from airflow_trident.spouts.files import read_list
from airflow_trident.tasks.source_lag import first_ready, last_position
from tests.fixtures.file import put


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are reached by a few files."""
    monkeypatch.setattr(read_list, "TAIL_RECORDS", 3)
    monkeypatch.setattr(open_resources, "SWEEP_TRANSACTIONS", 5)


@dataclass
class Site:
    """A ledger, a folder of files and one of lists. Each step opens all anew."""

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    tree: MemoryTree = field(default_factory=MemoryTree)
    files: int = 0

    def ledger(self) -> ZNodeLedger:
        ledger = ZNodeLedger(MemoryZNodes(self.tree), "names")
        ledger.sources_root = str(self.folder / "sources")
        return ledger

    def topology(self) -> Topology:
        made = Topology("names")
        (self.folder / "in").mkdir(exist_ok=True)
        spout = FileSpout(str(self.folder / "in"), recursive=True, **{"max_files": 2, **self.options})
        made.new_stream("lines", spout).group_by("line").persistent_aggregate(
            SqliteState(str(self.folder / "counts.db")), Count(), "count", name="counts"
        )
        return made

    def runner(self, **options: Any) -> LocalRunner:
        return LocalRunner(
            ledger=self.ledger(),
            topology=self.topology(),
            engine=LocalEngine(),
            staging_root=str(self.folder / "staging"),
            **options,
        )

    def run(self, **options: Any) -> list[int]:
        return self.runner(**options).run()

    def put(self, count: int, mtime_s: float | None = None) -> None:
        """Files that hold their own names."""
        for _ in range(count):
            self.files += 1
            put(self.folder / "in", f"f{self.files}", f"f{self.files}\n", mtime_s)

    def counts(self) -> dict[str, int]:
        spec = self.topology().states["counts"]
        with spec.factory.make_state(spec) as state:
            return {key[0]: value[0] for key, value in state.items()}  # type: ignore[attr-defined]

    def lists(self) -> Path:
        (incarnation,) = (self.folder / "sources/names").iterdir()
        return incarnation / "lines"

    def position(self) -> Any:
        _, position = last_position(self.ledger())
        assert position is not None
        return position.get("lines")

    def is_ready(self) -> bool:
        ledger = self.ledger()
        position = last_position(ledger)[1] or {}
        return first_ready(self.topology(), position, SourceNotes.of(ledger)) is not None


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_lists_are_in_a_folder_that_all_phases_share_and_costs_do_not_grow(site: Site) -> None:
    site.put(60)
    assert len(site.run(retention=3)) == 30
    assert site.counts() == {f"f{n}": 1 for n in range(1, 61)}
    assert not site.is_ready()
    assert len(json.dumps(site.position())) < 400
    assert len(list(site.lists().iterdir())) < 15, "swept"
    site.put(1, mtime_s=1)
    assert site.is_ready()
    assert site.run() == [31]
    assert site.counts()["f61"] == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9), st.sampled_from([None, 1.0, 4e9])),
        st.tuples(st.just("run"), st.integers(1, 3), st.none()),
        st.tuples(st.just("backup"), st.just(0), st.none()),
        st.tuples(st.just("restore"), st.just(0), st.none()),
        st.tuples(st.just("remove"), st.integers(1, 5), st.none()),
    ),
    max_size=14,
)


@settings(max_examples=15, deadline=None)
@given(STEPS, st.booleans())
@example([("run", 1, None), ("backup", 0, None), ("put", 1, None), ("run", 1, None), ("restore", 0, None)], False)
def test_each_file_is_counted_once_through_backups_of_the_ledger(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, float | None]], loses_lists: bool
) -> None:
    """A backup and the states are put back together: what was committed since is read again."""
    site, backup = Site(tmp_path_factory.mktemp("site")), None
    database, removed = site.folder / "counts.db", set[str]()
    for kind, number, at in steps:
        if kind == "put":
            site.put(number, at)
        elif kind == "run":
            site.runner().run(max_transactions=number)
        elif kind == "remove":
            for name in list(site.counts() if database.exists() else ())[:number]:
                (site.folder / "in" / name).unlink(missing_ok=True)
                removed.add(name)
        elif kind == "backup" and database.exists():
            backup = json.dumps(export_ledger(site.ledger())), database.read_bytes(), site.counts()
        elif kind == "restore" and backup is not None:
            site.tree = MemoryTree()
            shutil.rmtree(site.folder / "staging", ignore_errors=True)  # it has the attempts that are made again
            if loses_lists:
                shutil.rmtree(site.folder / "sources", ignore_errors=True)
            import_ledger(site.ledger(), json.loads(backup[0]))
            database.write_bytes(backup[1])
            removed = {name for name in removed if name in backup[2] or (site.folder / "in" / name).exists()}
    site.run()
    there = {path.name for path in (site.folder / "in").iterdir()} if site.files else set()
    assert Counter(site.counts()) == Counter(dict.fromkeys(there | removed, 1))


def broken(site: Site, how: str) -> None:
    for path in site.lists().iterdir():
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize("how", ["gone", "shorter"])
def test_a_damaged_list_is_an_error_until_it_is_made_anew_or_put_back(site: Site, how: str) -> None:
    site.put(20)
    site.run()
    exported = json.loads(json.dumps(export_ledger(site.ledger())))
    broken(site, how)
    site.put(1)
    for act in (site.run, site.is_ready, lambda: export_ledger(site.ledger())):
        with pytest.raises(CorruptRecordError, match=r"is not whole.*sources_dir.*ledger import.*source mark-read"):
            act()
    again = Site(site.folder, files=site.files)
    with pytest.raises(CorruptRecordError, match="is not whole"):
        import_ledger(again.ledger(), {**exported, "lists": {}})
    with pytest.raises(CorruptRecordError, match="in the export is damaged"):
        import_ledger(again.ledger(), {**exported, "lists": {"lines": {"../x": ""}}})
    import_ledger(again.ledger(), exported)
    assert again.run() == [11]
    site = again
    broken(site, how)
    assert mark_read(site.runner(), "lines", None) == (12, 21)
    assert site.run() == []
    site.put(1)
    assert site.run() == [13]
    assert site.counts()["f22"] == 1


def test_what_is_there_counts_as_read_before_a_moment_also_at_the_very_begin(site: Site) -> None:
    site.put(10, mtime_s=1000)
    site.put(3, mtime_s=2000)
    assert mark_read(site.runner(), "lines", 1500 * 10**9) == (1, 10)
    assert site.run() == [2, 3]
    assert site.counts() == {"f11": 1, "f12": 1, "f13": 1}
    put(site.folder / "in", "f11", "another\n")
    with pytest.raises(SourceChangedError, match="changed since"):
        site.run()
    assert mark_read(site.runner(), "lines", None) == (4, 1)
    assert site.run() == []


def test_nothing_is_marked_beside_an_open_transaction_or_where_there_is_no_list(site: Site) -> None:
    site.put(1)
    coordinate(site.ledger(), site.topology(), [Claim(key="a task")])
    with pytest.raises(TransitionError, match=r"transaction 1 is not committed yet.*Wait until"):
        mark_read(site.runner(), "lines", None)
    site.run()
    with pytest.raises(ConfigurationError, match=r"no stream 'lnes'.*Name lines"):
        mark_read(site.runner(), "lnes", None)
    made = Topology("numbers")
    made.new_stream("rows", FixedBatchSpout("x long", [(1,)])).group_by("x").persistent_aggregate(
        SqliteState(str(site.folder / "other.db")), Count(), "count"
    )
    runner = LocalRunner(
        ledger=ZNodeLedger(MemoryZNodes(MemoryTree()), "numbers"),
        topology=made,
        engine=LocalEngine(),
        staging_root=str(site.folder / "staging"),
    )
    with pytest.raises(ConfigurationError, match="keeps no list of files"):
        mark_read(runner, "rows", None)


def test_a_changed_file_is_read_again_if_it_shall_be(tmp_path: Path) -> None:
    site = Site(tmp_path, {"changed": "read"})
    site.put(8)
    site.run()
    put(site.folder / "in", "f3", "f3 anew\n")
    os.utime(site.folder / "in/f4", (7, 7))
    site.run()
    assert site.counts() == {**{f"f{n}": 1 for n in range(1, 9)}, "f3 anew": 1}


def test_a_process_without_the_folder_keeps_all_in_the_metadata_and_refuses_lists(site: Site) -> None:
    site.put(8)
    site.run()
    ledger = site.ledger()
    ledger.sources_root = ""
    with pytest.raises(ConfigurationError, match="not given the folder of such lists"):
        LocalRunner(
            ledger=ledger, topology=site.topology(), engine=LocalEngine(), staging_root=str(site.folder / "staging")
        ).run()
