"""`bisect` finds the rows that break a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_trident import Count, FileSpout, Function, OperationContext, SqliteState, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import TransitionError, UserCodeError
from airflow_trident.ledger.answers import Begun
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.protocol.records import Claim
from airflow_trident.runtime.debugging import bisect
from airflow_trident.runtime.phases import Attempts, process
from tests.fixtures import single

LINES_PER_FILE = 100


def begun(folder: Path, function: object) -> tuple[MemoryLedger, Topology]:
    (folder / "in").mkdir()
    for number in range(3):
        lines = [f"file {number} line {line}" for line in range(LINES_PER_FILE)]
        if number == 1:
            lines[41] = "poison"
        (folder / "in" / f"{number}.txt").write_text("\n".join(lines) + "\n")
    topology = Topology("sick")
    stream = topology.new_stream("lines", FileSpout(f"{folder}/in/*.txt", format="text", max_files=3))
    stream.each("line", function, "word string").persistent_aggregate(SqliteState(f"{folder}/db"), Count(), "n")
    ledger = MemoryLedger("sick")
    assert isinstance(single.coordinate(ledger, topology, Claim(key="run")), Begun)
    return ledger, topology


def picky(line: str) -> Iterator[str]:
    if line == "poison":
        raise ValueError("cannot stand it")
    yield line


class Jealous(Function):
    """Fails on two rows of which each is fine by itself."""

    def prepare(self, context: OperationContext) -> None:
        self.seen: set[str] = set()

    def execute(self, line: str) -> Iterator[str]:
        self.seen.add(line)
        if {"file 0 line 0", "file 2 line 99"} <= self.seen:
            raise ValueError("together")
        yield line


def test_one_poison_row_is_found_with_its_place_and_content(tmp_path: Path) -> None:
    ledger, topology = begun(tmp_path, picky)
    with pytest.raises(UserCodeError):
        process(ledger, topology, 1, LocalEngine(), str(tmp_path / "staging"), Attempts(owner="test", last_try=True))
    found = bisect(ledger, topology, 1, LocalEngine())
    assert found is not None
    assert (found.stream, found.first, found.rows, found.alone) == ("lines", LINES_PER_FILE + 41, 1, True)
    assert found.examples == (("poison",),)
    assert "1.txt" in str(found.where)
    assert "cannot stand it" in found.error
    assert found.runs <= 2 * 9 + 2  # 300 rows are halved nine times


def test_a_healthy_transaction_has_no_poison(tmp_path: Path) -> None:
    ledger, topology = begun(tmp_path, lambda line: [line])
    assert bisect(ledger, topology, 1, LocalEngine()) is None


def test_rows_that_fail_only_together_are_given_as_the_smallest_part_that_holds_them(tmp_path: Path) -> None:
    ledger, topology = begun(tmp_path, Jealous())
    found = bisect(ledger, topology, 1, LocalEngine(partitions=1))
    assert found is not None
    assert (found.alone, found.rows) == (False, 3 * LINES_PER_FILE)


def test_an_unknown_transaction_is_named(tmp_path: Path) -> None:
    ledger, topology = begun(tmp_path, picky)
    with pytest.raises(TransitionError, match="never began transaction 9"):
        bisect(ledger, topology, 9, LocalEngine())
