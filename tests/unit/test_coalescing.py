"""Which plans are processed and committed in groups, and what a person is told where one is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, FixedBatchSpout, Max, MemoryState, SqliteState, Sum, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import ConfigurationError
from airflow_trident.functions import MapGet, MaxBy
from airflow_trident.operations.expressions import col, explode, split_words
from airflow_trident.plan.show.explain import explain
from airflow_trident.plan.stages import Coalesces, Coalescing
from airflow_trident.staging.manifest import Manifest
from tests.fixtures.plan import Longest, PaperState

Build = Callable[[Topology, Any], None]


class OpaqueRows(FixedBatchSpout):
    opaque = True


def _of(build: Build) -> Coalesces:
    topology = Topology("any")
    stream = topology.new_stream("lines", FixedBatchSpout("line string, n long, x double", [("a b", 1, 0.5)]))
    build(topology, stream)
    return topology.compile().coalesces


def _words(stream: Any) -> Any:
    return stream.each(explode(split_words(col("line"))), "word")


def _counted(topology: Topology, stream: Any) -> None:
    _words(stream).group_by("word").persistent_aggregate(_store(), Count(), "n")


def _store(name: str = "s") -> SqliteState:
    return SqliteState(f"/tmp/{name}.db")


def _by_function(topology: Topology, stream: Any) -> None:
    stream.each("line", _split, "word string").group_by("word").persistent_aggregate(_store(), Count(), "n")


def _split(line: str) -> Iterator[str]:
    yield from line.split()


def _two_states(topology: Topology, stream: Any) -> None:
    stream.group_by("line").persistent_aggregate(_store(), "n", Sum(), "n")
    stream.persistent_aggregate(_store(), "n", Max(), "most")


def _queried(topology: Topology, stream: Any) -> None:
    words = stream.sql("SELECT line FROM {lines}", "line string")
    words.group_by("line").persistent_aggregate(_store(), Count(), "n")
    stream.transform(_same, "line string").group_by("line").persistent_aggregate(_store("t"), Count(), "m")


@pytest.mark.parametrize("build", [_counted, _by_function, _two_states, _queried])
def test_exact_built_ins_without_a_commit_phase_are_merged_by_key(build: Build) -> None:
    assert _of(build) == Coalesces(how=Coalescing.BY_KEY, why="", commits=True, why_one="")


def _reals(topology: Topology, stream: Any) -> None:
    stream.group_by("line").persistent_aggregate(_store(), "x", Sum(), "x")


def _rows(topology: Topology, stream: Any) -> None:
    stream.partition_persist(_store(), "n, line", keys="n", order_by="n", name="rows")


def _of_counts(topology: Topology, stream: Any) -> None:
    counts = stream.group_by("line").aggregate(Count(), "m")
    counts.group_by("m").persistent_aggregate(_store(), Count(), "lines")


def _best(topology: Topology, stream: Any) -> None:
    best = stream.group_by("n").aggregate("line, x", MaxBy(), "best")
    best.partition_persist(_store(), "n, best", keys="n", name="best")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (_best, "state best is not merged by exact built-ins"),
        (_reals, "state x is not merged by exact built-ins"),
        (_of_counts, "aggregate-1.final counts within one batch"),
    ],
)
def test_what_is_not_the_same_merged_keeps_its_rows_apart(build: Build, why: str) -> None:
    assert _of(build) == Coalesces(how=Coalescing.BY_TRANSACTION, why=why, commits=True, why_one="")


def _new_values(topology: Topology, stream: Any) -> None:
    counts = stream.group_by("line").persistent_aggregate(_store(), Count(), "n")
    counts.new_values_stream().group_by("n").persistent_aggregate(_store("t"), Count(), "lines")


def _no_groups(topology: Topology, stream: Any) -> None:
    stream.group_by("line").persistent_aggregate(PaperState(), Count(), "n")


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (_new_values, "the commit phase goes on behind a state"),
        (_no_groups, "state n takes one transaction at a time"),
    ],
)
def test_what_is_committed_one_by_one_may_be_processed_together(build: Build, why: str) -> None:
    assert _of(build) == Coalesces(how=Coalescing.BY_TRANSACTION, why=why, commits=False, why_one=why)


def _combiner(topology: Topology, stream: Any) -> None:
    stream.group_by("n").persistent_aggregate(_store(), "line", Longest(), "longest string")


def _shuffled(topology: Topology, stream: Any) -> None:
    moved = stream.shuffle().each("line", _split, "word string")
    moved.group_by("word").persistent_aggregate(_store(), Count(), "n")


def _asked(topology: Topology, stream: Any) -> None:
    counts = topology.new_static_state(_store(), "n", keys="line string", values="m long", topology="other")
    asked = stream.state_query(counts, "line", MapGet(), "m")
    asked.group_by("m").persistent_aggregate(_store(), Count(), "lines")


def _asked_behind(topology: Topology, stream: Any) -> None:
    words = stream.sql("SELECT line FROM {lines}", "line string").each("line", _split, "word string")
    words.group_by("word").persistent_aggregate(_store(), Count(), "n")


def _parted(topology: Topology, stream: Any) -> None:
    """A function of a tuple, and a transform, of the same stream."""
    stream.transform(_same, "line string").group_by("line").persistent_aggregate(_store("t"), Count(), "m")
    _by_function(topology, stream)


def _made_twice(topology: Topology, stream: Any) -> None:
    """A transform takes what a transform made, and so does a state."""
    made = stream.transform(_same, "line string")
    made.group_by("line").persistent_aggregate(_store(), Count(), "n")
    made.transform(_same, "line string").group_by("line").persistent_aggregate(_store("t"), Count(), "m")


def _same(frame: Any) -> Any:
    return frame.select("line")


def _newest(topology: Topology, stream: Any) -> None:
    _rows(topology, stream)


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (_combiner, "aggregate-1.final runs behind a repartition"),
        (_shuffled, "each-2 runs behind a repartition"),
        (_asked, "state_query-1 asks a state"),
        (_newest, "runs behind a repartition"),
        (_asked_behind, "each-2 runs behind a transform"),
        (_parted, "each-3 runs on what a transform takes, too"),
        (_made_twice, "several take what comes out of transform-1, one of them a transform"),
    ],
)
def test_what_would_notice_its_neighbours_has_a_pass_of_its_own(build: Build, why: str) -> None:
    found = _of(build)
    assert found.how is Coalescing.NO
    assert why in found.why
    assert found.commits


def test_an_opaque_spout_goes_one_by_one() -> None:
    topology = Topology("any")
    stream = topology.new_stream("lines", OpaqueRows("line string", ["a"]))
    stream.group_by("line").persistent_aggregate(_store(), Count(), "n")
    found = topology.compile().coalesces
    assert str(found) == "processed one by one, committed one by one (stream lines is opaque)"


def test_the_plan_says_it_to_people() -> None:
    topology = Topology("any")
    _counted(topology, topology.new_stream("lines", FixedBatchSpout("line string", ["a"])))
    assert "\ngroups of transactions: processed by key, committed in one step\n" in explain(topology.compile())


class Alone(Engine):
    name = "alone"

    def run(self, job: Job) -> Manifest:
        raise NotImplementedError


def test_an_engine_that_knows_no_groups_says_so(tmp_path: Path) -> None:
    topology = Topology("any")
    stream = topology.new_stream("lines", FixedBatchSpout("line string", ["a"]))
    stream.group_by("line").persistent_aggregate(MemoryState(), Count(), "n")
    plan = topology.compile()
    assert LocalEngine().coalesces(plan) is plan.coalesces
    found = Alone().coalesces(plan)
    assert (found.how, found.why) == (Coalescing.NO, "engine alone takes one transaction at a time")
    with pytest.raises(ConfigurationError, match="engine alone takes one transaction at a time"):
        Alone().run_group([])
