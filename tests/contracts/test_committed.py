"""COMMITTED in the ledger means that every state has it (P8), whatever store it is and whatever it does when opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_trident.errors import StoreUnavailableError
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.open_resources import OpenStates
from tests.fixtures.committing import NAMES, Shut, Site, expected, two_counts
from tests.fixtures.state import FACTORIES

# ---- stores that cannot be opened ------------------------------------------------------------------------------


@pytest.mark.parametrize("store", FACTORIES)
@pytest.mark.parametrize("shut", NAMES)
def test_p8_states_are_open_all_or_none_and_a_commit_waits_for_the_one_that_is_shut(
    store: str, shut: str, tmp_path: Path
) -> None:
    refusals: dict[str, int] = {}
    site = Site(two_counts(Shut(FACTORIES[store](tmp_path), refusals)), tmp_path / "staging")
    site.run()
    txid = site.begin("run")
    site.process(txid)
    refusals[shut] = 2
    with OpenStates(site.topology) as states:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=f"{shut!r} does not answer"):
                site.committer().commit(txid, states=states)
        assert site.ledger.view(txid).tx.status is Status.PROCESSED
        site.commit(txid, states)
    assert site.ledger.view(txid).tx.status is Status.COMMITTED
    assert [site.content(name) for name in NAMES] == [expected(1, 2)] * 2
