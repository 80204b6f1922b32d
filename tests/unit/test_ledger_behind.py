"""When a ledger is behind its states, and when it only looks so."""

from __future__ import annotations

import pytest

from airflow_trident.contracts.state import Marker
from airflow_trident.errors import LedgerBehindStateError
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, TopologyRecord
from airflow_trident.protocol.topology_definition import Definition
from airflow_trident.runtime.state_agreement import require_ledger_ahead

VIEW = LedgerView(
    topology=TopologyRecord(name="words", incarnation="i1", definition=Definition(spouts={}, states={})),
    next_txid=4,
    pointer=CommitPointer(committed=2, fence=7),
    exceptions=Exceptions(),
    tx=None,
)


@pytest.mark.parametrize(
    "marker",
    [None, Marker(incarnation="i1", high=3, fence=7), Marker(incarnation="i1", high=1, fence=2, holes=((1, 1),))],
)
def test_a_ledger_that_gave_out_every_txid_and_fence_that_the_states_have_seen_is_ahead(marker: Marker | None) -> None:
    require_ledger_ahead("words", {"counts": marker}, VIEW)


@pytest.mark.parametrize(
    ("marker", "why"),
    [
        (Marker(incarnation="i0", high=1, fence=1), "incarnation i0"),
        (Marker(incarnation="i1", high=4, fence=7), "up to 4"),
        # One used txid was begun again, so that the txids look right: only the fence tells.
        (Marker(incarnation="i1", high=3, fence=8), "fence 8.*fence 7"),
    ],
)
def test_a_state_that_has_seen_more_than_the_ledger_gave_out_proves_an_old_copy(marker: Marker, why: str) -> None:
    with pytest.raises(LedgerBehindStateError, match=rf"'counts' of topology 'words'.*{why}.*Nothing was changed"):
        require_ledger_ahead("words", {"other": None, "counts": marker}, VIEW)
