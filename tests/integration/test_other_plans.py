"""A staged batch counts for what staged it: after a change of the DAG file it is never taken for something else, and
what a state may have is never replaced by another batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Max, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.errors import OtherPlanError
from airflow_trident.functions import MapGet, col
from airflow_trident.plan.compile import made_otherwise
from airflow_trident.protocol.records import Status
from airflow_trident.runtime.open_resources import OpenStates
from airflow_trident.runtime.repair import accept_definition, take_back
from airflow_trident.runtime.staged_batches import apply_batch
from tests.fixtures import single
from tests.fixtures.behind import Versions, copies_in, rebuild
from tests.fixtures.committing import Site

ROWS = [("a", 1), ("a", 2), ("b", 3), ("b", 4)]


class Described(FixedBatchSpout):
    """A user's, which describes itself otherwise in each process."""

    def describe(self) -> str:
        return f"numbers at {id(self)}"


def numbers(topology: Topology, kind: type[FixedBatchSpout] = FixedBatchSpout) -> Any:
    return topology.new_stream("numbers", kind("word string, n long", ROWS, 2))


def totals(store: Any, how: Any, *, below: int = 10) -> Topology:
    """Two states that can be committed together."""
    topology = Topology("t")
    stream = numbers(topology).filter(col("n") < below)
    stream.persistent_aggregate(store, "n", how, "total")
    stream.group_by("word").persistent_aggregate(store, Count(), "counts")
    return topology


def handed_on(
    store: Any, *names: str, looked_at: bool = False, kind: type[FixedBatchSpout] = FixedBatchSpout
) -> Topology:
    """Streams that are handed on to the commit phase, in this order in the DAG file."""
    topology = Topology("t")
    stream = numbers(topology, kind)
    new = stream.persistent_aggregate(store, Count(), "counts").new_values_stream().project("counts")
    for name in names:
        made = stream.each(col("n") * (2 if name == "twice" else 10), "made").project("made")
        both = topology.merge([new, made], "made")
        if looked_at:
            both = both.peek("made", repr)
        both.persistent_aggregate(store, "made", Max(), "most", name=name)
    return topology


def filtered(store: Any, *, more: bool) -> Topology:
    """The filter is moved before the function where nobody else reads what that makes."""
    topology = Topology("t")
    stream = numbers(topology)
    new = stream.persistent_aggregate(store, Count(), "counts").new_values_stream().project("counts")
    made = stream.each(col("n") * 2, "made")
    topology.merge([new, made.filter(col("n") > 1).project("made")], "made").persistent_aggregate(
        store, "made", Max(), "most", name="most"
    )
    if more:
        made.peek("word", repr).persistent_aggregate(store, "made", Sum(), "total")
    return topology


def no_engine() -> Engine:
    raise AssertionError("it is emitted again")


def processed(topology: Topology, folder: Path, count: int = 2) -> Site:
    site = Site(topology, folder / "staging")
    for number in range(count):
        site.process(site.begin(f"run-{number}"))
    return site


def changed(site: Site, topology: Topology) -> Site:
    accept_definition(site.ledger, topology)
    site.topology = topology
    return site


def total(site: Site) -> dict[Any, Any]:
    with OpenStates(site.topology) as states:
        return dict(states.opened()["total"].items())


@pytest.fixture
def store(tmp_path: Path) -> SqliteState:
    return SqliteState(str(tmp_path / "states.db"))


@pytest.mark.parametrize("together", [1, 200])
def test_an_aggregator_that_was_changed_and_accepted_gets_no_values_of_the_one_before(
    store: SqliteState, tmp_path: Path, together: int
) -> None:
    site = changed(processed(totals(store, Sum()), tmp_path), totals(store, Max()))
    assert replace(site.committer(), most_together=together).commit(2).committed == (1, 2)
    assert site.content("counts") == {"a": 2, "b": 2}
    assert total(site) == {(): (4,)}
    assert [tx.attempt for tx in site.ledger.transactions()] == [1, 1]


