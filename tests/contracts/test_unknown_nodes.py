"""E6: a node that an engine does not know is refused before anything is read, and never passed by."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count, MemoryState, Topology
from airflow_trident.engine.engine import Engine, Job
from airflow_trident.engine.local import LocalEngine
from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.sessions.connect import ConnectSessions
from airflow_trident.engine.spark.sessions.local import LocalSessions
from airflow_trident.engine.spark.submit import DriverTags, SubmitEngine
from airflow_trident.errors import UnknownNodeError
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.plan.compile import compile_plan, compile_query
from airflow_trident.plan.graph import BeginNode, Node, OwnPassNode, ProcessorNode, SinkNode, ordered, rebuilt
from airflow_trident.plan.nodes import NewValuesNode, PeekNode, PersistNode, SourceNode
from airflow_trident.plan.stages import CommitLevel
from airflow_trident.protocol.records import NOTHING_STAGED, CommitTicket
from airflow_trident.runtime.downstream import apply_downstream
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.testing import MemoryLedger
from tests.fixtures.engine import JobOf, keep, lines
from tests.fixtures.plan import PaperState
from tests.fixtures.transform import orders


@dataclass(frozen=True, kw_only=True, eq=False)
class Loud(ProcessorNode):
    """What runs in one pass with others."""

    what = "loud"


@dataclass(frozen=True, kw_only=True, eq=False)
class Whole(BeginNode):
    """What begins a stage."""

    what = "whole"


@dataclass(frozen=True, kw_only=True, eq=False)
class Hushed(PeekNode):
    """What derives from a kind that is known, and is another one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Twice(OwnPassNode):
    """What brings its own part of a pass."""

    what = "twice"

    def run(self, keep: frozenset[str], context: OperationContext, frames: Iterator[Any]) -> Iterator[Any]:
        return (frame for frame in frames for _ in range(2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Thrice(Twice):
    """What derives from such a kind, and brings none itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(SinkNode):
    """Where tuples end."""

    what = "table"
    end = "to a table"


@dataclass(frozen=True, kw_only=True, eq=False)
class Stray(Node):
    """Nothing that stages are made of."""

    what = "stray"


def loud(node: Node) -> Node:
    return Loud(name="mine", schema=node.schema, inputs=(node,))


def whole(node: Node) -> Node:
    return Whole(name="mine", schema=node.schema, inputs=(node,))


def hushed(node: Node) -> Node:
    return Hushed(name="mine", schema=node.schema, inputs=(node,), reads=(), function=print)


def twice(node: Node) -> Node:
    return Twice(name="mine", schema=node.schema, inputs=(node,))


def thrice(node: Node) -> Node:
    return Thrice(name="mine", schema=node.schema, inputs=(node,))


def stray(node: Node) -> Node:
    return Stray(name="mine", schema=node.schema, inputs=(node,))


KINDS = {
    "a processor": loud,
    "a begin of a stage": whole,
    "one that derives from a known kind": hushed,
    "one that derives from a kind with a pass of its own": thrice,
}


def submitted(application: str, arguments: list[str], tags: DriverTags) -> None:
    raise AssertionError("it was submitted")


ENGINES: dict[str, Callable[[], Engine]] = {
    "local": LocalEngine,
    "spark": lambda: SparkEngine(LocalSessions("local[2]")),
    "connect": lambda: SparkEngine(ConnectSessions("sc://127.0.0.1:1")),  # where nobody listens
    "submit": lambda: SubmitEngine(submitted),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]()


def with_node(job: Job, make: Callable[[Node], Node], above: type[Node] = SourceNode) -> Job:
    """The job with one node more, behind the first node of a kind."""
    first = next(node for node in ordered(job.plan.sinks) if isinstance(node, above))

    def change(old: Node, node: Node) -> Node:
        return make(node) if old is first else node

    sinks = rebuilt(job.plan.sinks, change)
    sources = tuple(node for node in ordered(sinks) if isinstance(node, SourceNode))
    persists = tuple(sink for sink in sinks if isinstance(sink, PersistNode))
    return replace(job, plan=compile_plan(job.plan.topology, sources, persists))


def kept(topology: Topology) -> None:
    keep(lines(topology))


def counted_twice(topology: Topology) -> None:
    counts = lines(topology).group_by("line").persistent_aggregate(PaperState(), Count(), "n")
    counts.new_values_stream().persistent_aggregate(PaperState(), Count(), "changes")


def refused(engine: Engine, job: Job) -> UnknownNodeError:
    with pytest.raises(UnknownNodeError) as caught:
        engine.run(job)
    assert not Path(job.staging_root).exists()
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_that_the_engine_does_not_know_is_refused_before_anything_is_read(
    engine: Engine, kind: str, job_of: JobOf
) -> None:
    error = refused(engine, with_node(job_of(kept), KINDS[kind]))
    assert error.node == "mine"
    assert error.where in str(error)
    assert "Use an engine" in error.cure
    assert ("local" if engine.name == "local" else "Spark") in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_of_the_commit_phase_is_refused_before_the_processing_phase(
    engine: Engine, kind: str, job_of: JobOf
) -> None:
    error = refused(engine, with_node(job_of(counted_twice), KINDS[kind], above=NewValuesNode))
    assert error.node == "mine"
    assert "commit phase" in str(error)


def test_a_sink_that_the_engine_does_not_know_is_refused(engine: Engine, job_of: JobOf) -> None:
    job = job_of(kept)
    (stage,) = job.plan.stages
    table = Table(name="mine", schema=stage.schema, inputs=stage.sinks[0].inputs)
    assert (
        refused(engine, replace(job, plan=replace(job.plan, stages=(replace(stage, sinks=(table,)),)))).node == "mine"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_commit_phase_applies_nothing_of_a_level_with_an_unknown_node(kind: str, job_of: JobOf) -> None:
    """Also where the processing phase ran in a release that knew it."""
    plan = with_node(job_of(kept), KINDS[kind]).plan
    level = CommitLevel(new_values={}, carried=(), sinks=plan.sinks, stages=plan.stages)
    ticket = CommitTicket(topology="t", incarnation="i", txid=1, attempt=0, fence=1, position={}, staged=NOTHING_STAGED)
    applied: list[str] = []
    with pytest.raises(UnknownNodeError):
        apply_downstream(
            replace(plan, commit=(level,)),
            ticket,
            {},
            {},
            lambda name, _: applied.append(name),
            lambda _: None,
        )
    assert applied == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_with_an_unknown_node_has_no_answer(kind: str, job_of: JobOf) -> None:
    job = job_of(kept)
    (source,) = job.plan.sources
    with pytest.raises(UnknownNodeError):
        dict(LocalEngine().tables(replace(job, plan=compile_query("t", source, KINDS[kind](source)))))


def test_a_node_that_brings_its_own_pass_runs_although_no_engine_knows_it(job_of: JobOf) -> None:
    job = job_of(kept)
    (source,) = job.plan.sources

    def rows(node: Node) -> int:
        tables = LocalEngine().tables(replace(job, plan=compile_query("t", source, node)))
        return sum(table.num_rows for _, table in tables)

    assert rows(twice(source)) == 2 * rows(source) > 0


def test_what_no_stage_can_be_made_of_is_refused_where_the_topology_is_built(job_of: JobOf) -> None:
    with pytest.raises(UnknownNodeError, match="the compiler does not know what to do with node 'mine' \\(Stray\\)"):
        with_node(job_of(kept), stray)


def test_the_local_engine_refuses_a_transform_with_the_cure_and_commits_nothing(tmp_path: Path) -> None:
    topology = Topology("local")
    days = orders(topology).transform(lambda frame: frame, "cust int, cents int, day string").group_by("day")
    days.persistent_aggregate(MemoryState(), Count(), "n")
    with MemoryLedger("local") as ledger:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(), staging_root=str(tmp_path))
        with pytest.raises(UnknownNodeError, match=r"the local engine.*transform-1.*engine='spark'"):
            runner.run()
    assert not any(files for _, _, files in os.walk(tmp_path))
