"""Golden plans: one file per verb and shape, as a person reads them.

A change of a plan shows as a difference in `tests/golden/plans`. After looking at it, write the new ones with
``UPDATE_GOLDEN=1 pytest tests/unit/test_plan_golden.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_trident import Count, Sum, Topology
from airflow_trident.operations.expressions import col, explode, split
from airflow_trident.plan.explain import explain
from airflow_trident.topology.stream import Stream
from tests.plan_fixtures import Joined, Longer, Longest, PaperSpout, PaperState, Split, letters, shout

GOLDEN = Path(__file__).parent.parent / "golden" / "plans"


def persist(stream: Stream, name: str = "n") -> None:
    stream.persistent_aggregate(PaperState(), Count(), name)


def lines(topology: Topology, name: str = "lines") -> Stream:
    return topology.new_stream(name, PaperSpout())


def several_states(topology: Topology) -> None:
    words = lines(topology).name("words").each("line", Split(), "word")
    words.group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    words.filter("word", Longer()).persistent_aggregate(PaperState(), Count(), "long_words")


def several_streams(topology: Topology) -> None:
    persist(lines(topology, "a"), "from_a")
    persist(lines(topology, "b"), "from_b")


SHAPES: dict[str, Callable[[Topology], None]] = {
    "word_count": lambda t: _none(
        lines(t).each("line", Split(), "word").group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    ),
    "each_expression": lambda t: persist(lines(t).each(explode(split(col("line"), " ")), "word")),
    "filter": lambda t: persist(lines(t).filter("line", Longer()).filter(col("line") != "")),
    "map": lambda t: persist(lines(t).map(shout)),
    "flat_map": lambda t: persist(lines(t).flat_map(letters, "letter")),
    "project": lambda t: persist(lines(t).each("line", Split(), "word").project("word")),
    "partition_by": lambda t: persist(lines(t).partition_by("line").filter("line", Longer())),
    "shuffle": lambda t: persist(lines(t).shuffle().shuffle()),
    "aggregate": lambda t: _none(
        lines(t).aggregate(Count(), "n").persistent_aggregate(PaperState(), "n", Sum(), "all")
    ),
    "group_by_aggregate": lambda t: persist(lines(t).group_by("line").aggregate("line", Longest(), "longest")),
    "reducer": lambda t: _none(
        lines(t)
        .group_by("line")
        .aggregate("line", Joined(), "j")
        .persistent_aggregate(PaperState(), "j", Joined(), "all")
    ),
    "partition_persist": lambda t: _none(
        lines(t).each("line", Split(), "word").partition_persist(PaperState(), "word, line", keys="word")
    ),
    "several_states": several_states,
    "several_streams": several_streams,
}


def _none(_: object) -> None:
    return None


def topology_of(shape: str) -> Topology:
    topology = Topology(shape)
    SHAPES[shape](topology)
    return topology


@pytest.mark.parametrize("format", ["text", "mermaid"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_plan_of_each_shape_is_the_golden_one(shape: str, format: str) -> None:
    path = GOLDEN / f"{shape}.{'txt' if format == 'text' else 'mmd'}"
    plan = explain(topology_of(shape).compile(), format)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(plan)
    assert plan == path.read_text()


def test_every_golden_file_has_a_shape() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(SHAPES)


def test_the_digest_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from tests.unit.test_plan_golden import topology_of; print(topology_of('several_states').compile().digest)"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(root)},
    )
    assert done.stdout.strip() == topology_of("several_states").compile().digest


@pytest.mark.parametrize("shape", SHAPES)
def test_each_stage_comes_after_its_upstream_and_every_sink_is_staged_once(shape: str) -> None:
    plan = topology_of(shape).compile()
    assert all(upstream < stage.index for stage in plan.stages for upstream in stage.upstreams)
    staged = [sink.name for stage in plan.stages for sink in stage.sinks]
    assert sorted(staged) == sorted(sink.name for sink in plan.sinks)
    assert all((stage.source is None) != (not stage.upstreams) for stage in plan.stages)