def test_swapped_lines_are_two_other_streams(store: SqliteState, tmp_path: Path) -> None:
    site = changed(processed(handed_on(store, "twice", "tenfold"), tmp_path), handed_on(store, "tenfold", "twice"))
    site.commit(2)
    with OpenStates(site.topology) as states:
        found = {name: dict(state.items())[()] for name, state in states.opened().items()}
    assert found == {"counts": (4,), "twice": (8,), "tenfold": (40,)}


CHANGES: dict[str, Callable[[SqliteState], tuple[Topology, Topology]]] = {
    "what leads to a state": lambda store: (totals(store, Sum()), totals(store, Sum(), below=3)),
    "the place of a state": lambda store: (totals(store, Sum()), totals(SqliteState(f"{store.path}-2"), Sum())),
    "how a spout describes itself": lambda store: (
        handed_on(store, "twice", kind=Described),
        handed_on(store, "twice", kind=Described),
    ),
    "a branch beside it": lambda store: (filtered(store, more=True), filtered(store, more=False)),
    "what follows a state": lambda store: (handed_on(store, "twice"), handed_on(store, "twice", looked_at=True)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_does_not_change_the_meaning_of_a_batch_leaves_it_as_it_was_staged(
    store: SqliteState, tmp_path: Path, change: str
) -> None:
    before, after = CHANGES[change](store)
    assert before.compile().digest != after.compile().digest
    site = changed(processed(before, tmp_path), after)
    assert replace(site.committer(), engine=no_engine).commit(2).committed == (1, 2)


@pytest.mark.parametrize("held", [True, False])
def test_what_a_state_may_have_is_not_emitted_again_by_another_plan(
    store: SqliteState, tmp_path: Path, held: bool
) -> None:
    """Until the file is as it was; or no state has the batch, and a person takes its commit back."""
    before = totals(store, Sum())
    site = processed(before, tmp_path, 1)
    ticket = single.gate(site.ledger, 1, owner="killed")
    if held:
        with OpenStates(before) as states:
            apply_batch(states.opened()["total"], ticket, site.committer()._staged(ticket)["total"])
    changed(site, totals(store, Max()))
    with pytest.raises(OtherPlanError, match=r"total was something else.*as it was.*take-back t 1"):
        site.committer().commit(1, take_over=True)
    (tx,) = site.ledger.transactions()
    assert (tx.status, tx.attempt, "something else" in tx.error) == (Status.COMMITTING, 0, True)
    if held:
        changed(site, before)
    else:
        take_back(site.ledger, site.topology, 1, owner="a person", reason="it is the old sum", progress=print)
        site.process(1)
    site.commit(1)
    assert total(site) == {(): (3 if held else 2,)}


def test_a_state_is_rebuilt_by_the_plan_of_today(tmp_path: Path) -> None:
    which = dict[str, int]()
    states = Versions(copies_in(tmp_path), which)
    site = processed(totals(states, Sum()), tmp_path)
    site.commit(2)
    changed(site, totals(states, Max()))
    which["total"] = 1
    rebuild(site).run(["total"])
    assert total(site) == {(): (4,)}
    which["counts"] = 1
    site.said.clear()
    rebuild(site).run(["counts"])
    assert site.content("counts") == {"a": 2, "b": 2}
    assert not [one for one in site.said if "replaying it" in one], "nothing has changed for this one"


def test_another_version_of_the_package_may_say_it_in_other_words() -> None:
    assert made_otherwise({"a": "1 x", "b": "1 x", "c": "1 x"}, {"a": "1 x", "b": "1 y", "c": "2 y", "d": "1 x"}) == [
        "b"
    ]


def test_the_names_of_nodes_that_move_when_a_line_is_added_say_nothing(store: SqliteState) -> None:
    def made(before: bool) -> dict[str, str]:
        topology = Topology("t")
        stream = numbers(topology)
        if before:
            stream.filter(col("n") > 0).group_by("word").persistent_aggregate(store, Count(), "more")
        counts = stream.group_by("word").persistent_aggregate(store, Count(), "counts")
        asked = stream.state_query(counts, "word", MapGet(), "found", after_commit=True)
        asked.partition_persist(store, "word, found", keys="word", name="kept")
        return topology.compile().made_by

    one, other = made(before=False), made(before=True)
    assert set(one.values()) < set(other.values())
