"""A name of several parts belongs to one tuple of parts, in every place that makes such names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, Topology
from airflow_trident.contracts.state import StateSpec
from airflow_trident.engine.spark.submit import label
from airflow_trident.engine.spark.workers import NOTES
from airflow_trident.errors import PlanError
from airflow_trident.names import Composed, require_name
from airflow_trident.plan.show.explain import _IDENTIFIERS
from airflow_trident.plugin.airflow_runs import _RUNS
from airflow_trident.protocol.records import claim_key
from airflow_trident.runtime.drains.order import _NAMES as DRAINS
from airflow_trident.states.core.checks import _APPLICATIONS, application_of, file_names, key_of
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.states.keyvalue.base import namespace_of
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.sql.table_names import TABLES, default_table
from airflow_trident.task_group import _GROUPS
from tests.fixtures.source import tree_of
from tests.fixtures.state import counts

PACKAGE = Path(__file__).parents[2] / "airflow_trident"
RULES = {
    "tables": TABLES,
    "folders of tables": file_names("_"),
    "files of sinks": file_names("-", beside=60),
    "applications": _APPLICATIONS,
    "notes of workers": NOTES,
    "orders of drains": DRAINS,
    "runs of the page": _RUNS,
    "identifiers of drawings": _IDENTIFIERS,
    "task groups": _GROUPS,
}
GIVEN_BY_USERS = {
    *("topology", "topology_name", "name", "state", "stream", "stream_id", "component", "task_id", "dag_id", "run_id"),
    *("label", "table", "output", "sink"),
}
"""Nouns of variables that hold such names."""
UNIQUE = {
    "operators/base.py": "{me.dag_id}/{me.run_id}/{me.task_id}/{me.map_index}/{kind}: only a run id may have slashes",
    "protocol/records.py": "{dag_id}:{task_id}:{map_index}:{index}:{run_id}: only a run id may have colons",
    "plan/nodes.py": "{name}={one.name}: for people",
    "sensors/turn.py": "{dag_id}{self.task_id}{text}{...}: asks only whether all of it is ASCII",
    "storm/compiling.py": "{outputs.component}.{stream}: a name in a plan, for people",
}
"""Files that join names by themselves, and why no two things get one name there."""


def _parts(characters: str, longest: int) -> list[str]:
    return ["".join(some) for size in range(longest + 1) for some in product(characters, repeat=size)]


def _tuples(characters: str) -> Iterator[tuple[str, ...]]:
    """All short tuples of short parts: where a part ends is what names are mistaken for."""
    for parts, sizes in ((_parts(characters, 3), (1, 2)), (_parts(characters, 1), (3, 4))):
        for size in sizes:
            yield from product(parts, repeat=size)


def _as_the_place_sees(rules: Composed, name: str) -> str:
    return name if rules.has_case else name.lower()


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_all_short_parts_have_names_of_their_own(rules: Composed) -> None:
    owners: dict[str, tuple[str, ...]] = {}
    for parts in _tuples(f"aA/{rules.joint[0]}"):
        name = rules.of(*parts)
        assert owners.setdefault(_as_the_place_sees(rules, name), parts) == parts
        assert 0 < len(name) <= rules.longest
        assert not rules.is_reserved(name)
        assert re.fullmatch(f"[{re.escape(rules.joint[0])}{rules.characters}]+", name)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
@given(parts=st.lists(st.text(max_size=300), min_size=1, max_size=4), data=st.data())
@example(parts=["trident", "applied"], data=None)
@example(parts=["sqlite", "sequence"], data=None)
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_name_have_another_name_together(rules: Composed, parts: list[str], data: st.DataObject) -> None:
    """A name may be given as the name of something else."""
    name = rules.of(*parts)
    assert len(name) <= rules.longest
    assert not rules.is_reserved(name)
    assert name == rules.of(*parts)
    for others in (name.split(rules.joint), name.rsplit(rules.joint, 1), name.split(rules.joint, 1), [name, ""]):
        if others != parts:
            assert _as_the_place_sees(rules, rules.of(*others)) != _as_the_place_sees(rules, name)


def test_plain_names_are_joined_and_only_a_part_with_the_joint_changes_that() -> None:
    assert TABLES.of("words", "counts") == "words_counts"
    assert TABLES.of("word_count", "by_day") == "word_count__by_day"
    assert file_names("-").of("word_count", "counts") == "word_count-counts"
    assert _GROUPS.of("word_count") == "word_count"
    assert _RUNS.of("page", "backfill", "words", "3-7") == "page__backfill__words__3-7"


SPEC = counts(MemoryState())
LAKE = DeltaState("/lake")
NAMES = [name for name in _parts("aB_-.0", 3) if name[:1].isalpha()]
PLACES: dict[str, Callable[[StateSpec], str]] = {
    "a table": lambda spec: default_table(spec).lower(),
    "a folder of a table": lambda spec: LAKE.table_name(spec).lower(),
    "a key": key_of,
    "an application": application_of,
    "a namespace": lambda spec: namespace_of(key_of(spec), 0),
    "a claim": lambda spec: claim_key(spec.topology, spec.name, f"{spec.name}:1/{spec.topology}", 1, 1),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_any_two_names_of_topology_and_state_make_a_place_of_their_own(place: Callable[[StateSpec], str]) -> None:
    owners: dict[str, tuple[str, str]] = {}
    for topology, name in product(NAMES, repeat=2):
        spec = replace(SPEC, topology=require_name("topology", topology), name=require_name("state", name))
        assert owners.setdefault(place(spec), (topology, name)) == (topology, name)


@given(names=st.lists(st.text(st.sampled_from("aB_-.0f"), max_size=70), min_size=2, max_size=2, unique=True))
@example(names=["ab/c", f"ab-c-{label('ab/c')[-16:]}"])
def test_two_names_have_two_labels(names: list[str]) -> None:
    first, second = names
    assert label(first) != label(second)


@pytest.mark.parametrize("stream", ["project-1", "aggregate-2", "aggregate-2.partial", "aggregate-2.final"])
def test_a_stream_with_the_name_of_another_node_is_refused(stream: str) -> None:
    """Settings are found, and rows are handed to the commit phase, under the names of nodes."""
    topology = Topology("t")
    lines = topology.new_stream(stream, FixedBatchSpout("line string, n long", [("a", 1)], 1)).parallelism_hint(3)
    lines.project("line").group_by("line").persistent_aggregate(MemoryState(), Count(), "count")
    with pytest.raises(PlanError, match=f"two nodes '{stream}'.*another name"):
        topology.compile()


def test_a_stream_whose_name_ends_as_that_of_a_step_has_its_own_parallelism() -> None:
    topology = Topology("t")
    lines = topology.new_stream("lines.partial", FixedBatchSpout("line string", [("a",)], 1)).parallelism_hint(3)
    lines.group_by("line").persistent_aggregate(MemoryState(), Count(), "count")
    assert topology.compile().stages[0].partitions == 3


def test_no_code_joins_names_by_itself() -> None:
    joins: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.JoinedStr) and _joins_names(node):
                joins.setdefault(path.relative_to(PACKAGE).as_posix(), set()).add(ast.unparse(node))
    assert set(joins) == set(UNIQUE), f"make these names by airflow_trident.names.Composed: {joins}"
    assert all(len(texts) == 1 for texts in joins.values()), joins


def _joins_names(text: ast.JoinedStr) -> bool:
    """Do only signs stand between two or more names that users give?"""
    literal = "".join(str(part.value) for part in text.values if isinstance(part, ast.Constant))
    values = [part.value for part in text.values if isinstance(part, ast.FormattedValue) and part.conversion == -1]
    return not re.search(r"\s", literal) and sum(_noun(value) in GIVEN_BY_USERS for value in values) > 1


def _noun(value: ast.expr) -> str:
    match value:
        case ast.Attribute(attr=noun) | ast.Name(id=noun):
            return noun
        case _:
            return ""
