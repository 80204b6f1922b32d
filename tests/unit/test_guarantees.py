"""Which spouts and states go together, on the user's line, and in the documentation."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_trident import Count, DeltaTable, IcebergTable, MemoryState, SqliteState, Topology
from airflow_trident.contracts.state import Capabilities, StateKind
from airflow_trident.errors import PlanError
from airflow_trident.plan.checks import EXACTLY_ONCE
from airflow_trident.plan.show.explain import explain
from airflow_trident.plugin.page_data import summary
from airflow_trident.protocol.diagnosis import Evidence
from airflow_trident.protocol.records import CommitPointer, Exceptions, LedgerView, TopologyRecord
from airflow_trident.protocol.spout_kinds import SpoutKind
from tests.fixtures.plan import PaperSpout, PaperState

DOCS = Path(__file__).parents[2] / "docs"
PAIRS = [(spout, state) for spout in SpoutKind for state in StateKind]
CAPABILITIES = {
    StateKind.NON_TRANSACTIONAL: Capabilities(durable=True, atomic=False),
    StateKind.TRANSACTIONAL: Capabilities(durable=True, atomic=True),
    StateKind.OPAQUE: Capabilities(durable=True, atomic=True, opaque=True),
}


@dataclass(frozen=True)
class Store(PaperState):
    kind: StateKind = StateKind.TRANSACTIONAL

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        return CAPABILITIES[self.kind]

    def describe(self) -> str:
        return f"Store({self.kind})"


class Source(PaperSpout):
    def __init__(self, kind: SpoutKind) -> None:
        super().__init__("word string")
        self._kind = kind

    @property
    def kind(self) -> SpoutKind:
        return self._kind

    def describe(self) -> str:
        return f"Source({self.kind})"


def build(spout: SpoutKind, state: StateKind, **options: bool) -> Topology:
    made = Topology("pair", **options)
    made.new_stream("words", Source(spout)).group_by("word").persistent_aggregate(Store(kind=state), Count(), "count")
    return made


@pytest.mark.parametrize("kind", StateKind)
def test_the_kind_of_a_state_follows_from_what_its_store_can_do(kind: StateKind) -> None:
    assert CAPABILITIES[kind].kind is kind
    assert replace(CAPABILITIES[kind], opaque=True).kind is not StateKind.TRANSACTIONAL
    assert SqliteState("x.db").capabilities.kind is MemoryState().capabilities.kind is StateKind.OPAQUE


@pytest.mark.parametrize(("spout", "state"), PAIRS)
def test_a_pair_is_exactly_once_or_refused_with_both_names_and_the_cure(spout: SpoutKind, state: StateKind) -> None:
    if (spout, state) in EXACTLY_ONCE:
        made = build(spout, state)
        assert made.shortfalls == ()
        assert "exactly once" not in explain(made.compile()) + str(made.definition())
        return
    with pytest.raises(PlanError) as caught:
        build(spout, state)
    text = str(caught.value)
    assert "stream 'words' and state 'count' of topology 'pair' are not exactly once together" in text
    assert f"Source({spout}) is {spout}, Store({state}) is {state}" in text
    assert text.endswith("Or say that it need not be: Topology('pair', exactly_once=False).")
    assert caught.value.cure.startswith("Put a SpooledSpout" if spout is SpoutKind.NON_TRANSACTIONAL else "Use a")


def test_a_stream_that_comes_after_the_state_is_refused_on_its_own_line() -> None:
    made = build(SpoutKind.TRANSACTIONAL, StateKind.TRANSACTIONAL)
    with pytest.raises(PlanError, match="stream 'more' and state 'count'"):
        made.new_stream("more", Source(SpoutKind.OPAQUE))
    assert list(made.spouts) == ["words"]


TABLES = {
    "DeltaTable": DeltaTable("/lake/words"),
    "IcebergTable": IcebergTable("sales.words", catalog="lake"),
}


@pytest.mark.parametrize("table", TABLES)
def test_an_opaque_spout_before_a_table_is_refused_when_the_topology_is_built(table: str) -> None:
    """A committed file is not taken back, so what another attempt gave could be there beside it."""
    made = Topology("pair").new_stream("words", Source(SpoutKind.OPAQUE))
    with pytest.raises(PlanError, match=rf"Source\(opaque\) is opaque, {table}.* is transactional") as caught:
        made.persist_table(TABLES[table])
    assert "a transactional spout" in caught.value.cure


@pytest.mark.parametrize(("spout", "state"), [pair for pair in PAIRS if pair not in EXACTLY_ONCE])
def test_what_is_allowed_without_the_promise_is_shown_in_plan_definition_and_page(
    spout: SpoutKind, state: StateKind
) -> None:
    made = build(spout, state, exactly_once=False)
    note = f"not exactly once: state count with stream words: Source({spout}) is {spout}, Store({state}) is {state}"
    assert note in explain(made.compile())
    assert made.compile().notes[0].startswith(note)
    record = TopologyRecord(name="pair", incarnation="abc", definition=made.definition())
    view = LedgerView(
        topology=record,
        next_txid=1,
        pointer=CommitPointer(committed=0, fence=0),
        exceptions=Exceptions(),
        tx=None,
    )
    shown = summary(Evidence(view=view), visible=True)
    assert shown["notes"] == [f"State count is not exactly once: stream words is {spout}, the state {state}."]


@pytest.mark.parametrize("page", ["concepts/exactly-once.md", "reference/states.md"])
def test_the_table_in_the_documentation_is_the_one_that_is_checked(page: str) -> None:
    rows = re.findall(r"^\| (\S+) spout \| (.+) \|$", (DOCS / page).read_text(), re.MULTILINE)
    written = {
        (SpoutKind(spout), state)
        for spout, cells in rows
        for state, cell in zip(StateKind, cells.split(" | "), strict=True)
        if cell == "**exactly once**"
    }
    assert len(rows) == len(SpoutKind)
    assert written == EXACTLY_ONCE
