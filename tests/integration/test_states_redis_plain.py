"""A map in Redis that knows of no transactions: plain for others, in both layouts, at least once in a topology."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, SqliteState, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    ConfigurationError,
    LedgerBehindStateError,
    PlanError,
    StoreUnavailableError,
    UserCodeError,
)
from airflow_trident.ledger.ledger import MemoryLedger, ZNodeLedger
from airflow_trident.ledger.memory_znodes import MemoryTree, MemoryZNodes
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.repair import repair
from airflow_trident.states import NonTransactionalRedisState
from tests.fixtures.redis import Server, own_server
from tests.fixtures.state import batch, combined, content, counts, product, ticket

LAYOUTS = ("hash", "string")


def stored(client: Any, layout: str, name: str = "n") -> dict[str, str]:
    if layout == "hash":
        return dict(client.hgetall(name))
    return {key.removeprefix(f"{name}:"): client.get(key) for key in client.scan_iter(f"{name}:*")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_the_map_is_there_and_others_may_add_to_it(where: Any, client: Any, layout: str) -> None:
    spec = counts(NonTransactionalRedisState(**where, key="n", layout=layout))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2), ("b", 1), ("a", 3)))
        client.hincrby("n", "a", 100) if layout == "hash" else client.incrby("n:a", 100)
        state.apply(ticket(2), batch(spec, ("a", -1)))
        assert content(state) == {("a",): (104,), ("b",): (1,)}
        assert state.get_many([("b",), ("c",)]) == [(1,), None]
        assert state.count() == 2
        assert state.marker() is None
    assert stored(client, layout) == {"a": "104", "b": "1"}
    assert client.dbsize() == (1 if layout == "hash" else 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_aggregators_read_merge_and_write_and_an_updater_removes(where: Any, client: Any, layout: str) -> None:
    factory = NonTransactionalRedisState(**where, key="n", layout=layout)
    spec = product(factory)
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, ("a", 3), ("b", 5)))
        assert content(state) == {("a",): (9,), ("b",): (25,)}
    spec = replace(
        combined(factory, "word string", "n long"),
        updater=lambda state, rows: state.multi_remove([(word,) for word, _ in rows]),
    )
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(3), batch(spec, ("a", 0), ("z", 0)))
    assert stored(client, layout) == {"b": "25"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sum_that_overflows_is_an_error_that_names_the_field(where: Any, layout: str) -> None:
    spec = combined(NonTransactionalRedisState(**where, layout=layout), "word string", "total long", Sum())
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 2**63 - 1)))
        with pytest.raises(UserCodeError, match="total is beyond"):
            state.apply(ticket(2), batch(spec, ("a", 1)))
        assert content(state) == {("a",): (2**63 - 1,)}


def word_count(factory: NonTransactionalRedisState, name: str = "words") -> Topology:
    topology = Topology(name, exactly_once=False)
    words = topology.new_stream("words", FixedBatchSpout("word string", ["a", "b", "a"], 2))
    words.group_by("word").persistent_aggregate(factory, Count(), "n")
    return topology


def test_two_topologies_count_into_one_map(where: Any, client: Any, tmp_path: Path) -> None:
    for name in ("one", "two"):
        with MemoryLedger(name) as ledger:
            topology = word_count(NonTransactionalRedisState(**where, key="n"), name)
            LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path)).run()
    assert stored(client, "hash") == {"a": "4", "b": "2"}


def test_repair_asks_the_states_that_know_what_they_hold(where: Any, tmp_path: Path) -> None:
    topology = word_count(NonTransactionalRedisState(**where))
    kept = SqliteState(str(tmp_path / "words.db"))
    topology.new_stream("more", FixedBatchSpout("word string", ["a"])).group_by("word").persistent_aggregate(
        kept, Count(), "m"
    )

    def run(tree: MemoryTree) -> list[int]:
        with ZNodeLedger(MemoryZNodes(tree), "words") as ledger:
            return LocalRunner(
                ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path / "staging")
            ).run()

    done, wiped = run(MemoryTree()), MemoryTree()
    with pytest.raises(LedgerBehindStateError):
        run(wiped)
    with ZNodeLedger(MemoryZNodes(wiped), "words") as ledger:
        assert (
            repair(ledger, topology, str(tmp_path / "staging"), take_over="the ledger was deleted").committed
            == done[-1]
        )
    assert run(wiped) == []


def test_it_is_refused_where_exactly_once_is_promised(where: Any) -> None:
    words = Topology("words").new_stream("words", FixedBatchSpout("word string", ["a"])).group_by("word")
    with pytest.raises(PlanError, match=r"NonTransactionalRedisState\(.*\) is non-transactional.*exactly_once=False"):
        words.persistent_aggregate(NonTransactionalRedisState(**where), Count(), "n")


@pytest.mark.parametrize(("options", "said"), [({"layout": "list"}, "no layout 'list'"), ({"key": ""}, "empty key")])
def test_settings_that_cannot_be_are_refused_when_the_dag_is_built(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        NonTransactionalRedisState(**options)


def test_a_server_that_is_gone_is_said_and_tried_again_by_the_task(tmp_path: Path) -> None:
    with own_server(tmp_path) as server:
        assert isinstance(server, Server)
        spec = counts(NonTransactionalRedisState(host="127.0.0.1", port=server.port, timeout_s=1))
        with spec.factory.make_state(spec) as state:
            state.apply(ticket(1), batch(spec, ("a", 1)))
            server.kill()
            with pytest.raises(StoreUnavailableError):
                state.apply(ticket(2), batch(spec, ("a", 1)))
            server.start()
            state.apply(ticket(2), batch(spec, ("a", 1)))
            assert content(state) == {("a",): (2,)}
