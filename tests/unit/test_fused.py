"""The fused pass over Arrow batches, without Spark: what it gives, what it calls and when, what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from airflow_trident import Count, Filter, FixedBatchSpout, Function, Max, Min, OperationContext, Sum, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.fused import aggregate as fused_aggregate
from airflow_trident.engine.fused import joins
from airflow_trident.engine.fused.passes import FusedPass
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import UserCodeError
from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.operations.expressions import col, explode, split_words
from airflow_trident.plan.stages import Stage
from airflow_trident.staging.area import StagingArea
from airflow_trident.staging.manifest import Slot
from tests.fixtures.engine import TOPOLOGIES, JobOf, keep, lines, sales
from tests.fixtures.plan import PaperState
from tests.oracle.rows import OracleEngine

CONTEXT = OperationContext(partition_index=0, num_partitions=1, txid=1, attempt=0)


def first_stage(build: Any) -> Stage:
    topology = Topology("t")
    build(topology)
    return topology.compile().stages[0]


def batches(stage: Stage, size: int = 3) -> list[pa.RecordBatch]:
    """The whole source of a stage, in small batches."""
    assert stage.source is not None
    emitter = stage.source.spout.emitter()
    metadata = stage.source.spout.coordinator().initialize_transaction(1, None)
    read = [batch for split in emitter.splits(metadata) for batch in emitter.read(split)]
    return pa.Table.from_batches(read).combine_chunks().to_batches(max_chunksize=size)


def rows_of(stage: Stage, size: int = 3) -> list[tuple[object, ...]]:
    assert stage.source is not None
    passed = FusedPass.of(stage.nodes, stage.source.schema)
    return [row for batch in passed(batches(stage, size), CONTEXT) for row in table_to_rows(pa.table(batch))]


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize("name", ["functions_and_filters", "map_and_flat_map", "expressions"])
def test_the_size_of_batches_changes_nothing(name: str, size: int, job_of: JobOf) -> None:
    job = job_of(TOPOLOGIES[name])
    (sink,) = job.plan.sinks
    table = StagingArea(job.staging_root).read(LocalEngine(1).run(job), sink.name, sink.schema)
    assert sorted(map(repr, rows_of(job.plan.stages[0], size))) == sorted(map(repr, table_to_rows(table)))


class Recorder(Function):
    """Its copies write to the same list: a function is itself in a copy."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.note = self.calls.append

    def prepare(self, context: OperationContext) -> None:
        self.note(f"prepare {context.txid}")

    def cleanup(self) -> None:
        self.note("cleanup")

    def execute(self, line: str) -> Iterator[str]:
        self.note(line)
        if line == "bad":
            raise ValueError(line)
        yield line


def recorded(rows: list[str]) -> Recorder:
    recorder = Recorder()
    stage = first_stage(lambda topology: keep(lines(topology, rows).each("line", recorder, "x string")))
    assert stage.source is not None
    list(FusedPass.of(stage.nodes, stage.source.schema)(batches(stage, 1), CONTEXT))
    return recorder


def test_prepare_comes_once_before_all_tuples_and_cleanup_once_after() -> None:
    assert recorded(["a", "b"]).calls == ["prepare 1", "a", "b", "cleanup"]


def test_cleanup_comes_after_a_tuple_that_raises_too() -> None:
    recorder = Recorder()
    stage = first_stage(lambda topology: keep(lines(topology, ["a", "bad", "c"]).each("line", recorder, "x string")))
    assert stage.source is not None
    with pytest.raises(UserCodeError, match="ValueError: bad"):
        list(FusedPass.of(stage.nodes, stage.source.schema)(batches(stage, 1), CONTEXT))
    assert recorder.calls == ["prepare 1", "a", "bad", "cleanup"]


def test_an_operation_is_prepared_and_cleaned_up_where_no_tuple_comes() -> None:
    recorder = Recorder()
    stage = first_stage(lambda topology: keep(lines(topology, ["a"]).each("line", recorder, "x string")))
    assert stage.source is not None
    assert list(FusedPass.of(stage.nodes, stage.source.schema)([], CONTEXT)) == []
    assert recorder.calls == ["prepare 1", "cleanup"]


