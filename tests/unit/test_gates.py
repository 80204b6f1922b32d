"""Rules gate a batch: nothing of it is published unless they hold."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, MemoryState, SqliteState, Stream, Topology
from airflow_trident.engine.engine import Job
from airflow_trident.engine.fused import measuring
from airflow_trident.engine.fused.measuring import exact_sum
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import (
    BlockedError,
    ConfigurationError,
    FieldError,
    GateFailedError,
    PlanError,
    TridentError,
    UserCodeError,
)
from airflow_trident.functions import check, col, expect, is_not_null
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.operations.rules import MOST_RULES, RuleVerdict
from airflow_trident.plan.stages import Coalescing
from airflow_trident.protocol.records import Claim, OnFailure, Status, TxRecord
from airflow_trident.runtime.backfill import Backfill, Selection
from airflow_trident.runtime.commit import Committer
from airflow_trident.runtime.drains.drain import Drain
from airflow_trident.runtime.drains.limits import DrainLimits
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.runtime.phases import Attempts, coordinate, process
from airflow_trident.staging.manifest import Manifest
from airflow_trident.testing import contents

Rows = list[tuple[Any, ...]]


class World:
    """A topology ``id long, x double, k string`` -> counts of k, whose rules may change."""

    def __init__(self, folder: Path, batches: list[Rows]) -> None:
        self.folder = folder
        self.batches = batches
        self.ledger = MemoryLedger("orders")

    def topology(self, *rules: Any, before: Callable[[Stream], Stream] = lambda stream: stream) -> Topology:
        topology = Topology("orders")
        rows = [row for batch in self.batches for row in batch]
        sizes = [len(batch) for batch in self.batches]
        spout = FixedBatchSpout("id long, x double, k string", rows, max_batch_size=max(sizes, default=1) or 1)
        stream = before(topology.new_stream("s", spout))
        stream = stream.expect(*rules) if rules else stream
        self.counts = stream.group_by("k").persistent_aggregate(
            SqliteState(str(self.folder / "counts.db")), Count(), "n"
        )
        return topology

    def runner(self, topology: Topology) -> LocalRunner:
        return LocalRunner(
            ledger=self.ledger, topology=topology, engine=LocalEngine(), staging_root=str(self.folder / "staging")
        )

    def run(self, *rules: Any) -> list[int]:
        return self.runner(self.topology(*rules)).run()

    def record(self, txid: int = 1) -> TxRecord:
        record = self.ledger.view(txid).tx
        assert record is not None
        return record

    def verdicts(self, txid: int = 1) -> dict[str, tuple[Any, str]]:
        checks: dict[str, Any] = self.record(txid).checks
        return {name: (verdict["value"], verdict["verdict"]) for name, verdict in checks.items()}


GOOD: Rows = [(1, 1.0, "a"), (2, 2.0, "b"), (3, 3.0, "a")]
BAD: Rows = [(1, 1.0, "a"), (1, -2.0, "b"), (3, 3.0, None)]
RULES = (
    expect("positive", col("x") > 0),
    expect("known", is_not_null(col("k"))),
    check("volume", "row_count", geq_to=1),
    check("ids", "unique_violations", "id", equal_to=0),
    check("mean", "mean", "x", leq_to=0, severity="warn"),
)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, [GOOD])


def test_a_batch_that_keeps_all_rules_is_published_and_its_record_has_the_numbers(world: World) -> None:
    assert world.run(*RULES) == [1]
    assert contents(world.counts) == {("a",): (2,), ("b",): (1,)}
    assert world.verdicts() == {
        "positive": (0, RuleVerdict.PASSED),
        "known": (0, RuleVerdict.PASSED),
        "volume": (3, RuleVerdict.PASSED),
        "ids": (0, RuleVerdict.PASSED),
        "mean": (2.0, RuleVerdict.WARNED),
    }


def test_nothing_of_a_batch_that_breaks_rules_is_published_and_all_of_them_are_named(tmp_path: Path) -> None:
    world = World(tmp_path, [BAD])
    with pytest.raises(GateFailedError, match=r"breaks 3 rules: positive: .* known: .* ids: ") as caught:
        world.run(*RULES)
    assert caught.value.txid == 1
    assert contents(world.counts) == {}
    assert world.record().status is Status.FAILED
    assert world.verdicts() == {
        "positive": (1, RuleVerdict.FAILED),
        "known": (1, RuleVerdict.FAILED),
        "volume": (3, RuleVerdict.PASSED),
        "ids": (1, RuleVerdict.FAILED),
        "mean": (2 / 3, RuleVerdict.WARNED),
    }
    assert not list((tmp_path / "staging").rglob("manifest.json"))


def test_no_value_of_a_row_is_in_the_record_or_the_error(tmp_path: Path) -> None:
    world = World(tmp_path, [[(1, 1.0, "secret word"), (2, -1.0, "secret word")]])
    with pytest.raises(GateFailedError) as caught:
        world.run(expect("k", col("k") == "x"), check("one", "distinct_count", "k", equal_to=5))
    assert "secret" not in f"{caught.value}{world.record()}"
    assert not caught.value.may_quote_rows


def test_a_corrected_rule_lets_a_replay_pass_and_a_new_attempt_has_no_old_verdicts(tmp_path: Path) -> None:
    world = World(tmp_path, [BAD])
    with pytest.raises(GateFailedError):
        world.run(*RULES)
    with pytest.raises(BlockedError):
        world.run(expect("positive", col("x") > -5))
    topology = world.topology(expect("positive", col("x") > -5))
    Backfill(
        ledger=world.ledger,
        topology=topology,
        engine=LocalEngine,
        staging_root=str(tmp_path / "staging"),
        owner="a test",
    ).run(Selection(failed=True))
    assert world.record().status is Status.COMMITTED
    assert world.verdicts() == {"positive": (0, RuleVerdict.PASSED)}


def test_a_policy_that_skips_what_fails_does_not_skip_what_a_gate_holds_back(tmp_path: Path) -> None:
    world = World(tmp_path, [BAD])
    topology = world.topology(*RULES)
    coordinate(world.ledger, topology, [Claim(key="c")])
    attempts = Attempts(owner="a test", on_failure=OnFailure.SKIP)
    with pytest.raises(GateFailedError):
        process(world.ledger, topology, 1, LocalEngine(), str(tmp_path / "staging"), attempts)
    assert world.record().status is Status.FAILED


def test_an_empty_batch_breaks_a_least_number_of_rows_and_no_share_of_them(tmp_path: Path) -> None:
    world = World(tmp_path, [GOOD])
    rules = (
        expect("all", col("x") > 0),
        check("volume", "row_count", geq_to=1),
        check("nulls", "null_ratio", "k", leq_to=0),
        check("null count", "null_count", "k", equal_to=0),
        check("sum", "sum", "x", geq_to=1),
        check("least", "min", "id", geq_to=1),
    )
    topology = world.topology(*rules, before=lambda stream: stream.filter(col("x") > 100))
    with pytest.raises(GateFailedError, match="breaks a rule: volume"):
        world.runner(topology).run()
    assert {name for name, (_, verdict) in world.verdicts().items() if verdict == RuleVerdict.NOT_APPLICABLE} == {
        "all",
        "nulls",
        "sum",
        "least",
    }


@pytest.mark.parametrize(("broken", "at_most", "passes"), [(29, 0.29, True), (30, 0.29, False), (1, 0.0, False)])
def test_a_share_is_as_it_is_written(tmp_path: Path, broken: int, at_most: float, passes: bool) -> None:
    rows = [(place, -1.0 if place < broken else 1.0, "a") for place in range(100)]
    world = World(tmp_path, [rows])
    rule = expect("positive", col("x") > 0, at_most=at_most)
    if passes:
        assert world.run(rule) == [1]
    else:
        with pytest.raises(GateFailedError):
            world.run(rule)


def test_null_and_false_break_a_row_and_nan_is_above_every_number(tmp_path: Path) -> None:
    rows = [(1, None, "a"), (2, math.nan, "a"), (3, -0.0, "a"), (4, 0.0, "a"), (None, 1.0, "a")]
    world = World(tmp_path, [rows])
    rules = [
        expect("over", col("x") > 5, severity="warn"),
        expect("zero", col("x") == 0, severity="warn"),
        check("most", "max", "x", leq_to=10, severity="warn"),
        check("least", "min", "x", geq_to=0, severity="warn"),
        check("different", "distinct_count", "x", equal_to=3),
        check("again", "unique_violations", "x", equal_to=1),
        check("mean", "mean", "x", leq_to=10, severity="warn"),
    ]
    world.run(*rules)
    assert world.verdicts() == {
        "over": (4, RuleVerdict.WARNED),
        "zero": (3, RuleVerdict.WARNED),
        "most": ("nan", RuleVerdict.WARNED),
        "least": (0.0, RuleVerdict.PASSED),
        "different": (3, RuleVerdict.PASSED),
        "again": (1, RuleVerdict.PASSED),
        "mean": ("nan", RuleVerdict.WARNED),
    }


def test_dates_times_and_decimals_have_bounds_of_their_own(tmp_path: Path) -> None:
    topology = Topology("typed")
    at = datetime.datetime(2026, 1, 5, 12, tzinfo=datetime.UTC)
    rows = [(at.date(), at, Decimal("0.10")), (at.date() + datetime.timedelta(1), None, Decimal("0.20"))]
    stream = topology.new_stream("s", FixedBatchSpout("d date, t timestamp, m decimal(10,2)", rows))
    stream.expect(
        check("d", "max", "d", equal_to=datetime.date(2026, 1, 6)),
        check("t", "min", "t", geq_to=at, leq_to=at),
        check("m", "sum", "m", equal_to=Decimal("0.3")),
        check("near", "sum", "m", equal_to=0.33, tolerance=0.1),
        check("mean", "mean", "m", equal_to=0.15),
    ).persistent_aggregate(MemoryState(str(tmp_path)), Count(), "n")
    with MemoryLedger("typed") as ledger:
        LocalRunner(ledger=ledger, topology=topology, engine=LocalEngine(3), staging_root=str(tmp_path)).run()
        checks: Any = ledger.view(1).tx.checks  # type: ignore[union-attr]
    assert {name: verdict["value"] for name, verdict in checks.items()} == {
        "d": "2026-01-06",
        "t": "2026-01-05T12:00:00+00:00",
        "m": "0.3",
        "near": "0.3",
        "mean": 0.15,
    }


def test_a_row_that_a_rule_has_no_value_for_fails_as_in_any_expression(tmp_path: Path) -> None:
    world = World(tmp_path, [[(2**62, 1.0, "a")]])
    with pytest.raises(UserCodeError, match="row \\(id=4611686018427387904\\)"):
        world.run(expect("overflow", col("id") * 4 > 0))


# ---- the turn, other rules ---------------------------------------------------------------------------------------


def _processed(world: World, *rules: Any) -> None:
    topology = world.topology(*rules)
    coordinate(world.ledger, topology, [Claim(key="c")])
    process(world.ledger, topology, 1, LocalEngine(), str(world.folder / "staging"), Attempts(owner="a test"))
    assert world.record().status is Status.PROCESSED


def _committer(world: World, *rules: Any) -> Committer:
    return Committer(
        ledger=world.ledger,
        topology=world.topology(*rules),
        staging_root=str(world.folder / "staging"),
        attempts=Attempts(owner="a test"),
        engine=LocalEngine,
    )


def test_another_limit_is_judged_at_the_turn_by_the_numbers_that_are_there(world: World) -> None:
    _processed(world, check("volume", "row_count", geq_to=1))
    with pytest.raises(GateFailedError, match="volume: row_count is 3 and must be >= 4"):
        _committer(world, check("volume", "row_count", geq_to=4)).commit(1)
    assert world.record().status is Status.FAILED
    assert world.record().attempt == 0
    assert contents(world.counts) == {}


@pytest.mark.parametrize("before", [(), (check("volume", "null_count", "k", leq_to=9),)])
def test_a_rule_that_was_not_measured_is_measured_before_the_commit(world: World, before: tuple[Any, ...]) -> None:
    _processed(world, *before)
    assert _committer(world, check("volume", "row_count", geq_to=1)).commit(1).committed == (1,)
    assert world.verdicts() == {"volume": (3, RuleVerdict.PASSED)}
    assert world.record().attempt == 1


def test_a_batch_that_a_state_may_have_is_not_held_back_any_more(world: World) -> None:
    _processed(world, check("volume", "row_count", geq_to=1))
    world.ledger.gate([1], owner="killed")
    committer = _committer(world, check("volume", "row_count", geq_to=4))
    assert committer.commit(1, take_over=True).committed == (1,)


def test_numbers_that_are_missing_never_pass(world: World) -> None:
    class Forgetful(LocalEngine):
        def run(self, job: Job) -> Manifest:
            return replace(super().run(job), checks={})

    runner = replace(world.runner(world.topology(*RULES)), engine=Forgetful())
    with pytest.raises(ConfigurationError, match="no number of the rule 'positive': it cannot pass"):
        runner.run()


# ---- groups ------------------------------------------------------------------------------------------------------


class Counting(LocalEngine):
    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[int, ...]] = []

    def run(self, job: Job) -> Manifest:
        self.passes.append((job.slot.txid,))
        return super().run(job)

    def run_group(self, jobs: Sequence[Job]) -> Manifest:
        if len(jobs) > 1:
            self.passes.append(tuple(job.slot.txid for job in jobs))
        return super().run_group(jobs)


def test_of_a_group_those_that_break_rules_fail_and_the_others_take_one_more_pass(tmp_path: Path) -> None:
    batches = [GOOD, BAD, GOOD, BAD, GOOD]
    world = World(tmp_path, batches)
    topology, engine = world.topology(*RULES), Counting()
    for place in range(5):
        coordinate(world.ledger, topology, [Claim(key=f"c{place}")], max_pending=9)
    drain = Drain(
        ledger=world.ledger,
        topology=topology,
        engine=engine,
        staging_root=str(tmp_path / "staging"),
        attempts=Attempts(owner="drain"),
        claim=Claim(key="drain"),
        limits=DrainLimits(max_pending=9, group=9),
    )
    with pytest.raises(TridentError):
        drain.run()
    assert engine.passes == [(1, 2, 3, 4, 5), (1, 3, 5)]
    assert [world.record(txid).status for txid in range(1, 6)] == [
        Status.COMMITTED,
        Status.FAILED,
        Status.PROCESSED,
        Status.FAILED,
        Status.PROCESSED,
    ]
    assert world.verdicts(3)["positive"] == (0, RuleVerdict.PASSED)
    assert world.verdicts(4)["positive"] == (1, RuleVerdict.FAILED)


def test_a_check_turns_no_group_off_but_behind_a_repartition_each_transaction_counts_alone(world: World) -> None:
    plain = world.topology().compile()
    assert plain.coalesces.how is Coalescing.BY_KEY
    assert world.topology(*RULES).compile().coalesces == plain.coalesces
    moved = world.topology(*RULES, before=lambda stream: stream.partition_by("k")).compile()
    assert str(moved.coalesces).startswith("processed by transaction (expect-2 measures each batch)")


# ---- the plan ----------------------------------------------------------------------------------------------------


def test_no_filter_passes_a_check_and_what_only_a_rule_reads_is_read(world: World) -> None:
    topology = world.topology(*RULES, before=lambda stream: stream)
    topology = Topology("orders")
    spout = FixedBatchSpout("id long, x double, k string, z long", [(1, 1.0, "a", 1)])
    stream = topology.new_stream("s", spout).expect(expect("x", col("x") > 0)).filter(col("id") > 5)
    stream.group_by("k").persistent_aggregate(MemoryState(), Count(), "n")
    (first, *_) = topology.compile().stages
    assert first.source is not None
    assert first.source.filters == ()
    assert first.source.fields == ("id", "x", "k")
    assert [node.name for node in first.nodes][:2] == ["expect-1", "filter-2"]


def test_a_rule_changes_the_plan_of_an_attempt_and_neither_the_definition_nor_made_tuples(world: World) -> None:
    one, other = (world.topology(check("v", "row_count", geq_to=limit)) for limit in (1, 2))
    assert one.definition() == other.definition() == world.topology().definition()
    assert one.compile().digest != other.compile().digest
    assert one.compile().made_by == other.compile().made_by
    assert one.compile().made_by != world.topology().compile().made_by


def _stream() -> Stream:
    return Topology("t").new_stream("s", FixedBatchSpout("id long, x double, k string, m map<string,long>", []))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: expect("", col("x") > 0), "the name ''"),
        (lambda: expect("a", col("x") > 0, at_most=1), "at_most=1"),
        (lambda: expect("a", col("x") > 0, severity="fatal"), "severity='fatal'"),
        (lambda: expect("a", lambda x: True), "a function without inputs"),
        (lambda: expect("a", col("x") > 0, inputs="x"), "an expression and inputs"),
        (lambda: expect("a", 1), "the condition 1"),
        (lambda: check("a", "rows", geq_to=1), "'rows'"),
        (lambda: check("a", "row_count"), "no condition"),
        (lambda: check("a", "row_count", "id", geq_to=1), "is of the batch"),
        (lambda: check("a", "min", geq_to=1), "needs a column"),
        (lambda: check("a", "row_count", equal_to=1, leq_to=2), "equal_to and others"),
        (lambda: check("a", "row_count", geq_to=2, leq_to=1), "never passes"),
        (lambda: check("a", "row_count", greater_than=2, leq_to=2), "never passes"),
        (lambda: check("a", "row_count", geq_to=2, leq_to=datetime.date(2026, 1, 1)), "limits of two types"),
        (lambda: check("a\n", "row_count", geq_to=2), "a text of one line"),
        (lambda: check("a", "row_count", geq_to=1, tolerance=0.1), "tolerance without equal_to"),
        (lambda: check("a", "row_count", geq_to=math.nan), "geq_to=nan"),
        (lambda: check("a", "row_count", geq_to="1"), "geq_to='1'"),
        (lambda: check("a", "max", "t", leq_to=datetime.datetime(2026, 1, 1)), "without a zone"),
        (lambda: _stream().expect(), "got no rule"),
        (lambda: _stream().expect(col("x") > 0), "got <expression"),
        (lambda: _stream().expect(*[check("a", "row_count", geq_to=1)] * 2), "two rules named 'a'"),
        (lambda: _stream().expect(*(check(f"r{n}", "row_count", geq_to=1) for n in range(MOST_RULES + 1))), "65 rules"),
    ],
)
def test_what_is_no_rule_is_refused_where_it_is_written(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PlanError) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (expect("a", col("y") > 0), "no field 'y'"),
        (expect("a", col("x") + 1), "needs a boolean"),
        (check("a", "row_count", where=col("x"), geq_to=1), "needs a boolean"),
        (check("a", "mean", "k", geq_to=1), "mean of the field 'k', which is string"),
        (check("a", "min", "k", geq_to=1), "min of the field 'k', which is string"),
        (check("a", "unique_violations", "m", geq_to=1), "which is map<string,long>"),
        (check("a", "max", "id", geq_to=datetime.date(2026, 1, 1)), "cannot be compared"),
    ],
)
def test_what_a_rule_cannot_take_is_refused_when_the_dag_is_built(rule: Any, says: str) -> None:
    with pytest.raises(FieldError) as caught:
        _stream().expect(rule)
    assert says in str(caught.value)


def test_a_rule_where_no_batch_is_gated_is_refused(tmp_path: Path) -> None:
    topology = Topology("t")
    stream = topology.new_stream("s", FixedBatchSpout("k string", []))
    counts = stream.group_by("k").persistent_aggregate(MemoryState(str(tmp_path)), Count(), "n")
    rule = check("v", "row_count", geq_to=1)
    with pytest.raises(PlanError, match="published already"):
        counts.new_values_stream().expect(rule)
    stream.expect(rule)
    with pytest.raises(PlanError, match=r"expect-[0-9]+ of topology 't' reaches no state: the rules v would never"):
        topology.compile()


# ---- numbers -----------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=50))
def test_a_sum_is_exact_and_so_the_same_in_every_order(values: list[float]) -> None:
    assert exact_sum(np.array(values)) == sum(map(Fraction, values), Fraction(0))


def test_sums_of_extremes_are_exact(tmp_path: Path) -> None:
    rows = [(2**63 - 1, 1e308, "a"), (2**63 - 1, 1e308, "a"), (-(2**63), 1.0, "a"), (1, -1e308, "a"), (1, -1e308, "a")]
    world = World(tmp_path, [rows])
    world.run(check("id", "sum", "id", leq_to=0, severity="warn"), check("x", "sum", "x", equal_to=1))
    assert world.verdicts() == {"id": (2**63, RuleVerdict.WARNED), "x": (1.0, RuleVerdict.PASSED)}


def test_more_different_values_than_the_driver_takes_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MOST_DISTINCT", 2)
    with pytest.raises(ConfigurationError, match="check 'ids': unique_violations of id has more than 2 different"):
        world.run(*RULES)


def test_a_function_and_its_life_serve_as_a_condition(world: World) -> None:
    def is_even(number: int) -> Iterator[bool]:
        yield number % 2 == 0

    with pytest.raises(PlanError, match="yield"):
        world.topology(expect("even", is_even, inputs="id"))
    world.run(expect("even", lambda number: number % 2 == 0, inputs="id", severity="warn"))
    assert world.verdicts() == {"even": (2, RuleVerdict.WARNED)}
