"""What a step of the ledger does with the names of a folder does not grow with how many there are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident.ledger.ledger import ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryZNodes
from airflow_trident.ledger.snapshot import FolderNames
from tests.contracts.test_ledger_groups import gated_many
from tests.fixtures.ledger import DEFINITION

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
