"""Golden plans: one file per verb and shape, as a person reads them.

A change of a plan shows as a difference in `tests/golden/plans`. `make golden` writes them again, where a
plan was meant to change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from airflow_trident import (
    Aggregator,
    Count,
    CustomGrouping,
    DeltaTable,
    GroupedMultiReducer,
    MultiReducer,
    Sum,
    Topology,
    storm,
)
from airflow_trident.functions import Debug, FirstN, Negate, check, expect
from airflow_trident.operations.expressions import col, explode, split
from airflow_trident.operations.interfaces import Collector
from airflow_trident.plan.graph import Grouping, Sinks, ordered, same
from airflow_trident.plan.nodes import PartitionNode, PersistNode
from airflow_trident.plan.rewrites.pushdown import REWRITES
from airflow_trident.plan.show.explain import explain
from airflow_trident.plan.stages import Plan
from airflow_trident.storm import ShellBolt, TransactionAttempt
from airflow_trident.topology.stream import ChainedAggregatorDeclarer, GroupedStream, Stream, TridentState
from tests.fixtures import commit_plan as commit_plan_fixtures
from tests.fixtures.commit_plan import COMMIT_SHAPES, query
from tests.fixtures.plan import Joined, Longer, Longest, PaperSpout, PaperState, Split, letters, shout

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


def bolt(topology: Topology) -> None:
    """One child, two streams of which a field has two types, and a bolt where a function stands."""
    split = ShellBolt("python split.py")
    streams = storm.bolt(
        lines(topology), "line", split, {"default": "word string, size long", "long": "word string, size string"}
    )
    persist(streams["default"].project("word"))
    persist(streams["long"].each("size", split, "part string").project("word"), "m")


def wide(topology: Topology, name: str = "orders") -> Stream:
    return topology.new_stream(name, PaperSpout("user string, item string, price double, n long"))


def merge_by_partition(topology: Topology) -> None:
    """The filter comes between repartition and merge, so partitions must be brought together again."""
    one, other = wide(topology, "a").partition_by("user"), wide(topology, "b").partition_by("user")
    merged = topology.merge([one.filter("item", Longer()), other])
    persist(merged.group_by("user").partition_aggregate("n", Sum(), "sold"))


def diamond(topology: Topology) -> None:
    words = lines(topology).each("line", Split(), "word")
    long, short = words.filter("word", Longer()), words.filter("word", Negate(Longer()))
    topology.merge([long, short]).group_by("word").persistent_aggregate(PaperState(), Count(), "n")


def _gated(stream: Stream) -> Stream:
    return stream.expect(
        expect("positive", col("n") > 0, at_most=0.1),
        expect("longer", Longer(), inputs="item", severity="warn"),
        check("volume", "row_count", geq_to=1, less_than=100, where=col("price") > 1),
        check("items", "unique_violations", "item", equal_to=0),
    )


class Pairs(Aggregator[list[str]]):
    output_types = "string, string"

    def init(self, batch: TransactionAttempt, collector: Collector) -> list[str]:
        return []

    def aggregate(self, state: list[str], collector: Collector, *values: str) -> None: ...

    def complete(self, state: list[str], collector: Collector) -> None: ...


class Seen(MultiReducer[None]):
    output_types = "long, long"

    def init(self, collector: Collector) -> None: ...

    def execute(self, state: None, stream_index: int, collector: Collector, *values: str) -> None: ...

    def complete(self, state: None, collector: Collector) -> None: ...


class SeenOf(GroupedMultiReducer[None]):
    output_types = "string, long, long"

    def init(self, group: tuple[str, ...], collector: Collector) -> None: ...

    def execute(
        self, state: None, stream_index: int, group: tuple[str, ...], collector: Collector, *values: str
    ) -> None: ...

    def complete(self, state: None, group: tuple[str, ...], collector: Collector) -> None: ...


class First(CustomGrouping):
    def choose_partitions(self, num_partitions: int, *values: str) -> list[int]:
        return [0]


SHAPES: dict[str, Callable[[Topology], None]] = {
    "word_count": lambda t: _none(
        lines(t).each("line", Split(), "word").group_by("word").persistent_aggregate(PaperState(), Count(), "count")
    ),
    "each_expression": lambda t: persist(lines(t).each(explode(split(col("line"), " ")), "word")),
    "expect": lambda t: persist(_gated(wide(t).filter(col("n") > 0)).filter(col("price") > 0).project("user")),
    "expect_behind_a_repartition": lambda t: persist(_gated(wide(t).partition_by("user")).project("user")),
    "filter": lambda t: persist(lines(t).filter("line", Longer()).filter(col("line") != "")),
    "map": lambda t: persist(lines(t).map(shout)),
    "bolt": bolt,
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
    "partition_persist_order_by": lambda t: _none(
        lines(t)
        .each("line", Split(), "word")
        .partition_persist(PaperState(), "word, line", keys="word", order_by="line", name="last")
    ),
    "partition_persist": lambda t: _none(
        lines(t).each("line", Split(), "word").partition_persist(PaperState(), "word, line", keys="word")
    ),
    "peek": lambda t: persist(lines(t).peek(Debug("line"))),
    "apply_assembly": lambda t: persist(lines(t).apply_assembly(FirstN(3, "line"))),
    "min_by": lambda t: persist(lines(t).global_().min_by("line")),
    "partition_aggregate": lambda t: persist(lines(t).partition_aggregate(Count(), "n_lines")),
    "group_by_partition_aggregate": lambda t: persist(
        lines(t).partition_by("line").group_by("line").partition_aggregate(Count(), "n_lines")
    ),
    "aggregator": lambda t: persist(lines(t).aggregate("line", Pairs(), "one, other")),
    "chained_agg": lambda t: persist(
        lines(t).chained_agg().aggregate(Count(), "n_lines").aggregate("line", Joined(), "all").chain_end()
    ),
    "several_aggregations": lambda t: persist(
        lines(t).group_by("line").aggregate((Count(), "n_lines"), ("line", Longest(), "longest"))
    ),
    "local_or_shuffle": lambda t: persist(lines(t).local_or_shuffle().filter("line", Longer())),
    "global": lambda t: persist(lines(t).global_().filter("line", Longer())),
    "batch_global": lambda t: persist(lines(t).batch_global().filter("line", Longer())),
    "broadcast": lambda t: persist(lines(t).broadcast().filter("line", Longer())),
    "identity_partition": lambda t: persist(lines(t).identity_partition().filter("line", Longer())),
    "partition": lambda t: persist(lines(t).partition(First()).filter("line", Longer())),
    "merge": lambda t: persist(t.merge([lines(t, "a"), lines(t, "b").filter(col("line") != "")], "text")),
    "merge_by_partition": merge_by_partition,
    "join": lambda t: persist(
        t.join([wide(t, "a"), wide(t, "b")], ["user", "item"], "k, a, b, c, d, e, f", ["inner", "outer"])
    ),
    "join_preserve": lambda t: persist(
        t.join([lines(t, "a"), lines(t, "b")], ["line", "line"], "a, b", mode="preserve")
    ),
    "multi_reduce": lambda t: persist(
        t.multi_reduce(["line", "line"], [lines(t, "a").global_(), lines(t, "b").global_()], Seen(), "a, b")
    ),
    "grouped_multi_reduce": lambda t: persist(
        t.multi_reduce(
            ["n", "price"], [wide(t, "a").group_by("user"), wide(t, "b").group_by("item")], SeenOf(), "user, a, b"
        )
    ),
    "diamond": diamond,
    "extremes": lambda t: _none(
        [
            persist(change(wide(t, name).global_()), name)
            for name, change in {
                "min": lambda s: s.min(lambda one, other: 0),
                "max": lambda s: s.max(lambda one, other: 0),
                "max_by": lambda s: s.max_by("price"),
            }.items()
        ]
    ),
    "loads": lambda t: persist(
        lines(t.set_resource_defaults(cpu_percent=10).set_max_task_parallelism(3))
        .parallelism_hint(4)
        .filter("line", Longer())
        .set_memory_load(300)
    ),
    "parallelism_hint": lambda t: persist(
        lines(t).parallelism_hint(4).each("line", Split(), "word").set_cpu_load(50).shuffle().parallelism_hint(8)
    ),
    "fields_that_nobody_uses": lambda t: _none(
        wide(t).each("item", Split(), "word").group_by("word").persistent_aggregate(PaperState(), "n", Sum(), "sold")
    ),
    "fields_not_repartitioned": lambda t: _none(
        wide(t)
        .each("item", Split(), "word")
        .partition_by("word")
        .filter("word", Longer())
        .project("word, n")
        .partition_persist(PaperState(), "word, n", keys="word")
    ),
    "filter_to_the_source": lambda t: persist(
        wide(t).each("item", Split(), "word").project("word, n, user").shuffle().filter(col("n") > 3)
    ),
    "transform": lambda t: persist(
        lines(t, "a")
        .filter(col("line") != "")
        .transform(both, "line string, n long", others={"more": lines(t, "b")}, version=3)
        .filter(col("n") > 1)
        .project("line")
    ),
    "sql": lambda t: persist(
        wide(t).sql("SELECT user, count(*) AS orders -- of all\nFROM {o} GROUP BY user", "user string, orders long")
    ),
    "persist_table": lambda t: _none(wide(t).filter(col("n") > 3).persist_table(DeltaTable("/lake/sales"))),
    "persist_table_overwrite": lambda t: _none(
        wide(t).persist_table(DeltaTable("/lake/sales", partition_by="item"), mode="overwrite")
    ),
    "persist_table_rewrite": lambda t: _none(
        wide(t).persist_table(DeltaTable("/lake/sales"), mode="rewrite", keys="user, item", order_by="n")
    ),
    "several_states": several_states,
    "several_streams": several_streams,
    **COMMIT_SHAPES,
}


def both(frame: Any, more: Any) -> Any:
    return frame.join(more, "line")


def _none(_: object) -> None:
    return None


def topology_of(shape: str) -> Topology:
    topology = Topology(shape)
    SHAPES[shape](topology)
    return topology


def plan_of(shape: str) -> Plan:
    if shape == "query":
        topology = Topology("query")
        query(topology)
        return topology.queries.compile("sum_of")
    return topology_of(shape).compile()


FORMATS = {"text": "txt", "mermaid": "mmd", "svg": "svg", "json": "json"}
FILES = [(shape, format) for shape in (*SHAPES, "query") for format in ("text", "mermaid")]
FILES += [(shape, format) for shape in ("word_count", "diamond", "join") for format in ("svg", "json")]


@pytest.mark.parametrize(("shape", "format"), FILES)
def test_the_plan_of_each_shape_is_the_golden_one(shape: str, format: str) -> None:
    path = GOLDEN / f"{shape}.{FORMATS[format]}"
    plan = explain(plan_of(shape), format)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(plan)
    assert plan == path.read_text()


def test_every_golden_file_has_a_shape() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{shape}.{FORMATS[format]}" for shape, format in FILES}


def test_every_verb_has_a_golden_plan() -> None:
    said = "".join(Path(module.__file__ or "").read_text() for module in (sys.modules[__name__], commit_plan_fixtures))
    kinds = (Stream, GroupedStream, TridentState, ChainedAggregatorDeclarer)
    verbs = {name for kind in kinds for name, member in vars_of(kind).items() if callable(member)}
    verbs |= {"new_stream", "merge", "join", "multi_reduce", "new_drpc_stream", "new_static_state"}
    assert {verb for verb in verbs if f".{verb}(" not in said} == set()


def vars_of(kind: type) -> dict[str, Any]:
    return {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}


def test_a_picture_is_well_formed_and_json_can_be_read() -> None:
    for shape in SHAPES:
        plan = topology_of(shape).compile()
        ElementTree.fromstring(explain(plan, "svg"))
        read = json.loads(explain(plan, "json"))
        assert [stage["index"] for stage in read["stages"]] == list(range(len(plan.stages)))
        known = [node["name"] for node in read["rewritten"]]
        assert len(set(known)) == len(known)
        assert all(set(node["inputs"]) <= set(known) for node in read["rewritten"])


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


@pytest.mark.parametrize("shape", [*SHAPES, "query"])
def test_a_second_run_of_all_rewrites_changes_nothing(shape: str) -> None:
    rewritten = plan_of(shape).rewritten
    for one in REWRITES:
        assert same(one.apply(rewritten), rewritten), one.name


@pytest.mark.parametrize("shape", [*SHAPES, "query"])
def test_no_rewrite_changes_what_comes_to_a_sink(shape: str) -> None:
    sinks: Sinks = plan_of(shape).logical
    meant = [(sink.name, sink.schema, sink.input.schema) for sink in sinks]
    for one in REWRITES:
        sinks = one.apply(sinks)
        assert [(sink.name, sink.schema, sink.input.schema) for sink in sinks] == meant, one.name


def test_repartitions_between_which_only_an_idle_projection_stood_are_one() -> None:
    """What one rewrite takes out makes work for an earlier one."""
    topology = Topology("rounds")
    persist(wide(topology).partition_by("user").project("user, item").shuffle())
    moves = [node for node in ordered(topology.compile().rewritten) if isinstance(node, PartitionNode)]
    assert [node.grouping for node in moves] == [Grouping.SHUFFLE, Grouping.GLOBAL]


@pytest.mark.parametrize("shape", SHAPES)
def test_each_stage_comes_after_its_upstream_and_every_sink_is_staged_once(shape: str) -> None:
    plan = topology_of(shape).compile()
    assert all(upstream < stage.index for stage in plan.stages for upstream in stage.upstreams)
    stages = [*plan.stages, *(stage for level in plan.commit for stage in level.stages)]
    fed = [sink.name for stage in stages for sink in stage.sinks if isinstance(sink, PersistNode)]
    assert sorted(fed) == sorted(sink.name for sink in plan.sinks)
    assert all((stage.source is None) != (not stage.upstreams) for stage in plan.stages)
