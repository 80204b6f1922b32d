"""What a transaction of many files writes into the ledger: as much as its batch, not as what was read before it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_trident import FileSpout
from airflow_trident.ledger.answers import Begun, NextBatches
from airflow_trident.ledger.layout import LedgerPaths
from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.znodes import Create, Op, Set
from airflow_trident.protocol.decide import MendedSources
from airflow_trident.protocol.metadata import BASE
from airflow_trident.protocol.records import TxRecord
from airflow_trident.types import Json
from tests.fixtures import single
from tests.fixtures.ledger import DEFINITION, STAGED, claim, commit


class Weighed(MemoryZNodes):
    written = 0

    def multi(self, ops: Sequence[Op]) -> None:
        self.written += sum(len(op.data) for op in ops if isinstance(op, Create | Set))
        super().multi(ops)


class Folder:
    """A folder of so many files, all in one window of a FileSpout, and the ledger of who reads it."""

    def __init__(self, path: Path, files: int) -> None:
        path.mkdir()
        for number in range(files):
            file = path / f"{number:06d}.txt"
            file.touch()
            os.utime(file, ns=(10**18 + number * 10**6,) * 2)
        self.path, self.begun = path, 0
        self.tree = MemoryTree()
        self.znodes = Weighed(self.tree)
        self.ledger = ZNodeLedger(self.znodes, "words")
        self.ledger.register(DEFINITION)
        self.expected: dict[int, TxRecord] = {}

    def begin(self, files: int, *, group: int = 1) -> list[int]:
        """So many transactions, of so many files each."""
        coordinator = FileSpout(str(self.path), max_files=files).coordinator()

        def batches(txid: int, position: dict[str, Json], most: int) -> list[dict[str, Json]]:
            return [{"lines": one} for one in coordinator.next_batches(txid, position.get("lines"), most)]

        claims = [claim(self.begun + number + 1) for number in range(group)]
        found = self.ledger.begin(NextBatches(claims, batches, max_pending=1000))
        assert isinstance(found, tuple)
        records = [one.record for one in found if isinstance(one, Begun) and one.record is not None]
        self.begun += len(records)
        self.expected |= {one.txid: one for one in records}
        return [one.txid for one in records]

    def commit(self, txid: int, retention: int = 50) -> None:
        commit(self.ledger, txid, retention=retention)

    def written_by(self, transactions: int, *, files: int, group: int = 1) -> float:
        """Bytes for each of so many transactions, from the second group on."""
        for txid in self.begin(files, group=group):
            self.commit(txid)
        before = self.znodes.written
        for _ in range(transactions // group):
            for txid in self.begin(files, group=group):
                self.commit(txid)
        return (self.znodes.written - before) / transactions

    def require_all_as_begun(self) -> None:
        """By somebody who remembers nothing."""
        for record in ZNodeLedger(MemoryZNodes(self.tree), "words").transactions():
            assert record.position == self.expected[record.txid].position

    @property
    def bases(self) -> set[int]:
        folder = LedgerPaths(self.ledger._path, self.ledger.topology().incarnation).chunks
        names = self.tree.children(folder) or ()
        return {int(name.split("-")[1]) for name in names if name.startswith(BASE)}


@pytest.mark.parametrize("group", [1, 8])
def test_what_is_written_grows_with_the_batch_and_not_with_what_was_read(group: int, tmp_path: Path) -> None:
    """Of the 24 bytes a file that have been read, 48 KB are known in the first folder, 10 KB in the second."""
    written = {}
    for read in (2_000, 400):
        folder = Folder(tmp_path / str(read), read + 64)
        folder.begin(read)
        folder.commit(1)
        written[read] = folder.written_by(24, files=2, group=group)
        folder.require_all_as_begun()
    assert written[2_000] < 2_000 * 24 / 6
    assert written[2_000] < 2 * written[400]


def test_what_is_shared_is_kept_as_long_as_somebody_shares_it(tmp_path: Path) -> None:
    """Also with one that was skipped and is far behind the others."""
    folder = Folder(tmp_path / "in", 1_200)
    folder.begin(600)
    folder.commit(1)
    kept = []
    for _ in range(70):
        (txid,) = folder.begin(5)
        if txid == 20:
            folder.ledger.skip(txid, "not wanted")
        else:
            folder.commit(txid, retention=4)
        kept.append(folder.bases)
        if txid % 10 == 0:
            folder.require_all_as_begun()
    assert len(set().union(*kept)) > 3
    assert max(map(len, kept)) <= 4  # of the skipped one, of the four others, and the last
    left = single.attempt(folder.ledger, 20, owner="somebody").attempt
    single.processed(folder.ledger, 20, left, STAGED)
    single.committed(folder.ledger, single.gate(folder.ledger, 20, owner="somebody"), retention=4)
    folder.commit(*folder.begin(5), retention=4)
    assert len(folder.bases) <= 2
    folder.require_all_as_begun()


def test_a_source_that_was_mended_shares_no_longer(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "in", 700)
    folder.begin(600)
    folder.commit(1)
    for _ in range(4):
        folder.begin(5)
    coordinator = FileSpout(str(folder.path)).coordinator()
    (folder.path / "000612.txt").write_text("mended\n")

    class Sources(MendedSources):
        def accept(self, stream: str, metadata: Json) -> Json:
            return coordinator.accept_source(metadata)

        def follow(self, stream: str, later: Json, accepted: Json) -> Json:
            return coordinator.follow_source(later, accepted)

    before = dict(folder.expected)
    folder.ledger.accept_source(4, Sources(), "it was broken")
    now = {one.txid: one for one in ZNodeLedger(MemoryZNodes(folder.tree), "words").transactions()}
    assert [txid for txid in now if now[txid].position != before[txid].position] == [4, 5]
    folder.expected = now
    folder.begin(5)
    folder.begin(5)
    folder.require_all_as_begun()
