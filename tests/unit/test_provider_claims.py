"""Which transaction a coordinator's run has (P1): the same one for ever, whatever a deploy changes around it."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.sdk import DAG
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident import (
    FileSink,
    FixedBatchSpout,
    Topology,
    TridentCommitterOperator,
    TridentCoordinatorOperator,
    TridentEmitterOperator,
)
from airflow_trident.operators.base import incarnation_of_run
from airflow_trident.protocol.records import claim_key
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


def of_run(map_index: int = -1) -> Any:
    context = context_of("run")
    context["ti"].map_index = map_index
    return context


def test_the_claims_name_the_tasks_that_are_mapped_over_the_txids_with_the_index_of_each(site: Site) -> None:
    """Without them, those who wait take it that whatever the run starts may go on with the transaction."""
    given: dict[str, Any] = {"topology": site.topology, "engine": "local"}
    with DAG("words", schedule=None):
        begin = TridentCoordinatorOperator(task_id="c", topology=site.topology, max_transactions=2, max_pending=9)
        emit = TridentEmitterOperator.partial(task_id="e", **given).expand(txid=begin.output)
        commit = TridentCommitterOperator.partial(task_id="k", **given).expand(txid=begin.output)
        other = TridentEmitterOperator.partial(task_id="of_another", **given | {"topology": other_topology()})
        emit >> commit >> other.expand(txid=begin.output)
    claims = list(begin._claims(of_run()))
    assert {claim.coordinator for claim in claims} == {of_run()["ti"].task_id}
    assert [(claim.task_ids, claim.map_index) for claim in claims] == [
        ({"emit": "e", "commit": "k"}, 0),
        ({"emit": "e", "commit": "k"}, 1),
    ]


def test_one_task_for_all_transactions_of_a_run_is_seen_behind_a_mapped_one(site: Site) -> None:
    given: dict[str, Any] = {"topology": site.topology, "engine": "local"}
    with DAG("words", schedule=None):
        begin = TridentCoordinatorOperator(task_id="c", topology=site.topology, max_transactions=2, max_pending=9)
        begin >> TridentEmitterOperator.partial(task_id="e", group="auto", **given).expand(txid=[[1, 2]])
    assert [claim.map_index for claim in begin._claims(of_run())] == [-1, -1]


@pytest.mark.parametrize("index", [-1, 1])
def test_behind_a_mapped_coordinator_the_ledger_is_that_of_its_incarnation(site: Site, index: int) -> None:
    with DAG("words", schedule=None):
        begin = TridentCoordinatorOperator.partial(task_id="c", topology=site.topology).expand(max_pending=[1, 2])
        emit = TridentEmitterOperator(task_id="e", topology=site.topology, engine="local", txid=1)
        begin >> emit
    context, life = of_run(index), "0123456789abcdef0123456789abcdef"
    pushed = {("c", "incarnation", 0): life, ("c", "incarnation", 1): life}
    context["ti"].xcom_pull = lambda task_ids, key, map_indexes: pushed.get((task_ids, key, map_indexes))
    assert incarnation_of_run(emit, context) == life


def other_topology() -> Topology:
    topology = Topology("other")
    topology.new_stream("lines", FixedBatchSpout("line string", [("a",)], 1)).partition_persist(
        FileSink("/data/other"), "line"
    )
    return topology


IDS = st.text(st.characters(categories=["L", "N"], include_characters="-._"), min_size=1, max_size=5)
RUNS = st.one_of(st.text("a/:-1 0", min_size=1, max_size=8), st.text(min_size=1, max_size=8))
CLAIMS = st.tuples(IDS, IDS, RUNS, st.integers(-1, 2), st.integers(0, 2))


@given(CLAIMS, CLAIMS)
def test_no_two_claims_have_one_key_whatever_their_runs_are_called(one: Any, other: Any) -> None:
    assert (claim_key(*one) == claim_key(*other)) == (one == other)