def test_only_fields_that_are_used_are_read() -> None:
    stage = first_stage(lambda topology: keep(sales(topology).each("n", lambda n: [n], "m long").project("m, city")))
    assert stage.source is not None
    assert FusedPass.of(stage.nodes, stage.source.schema).reads == {"n", "city"}


def test_a_column_that_no_function_reads_is_never_made_into_python_values() -> None:
    class Odd(Filter):
        def is_keep(self, n: int) -> bool:
            return n % 2 == 1

    spout = FixedBatchSpout("n long, weight decimal(38,30)", [(place, Decimal("1e-30")) for place in range(4)])
    stage = first_stage(lambda topology: keep(topology.new_stream("s", spout).filter("n", Odd())))
    given_batches = batches(stage)
    passed = FusedPass.of(stage.nodes, spout.schema)
    found = pa.Table.from_batches(list(passed(given_batches, CONTEXT)))
    assert found.column("weight").to_pylist() == [Decimal("1e-30")] * 2
    assert found.column("n").to_pylist() == [1, 3]


def test_a_partial_step_with_too_many_groups_hands_them_out_and_loses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_aggregate, "MAX_GROUPS", 4)
    rows = [f"{place % 23}" for place in range(200)]
    for what in (Count(), Longest()):

        def build(topology: Topology, what: Any = what) -> None:
            lines(topology, rows).group_by("line").persistent_aggregate(PaperState(), "line", what, "n long")

        stage = first_stage(build)
        found = rows_of(stage, 7)
        assert len(found) > 23  # several partial values of a group
        totals: dict[object, int] = {}
        for line, count in found:
            assert isinstance(count, int)
            totals[line] = totals.get(line, 0) + count
        assert totals == {line: rows.count(line) for line in rows}


class Longest(Count):
    """Count as a user would write it: no engine knows how to merge it."""

    merge_kind = None


WORDS = st.lists(st.text(alphabet="ab \t\n", max_size=8), max_size=30)


@settings(max_examples=60, deadline=None)
@given(WORDS, st.integers(1, 9))
def test_words_are_counted_as_python_counts_them(texts: list[str], size: int) -> None:
    def build(topology: Topology) -> None:
        words = lines(topology, texts or [""]).each(explode(split_words(col("line"))), "word")
        words.group_by("word").persistent_aggregate(PaperState(), Count(), "n")

    expected: dict[str, int] = {}
    for text in texts:
        for word in text.split():
            expected[word] = expected.get(word, 0) + 1
    found = rows_of(first_stage(build), size)
    assert sorted(found, key=repr) == sorted(expected.items(), key=repr)


NUMBERS = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-(2**62), 2**62)), min_size=1, max_size=12
)


@settings(max_examples=60, deadline=None)
@given(NUMBERS)
def test_built_ins_by_arrow_and_by_their_own_methods_agree(rows: list[tuple[str | None, int | None]]) -> None:
    """Neither wraps round. Left out is what overflows on the way alone, where the order of rows decides."""
    for key in {key for key, _ in rows}:
        values = [value for one, value in rows if one == key and value is not None]
        most, least = sum(v for v in values if v > 0), sum(v for v in values if v < 0)
        assume((least >= -(2**63) and most < 2**63) or not -(2**63) <= most + least < 2**63)
    for what in (Sum(), Min(), Max(), Count()):
        by_hand = type("Own", (type(what),), {"merge_kind": None})()
        assert _outcome(rows, what) == _outcome(rows, by_hand), type(what)


def _outcome(rows: list[Any], what: Any) -> object:
    def build(topology: Topology) -> None:
        spout = FixedBatchSpout("k string, v long", rows)
        topology.new_stream("s", spout).group_by("k").persistent_aggregate(PaperState(), "v", what, "x")

    try:
        return sorted(rows_of(first_stage(build), 5), key=repr)
    except UserCodeError as error:
        return error.node


