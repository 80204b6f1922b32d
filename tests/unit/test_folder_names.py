"""What a step of the ledger looks at: names of a folder, however many there are, and records that somebody changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.ledger.snapshot import FolderNames
from airflow_trident.protocol import codec
from airflow_trident.protocol.records import Command
from tests.contracts.test_ledger_groups import gated_many
from tests.fixtures.ledger import DEFINITION, begun

NAMES = st.text("ab", max_size=3)


@given(st.sets(NAMES), st.lists(st.dictionaries(NAMES, st.booleans())), NAMES)
def test_names_are_those_of_a_set_in_order_whatever_changes(
    names: set[str], changes: list[dict[str, bool]], asked: str
) -> None:
    found = FolderNames(frozenset(names))
    for written in changes:
        before, copied = list(found), found.after(written)
        assert list(found) == before
        found.change(written)
        names = {*names, *(name for name, there in written.items() if there)}
        names -= {name for name, there in written.items() if not there}
        assert list(found) == list(copied) == sorted(names)
    assert len(found) == len(names)
    assert (asked in found) == (asked in names)
    assert found.upto(asked) == sum(name <= asked for name in names)
    assert list(found.starting_with(asked)) == sorted(name for name in names if name.startswith(asked))


@pytest.mark.parametrize("pending", [30, 300])
def test_a_commit_looks_at_as_many_names_as_it_prunes_however_many_transactions_are_pending(
    pending: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = ZNodeLedger(MemoryZNodes(), "words")
    ledger.register(DEFINITION)
    ledger.committed(gated_many(ledger, 1, 10))
    tickets = gated_many(ledger, 11, pending)[:10]
    looked_at = []

    def counted(self: FolderNames) -> Iterator[str]:
        for name in self._names:
            looked_at.append(name)
            yield name

    monkeypatch.setattr(FolderNames, "__iter__", counted)
    ledger.committed(tickets, retention=5)
    monkeypatch.undo()
    assert [tx.txid for tx in ledger.transactions()][:2] == [11, 12]
    assert len(looked_at) <= 10 + 10


# ---- records that are remembered ------------------------------------------------------------------------------------


def test_what_every_step_looks_at_is_decoded_again_only_when_somebody_changed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[str] = []

    def counted(name: str) -> None:
        original: Any = getattr(codec, name)
        monkeypatch.setattr(codec, name, lambda data, path: decoded.append(name) or original(data, path))

    tree = MemoryTree()
    ledger, other = (ZNodeLedger(MemoryZNodes(tree), "words") for _ in range(2))
    ledger.register(DEFINITION)
    begun(ledger, 1)
    ledger.view(1)
    for name in ("decode_topology", "decode_head", "decode_pointer", "decode_exceptions"):
        counted(name)
    for _ in range(3):
        before = ledger.view(1)
        assert ledger.view(1, remembered=True) == before
    assert decoded == []
    other.set_command(Command.PAUSE)
    other.skip(1, "nobody needs it")
    assert ledger.view(1).topology.command is Command.PAUSE
    assert list(ledger.view(1).exceptions.skipped) == [1]
    assert ledger.view(1).pointer.committed == 1
