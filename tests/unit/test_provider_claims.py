"""Which transaction a coordinator's run has (P1): the same one for ever, whatever a deploy changes around it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident import TridentCoordinatorOperator
from airflow_trident.protocol import records_v1
from airflow_trident.protocol.records import Claim, claim_key
from airflow_trident.runtime.phases import coordinate
from tests.unit.test_provider_runs import Site, context_of, site

__all__ = ["site"]


def claimed(site: Site, run_id: str, most: int = 1, cleared: int = 0, task_id: str = "coordinate") -> Any:
    context = context_of(run_id, cleared=cleared)
    context["ti"].task_id = task_id
    coordinator = TridentCoordinatorOperator(
        task_id=task_id, topology=site.topology, dag=DAG("words", schedule=None), max_transactions=most, max_pending=9
    )
    coordinator.open_ledger = site.ledger  # type: ignore[method-assign]
    return coordinator.execute(context)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 2), (1, 3)])
def test_a_run_keeps_its_transactions_when_another_number_is_deployed(site: Site, before: int, after: int) -> None:
    first = claimed(site, "run", before)
    old = [first] if before == 1 else first
    assert old == list(range(1, before + 1))
    again = claimed(site, "run", after, cleared=1)
    assert ([again] if after == 1 else again) == old[:after]
    assert claimed(site, "run", before, cleared=2) == first
    assert site.begun() == before


def test_a_retry_after_another_number_was_deployed_goes_on_behind_what_the_run_has(site: Site) -> None:
    assert claimed(site, "run", 1) == 1
    assert claimed(site, "run", 2) == [1, 2]


def test_two_coordinators_of_one_topology_in_one_run_get_a_transaction_each(site: Site) -> None:
    assert [claimed(site, "run", task_id=task_id) for task_id in ("first.coordinate", "second.coordinate")] == [1, 2]
    assert [claimed(site, "run", task_id=task_id) for task_id in ("second.coordinate", "first.coordinate")] == [2, 1]


@pytest.mark.parametrize(
    ("keys", "most", "expected"),
    [(["words/run/-1"], 1, 1), (["words/run/-1"], 2, [1, 2]), (["words/run/-1/0", "words/run/-1/1"], 2, [1, 2])],
)
def test_a_run_that_claimed_under_version_1_keeps_its_transactions(
    site: Site, keys: list[str], most: int, expected: object
) -> None:
    ledger = site.ledger()
    ledger.register(site.topology.definition())
    for key in keys:
        coordinate(ledger, site.topology, Claim(key=key, dag_id="words", run_id="run"), max_pending=9)
    assert claimed(site, "run", most) == expected
    assert claimed(site, "run", most, cleared=1) == expected


IDS = st.text(st.characters(categories=["L", "N"], include_characters="-._"), min_size=1, max_size=5)
RUNS = st.one_of(st.text("a/:-1 0", min_size=1, max_size=8), st.text(min_size=1, max_size=8))
CLAIMS = st.tuples(IDS, IDS, RUNS, st.integers(-1, 2), st.integers(0, 2))


@given(CLAIMS, CLAIMS)
def test_no_two_claims_have_one_key_whatever_their_runs_are_called(one: Any, other: Any) -> None:
    assert (claim_key(*one) == claim_key(*other)) == (one == other)
    dag_id, _, run_id, map_index, index = other
    assert claim_key(*one) not in records_v1.claim_keys(dag_id, run_id, map_index, index)
