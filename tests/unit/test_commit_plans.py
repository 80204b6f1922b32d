"""Plans of the commit phase that cannot mean anything are refused when they are built."""

from __future__ import annotations

import pytest

from airflow_trident import Count, Sum, Topology
from airflow_trident.errors import PlanError
from airflow_trident.functions import MapGet
from airflow_trident.plan.nodes import StateQueryNode
from tests.fixtures.commit_plan import words
from tests.fixtures.plan import PaperState


def partition_wise(*, repartitioned_behind_the_query: bool) -> Topology:
    """New values and tuples that asked a state before, brought together partition by partition."""
    topology = Topology("shop")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
    asked = stream.partition_by("word").state_query(counts, "word", MapGet(), "n")
    if repartitioned_behind_the_query:
        asked = asked.partition_by("word")
    both = topology.merge([counts.new_values_stream().partition_by("word"), asked])
    sums = both.group_by("word").partition_aggregate("n", Sum(), "sum")
    sums.partition_persist(PaperState(), "word, sum", keys="word", name="sums")
    return topology


def test_a_query_between_a_repartition_and_what_works_on_whole_partitions_is_refused() -> None:
    with pytest.raises(PlanError, match=r"state_query\S* stands between it and the repartition partition_by"):
        partition_wise(repartitioned_behind_the_query=False).compile()
    assert partition_wise(repartitioned_behind_the_query=True).compile().commit


def test_a_query_on_a_branch_without_a_repartition_is_not_asked_again() -> None:
    topology = Topology("shop")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
    asked = stream.state_query(counts, "word", MapGet(), "n")
    apart = stream.partition_by("word").each("word", len, "n long")
    both = topology.merge([counts.new_values_stream().partition_by("word"), topology.merge([asked, apart])])
    sums = both.group_by("word").partition_aggregate("n", Sum(), "sum")
    sums.partition_persist(PaperState(), "word, sum", keys="word", name="sums")
    plan = topology.compile()
    assert any(isinstance(node, StateQueryNode) for stage in plan.stages for node in stage.nodes)
    (level,) = plan.commit
    assert not any(isinstance(node, StateQueryNode) for stage in level.stages for node in stage.nodes)
    assert asked.node.name in {name.removeprefix("~") for name in level.carried}


def test_new_values_take_nothing_along_from_before_their_state() -> None:
    """Neither a stream that nobody reads there, nor a refusal of a query that nobody asks again."""
    topology = Topology("shop")
    stream = words(topology)
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
    asked = stream.partition_by("word").state_query(counts, "word", MapGet(), "n")
    seen = asked.partition_persist(PaperState(), "word, n", keys="word", name="seen")
    sums = seen.new_values_stream().group_by("word").partition_aggregate("n", Sum(), "sum")
    sums.partition_persist(PaperState(), "word, sum", keys="word", name="sums")
    plan = topology.compile()
    assert [level.carried for level in plan.commit] == [()]
    assert {sink.name for sink in plan.staged} == {"n", "seen"}


def asks_another(*, before_the_first_state: bool = False, states: int = 2, of: str = "other") -> Topology:
    """New values, or what leads to them, ask for `total` of a topology, and the answer leads to states."""
    topology = Topology("shop")
    total = topology.new_static_state(PaperState(), "total", keys="word string", values="m long", topology=of)
    stream = words(topology)
    if before_the_first_state:
        stream = stream.state_query(total, "word", MapGet(), "m").project("word")
    counts = stream.group_by("word").persistent_aggregate(PaperState(), Count(), "n")
    news = counts.new_values_stream()
    if not before_the_first_state:
        news = news.state_query(total, "word", MapGet(), "m")
    sums = news.group_by("word").persistent_aggregate(PaperState(), "n", Sum(), "total")
    if states == 2:
        sums.new_values_stream().partition_persist(PaperState(), "word, total", keys="word", name="last")
    return topology


def test_answers_of_another_topology_lead_to_one_state_of_the_commit_phase_only() -> None:
    with pytest.raises(PlanError, match=r"asks state 'total', which topology 'other' changes.*'total', 'last'"):
        asks_another().compile()
    assert asks_another(states=1).compile().commit
    assert asks_another(before_the_first_state=True).compile().commit


def test_a_state_that_is_fed_with_what_it_is_asked_for_is_refused() -> None:
    with pytest.raises(PlanError, match="the commit phase asks for what it feeds: 'total' <- 'total'"):
        asks_another(of="shop").compile()
