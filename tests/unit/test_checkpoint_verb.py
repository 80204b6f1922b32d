"""`stream.stateful(...)`: what it plans, and every mistake on the user's line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_trident import Count, KeyValueStates, MemoryState, StatefulFunction, Stream, Topology
from airflow_trident.errors import ConfigurationError, FieldError, PlanError
from airflow_trident.plan.show.explain import explain
from tests.fixtures.plan import PaperSpout

STATES = KeyValueStates("memory")


class Visits(StatefulFunction[str, int]):
    def init_state(self, state: Any) -> None:
        self.state = state

    def execute(self, user: str, page: str) -> None:
        self.state.put(user, self.state.get(user, 0) + 1)


def stream() -> Stream:
    return Topology("site").new_stream("visits", PaperSpout("user string, page string, ms long"))


def test_a_stateful_node_is_a_sink_with_its_inputs_staged_and_its_partitions_in_the_definition() -> None:
    made = Topology("site")
    visits = made.new_stream("visits", PaperSpout("user string, page string, ms long"))
    state = visits.stateful("user, page", Visits(), provider=STATES, keys="user", partitions=4)
    assert state.name == "Visits"
    assert {name: str(one) for name, one in made.definition().states.items()} == {
        "Visits": "KeyValueStates(memory default) (user string) by Visits in 4 partitions of (user, page)"
    }
    assert not state.spec.commutes
    plan = made.compile()
    assert [sink.schema for sink in plan.sinks] == [state.spec.staged]
    assert "=> staged for state Visits (user string, page string)" in explain(plan)


def test_one_partition_needs_no_keys_and_a_name_can_be_given() -> None:
    state = stream().stateful("user, page", Visits(), provider=STATES, name="visits")
    assert (state.name, state.spec.keys) == ("visits", ())
    assert state.spec.describe().endswith("() by Visits in 1 partition")


class Yields(Visits):
    def execute(self, user: str, page: str) -> Iterator[str]:  # type: ignore[override]
        yield user


class Awaits(Visits):
    async def execute(self, user: str, page: str) -> None:  # type: ignore[override]
        pass


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Visits, "stateful got Visits. Give an object"),
        (lambda user: None, "Give an object of a subclass of StatefulFunction"),
        (Yields(), r"Yields.execute\(\) yields"),
        (Awaits(), r"Awaits.execute\(\), which is async"),
    ],
)
def test_what_cannot_run_is_refused(function: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        stream().stateful("user, page", function, provider=STATES)


@pytest.mark.parametrize("arguments", [{"partitions": 2}, {"partitions": 0}, {"partitions": -1, "keys": "user"}])
def test_partitions_need_keys_and_are_one_at_least(arguments: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="partitions and"):
        stream().stateful("user, page", Visits(), provider=STATES, **arguments)


def test_inputs_are_fields_of_the_stream_and_keys_are_inputs() -> None:
    with pytest.raises(FieldError, match="no field 'usr'"):
        stream().stateful("usr", Visits(), provider=STATES)
    with pytest.raises(FieldError, match="stateful keys: no field 'ms'"):
        stream().stateful("user, page", Visits(), provider=STATES, keys="ms")


def test_stateful_functions_and_key_value_states_belong_together() -> None:
    with pytest.raises(PlanError, match=r"state 'Visits' cannot be kept in MemoryState\(default\)"):
        stream().stateful("user, page", Visits(), provider=MemoryState())
    with pytest.raises(PlanError, match="state 'n' cannot be kept in KeyValueStates"):
        stream().group_by("user").persistent_aggregate(STATES, Count(), "n")
    with pytest.raises(PlanError, match="cannot be kept in KeyValueStates"):
        stream().partition_persist(STATES, "user, page", keys="user")
    with pytest.raises(PlanError, match="is no state"):
        stream().stateful("user, page", Visits(), provider="memory")  # type: ignore[arg-type]


def test_a_spec_without_a_function_opens_no_key_value_states() -> None:
    spec = stream().group_by("user").persistent_aggregate(MemoryState(), Count(), "n").spec
    with pytest.raises(ConfigurationError, match="state 'n' has none"):
        STATES.make_state(spec)
