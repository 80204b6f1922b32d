"""What the four tasks of a transaction ask of ZooKeeper, counted over the operators; and what the docs say of it."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from airflow_trident.cli.commands import doctor as checks
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Op, ReadResult
from tests.unit.test_provider_lives import Site, site

__all__ = ["site"]
DOCS = Path(__file__).parents[2] / "docs"
ROUND_TRIPS = {"words.coordinate": 4, "words.emit": 3, "words.turn": 1, "words.commit": 3}
WRITES = {"words.coordinate": 1, "words.emit": 2, "words.turn": 0, "words.commit": 2}
LISTED = {"words.coordinate": 2, "words.emit": 0, "words.turn": 0, "words.commit": 2}
"""Folders whose names are read: of the kept records, for the steps that begin and commit."""
SENT_ALONG = 2
"""Entries in the list of workers: the emitter's and the committer's."""


class Counting(MemoryZNodes):
    """Counts what is waited for, what of it is written, and what is sent along."""

    def __init__(self, tree: MemoryTree, calls: Counter[str]) -> None:
        super().__init__(tree)
        self.calls = calls

    def read(self, paths: Sequence[str] = (), folders: Sequence[str] = ()) -> ReadResult:
        self.calls["waited for"] += 1
        self.calls["listed"] += len(folders)
        return super().read(paths, folders)

    def multi(self, ops: Sequence[Op]) -> None:
        self.calls.update(("waited for", "written"))
        super().multi(ops)

    def ensure(self, path: str) -> None:
        self.calls.update(("waited for", "written"))
        super().ensure(path)

    def wait_for_change(
        self,
        seen: Mapping[str, int | None],
        timeout_s: float,
        folders: Mapping[str, frozenset[str] | None] | None = None,
    ) -> bool:
        self.calls["waited for"] += 1
        return super().wait_for_change(seen, timeout_s, folders)

    def post(self, ops: Sequence[Op]) -> None:
        self.calls["sent along"] += 1
        super().post(ops)


@pytest.fixture
def counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> dict[str, Counter[str]]:
    """Task -> calls, of the second transaction of a topology: the first one makes the ledger."""
    calls: Counter[str] = Counter()

    def ledger(incarnation: str = "") -> ZNodeLedger:
        return ZNodeLedger(Counting(site.tree, calls), "words", incarnation=incarnation)

    monkeypatch.setattr(site, "ledger", ledger)
    found: dict[str, Counter[str]] = {}
    for run_id in ("first", "second"):
        for task_id in ROUND_TRIPS:
            calls.clear()
            site.run(task_id, run_id)
            found[task_id] = Counter(calls)
    return found


def test_the_four_tasks_of_a_transaction_make_eleven_round_trips(counted: dict[str, Counter[str]]) -> None:
    assert {task_id: calls["waited for"] for task_id, calls in counted.items()} == ROUND_TRIPS
    assert {task_id: calls["written"] for task_id, calls in counted.items()} == WRITES
    assert {task_id: calls["listed"] for task_id, calls in counted.items()} == LISTED
    assert sum(calls["sent along"] for calls in counted.values()) == SENT_ALONG
    assert sum(ROUND_TRIPS.values()) <= 12


def test_the_docs_and_the_doctor_say_what_was_counted() -> None:
    trips, writes = sum(ROUND_TRIPS.values()), sum(WRITES.values())
    said = {
        "scale.md": f"| round trips | 2 to 4, all of them writes | {trips}, of which {writes} are writes |",
        "reference/limits.md": f"| ZooKeeper round trips | {trips} when every phase is a task, 2 to 4 in a drain, "
        "otherwise 4 or 5 in one process |",
        "decisions/0001-no-leader.md": f"{trips} when every phase is a task of its own",
    }
    for page, line in said.items():
        assert line in (DOCS / page).read_text(), page
    number = ("no", "one", "two", "three", "four", "five", "six", "seven")[writes]
    assert f"a transaction needs {number}." in inspect.getsource(checks)