@pytest.mark.parametrize("what", [Sum(), Max()])
def test_a_result_that_outgrows_its_declared_decimal_is_refused(what: Any) -> None:
    """Arrow wraps a decimal that outgrows its type while digits are appended."""
    rows = [("a", Decimal("91091000109011001000")), ("b", Decimal(1))]

    def build(topology: Topology) -> None:
        spout = FixedBatchSpout("k string, v decimal(38,0)", rows)
        topology.new_stream("s", spout).group_by("k").persistent_aggregate(PaperState(), "v", what, "x decimal(38,33)")

    with pytest.raises(UserCodeError, match=r"gave .*91091000109011001000.*decimal\(38,33\) is declared"):
        rows_of(first_stage(build))


def test_nan_is_one_group_and_the_greatest_number() -> None:
    rows = [(math.nan, math.nan), (math.nan, 1.0), (0.5, math.nan), (0.5, 2.0)]

    def build(topology: Topology, what: Any) -> None:
        spout = FixedBatchSpout("k double, v double", rows)
        topology.new_stream("s", spout).group_by("k").persistent_aggregate(PaperState(), "v", what, "x")

    assert repr(sorted(rows_of(first_stage(lambda t: build(t, Min()))), key=repr)) == "[(0.5, 2.0), (nan, 1.0)]"
    assert repr(sorted(rows_of(first_stage(lambda t: build(t, Max()))), key=repr)) == "[(0.5, nan), (nan, nan)]"


def test_batches_that_go_out_are_of_limited_size() -> None:
    stage = first_stage(
        lambda topology: keep(lines(topology, ["x"]).each("line", lambda line: range(150_000), "n int").project("n"))
    )
    assert stage.source is not None
    sizes = [batch.num_rows for batch in FusedPass.of(stage.nodes, stage.source.schema)(batches(stage), CONTEXT)]
    assert sizes == [65_536, 65_536, 18_928]


def test_values_keep_their_meaning_through_the_pass() -> None:
    rows: list[tuple[object, ...]] = [(1, b"\x00\xff", [["a"], None], True), (None, None, None, None)]
    spout = FixedBatchSpout("n long, raw binary, nested array<array<string>>, flag boolean", rows)
    stage = first_stage(
        lambda topology: keep(topology.new_stream("s", spout).map(lambda *values: values).shuffle(), "rows")
    )
    assert rows_of(stage) == rows
    assert table_to_rows(rows_to_table(spout.schema, rows)) == rows


# ---- joins -----------------------------------------------------------------------------------------------------

KEYS = {
    "string": ("a", "b", "", None),
    "long": (1, 2, None),
    "double": (0.0, -0.0, math.nan, 1.5, None),
    "array<double>": ([0.0], [-0.0], [math.nan, None], [], None),
}
SIDES = st.lists(st.lists(st.integers(0, 4), max_size=7), min_size=2, max_size=3)


@pytest.mark.parametrize("mode", ["compact", "preserve"])
@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=25)
@given(sides=SIDES, kinds=st.lists(st.sampled_from(["inner", "outer"]), min_size=3, max_size=3))
def test_a_join_of_columns_gives_what_the_joiner_gives_tuple_by_tuple(
    key: str, mode: str, sides: list[list[int]], kinds: list[str]
) -> None:
    """Keys that are one though they look different, keys that are null, sides without a tuple; few rows to a frame."""
    topology = Topology("t")
    streams = []
    for number, places in enumerate(sides):
        rows = [(KEYS[key][place % len(KEYS[key])], f"{number}.{at}", at) for at, place in enumerate(places)]
        streams.append(topology.new_stream(f"s{number}", FixedBatchSpout(f"k {key}, v string, n long", rows)))
    many = len(sides)
    width = 3 * many if mode == "preserve" else 1 + 2 * many
    names = ", ".join(f"f{number}" for number in range(width))
    keep(topology.join(streams, ["k"] * many, names, kinds[:many], mode))
    job = Job(
        plan=topology.compile(),
        slot=Slot(topology="t", incarnation="i", txid=1, attempt=0),
        metadata={f"s{number}": {"from": 0, "to": len(places)} for number, places in enumerate(sides)},
        staging_root="",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joins, "BATCH_ROWS", 4)
        found = dict(LocalEngine(2).tables(job))
    expected = dict(OracleEngine(2).tables(job))
    assert found.keys() == expected.keys()
    for name, table in found.items():
        assert sorted(map(repr, table_to_rows(table))) == sorted(map(repr, table_to_rows(expected[name])))
