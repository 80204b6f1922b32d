"""What every sink promises (T1 to T5, T7, T9 of `contracts.state`): each transaction's rows are there once, whole."""

from __future__ import annotations

import datetime
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_trident import DeltaTable, FixedBatchSpout, IcebergTable, Topology
from airflow_trident.contracts.state import Applied, State, StateSpec
from airflow_trident.errors import (
    ConfigurationError,
    DefinitionChangedError,
    FencedError,
    LedgerBehindStateError,
    PlanError,
    StateBehindLedgerError,
)
from airflow_trident.operations.aggregators import Count
from airflow_trident.states.files.sink import FileSink
from airflow_trident.states.sql.sqlite import SqliteState
from airflow_trident.states.sql.table_sink import OpenTableSink
from airflow_trident.types import parse_declared
from tests.fixtures.postgres import PostgresServer
from tests.fixtures.state import SINKS, ticket
from tests.fixtures.state import batch as whole_batch

FIELDS = parse_declared(
    "word string, n long, tags array<string>, at timestamp, clock time, took interval day to second"
)
CLOCK, TOOK = datetime.time(1, 2, 3, 4), datetime.timedelta(days=-1, microseconds=5)
ROWS: list[tuple[Any, ...]] = [
    ("a", 1, ["x", None], None, CLOCK, TOOK),
    ("a", 1, ["x", None], None, CLOCK, TOOK),
    (None, 2, None, None, None, None),
]


@pytest.fixture(params=SINKS)
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StateSpec:
    return spec_of(request.param, tmp_path)


def spec_of(sink: str, folder: Path) -> StateSpec:
    # Delta has neither times nor intervals, Iceberg and plain Parquet no intervals.
    fields = FIELDS[: {"delta table": 4, "iceberg table": 5}.get(sink, 6)]
    return StateSpec(topology="words", name="rows", keys=(), values=fields, staged=fields, factory=SINKS[sink](folder))


def rows_of(state: State) -> Counter[str]:
    return Counter(repr(row) for _, row in state.items())


def expected(spec: StateSpec, *batches: list[tuple[Any, ...]]) -> Counter[str]:
    return Counter(repr(row[: len(spec.staged)]) for rows in batches for row in rows)


def batch(spec: StateSpec, *rows: tuple[Any, ...]) -> pa.Table:
    return whole_batch(spec, *(row[: len(spec.staged)] for row in rows))


OTHER: list[tuple[Any, ...]] = [("late", 7, [], None, datetime.time(), -TOOK)]


def test_rows_are_appended_once_equal_ones_too(spec: StateSpec) -> None:
    with spec.factory.make_state(spec) as state:
        assert state.marker() is None
        assert state.apply(ticket(1), batch(spec, *ROWS)) is Applied.APPLIED
        assert state.apply(ticket(1), batch(spec, *ROWS)) is Applied.ALREADY
        assert state.apply(ticket(2), batch(spec)) is Applied.APPLIED
        assert state.apply(ticket(3), batch(spec, *OTHER)) is Applied.APPLIED
        assert rows_of(state) == expected(spec, ROWS, OTHER)
    with spec.factory.make_state(spec) as state:
        assert state.apply(ticket(3), batch(spec, *OTHER)) is Applied.ALREADY
        marker = state.marker()
        assert marker is not None
        assert (marker.high, marker.holes) == (3, ())


def test_a_zombie_and_another_life_of_the_ledger_are_refused_and_change_nothing(spec: StateSpec) -> None:
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1, fence=7), batch(spec, *ROWS))
        before = state.marker(), rows_of(state)
        with pytest.raises(FencedError):
            state.apply(ticket(2, fence=6), batch(spec, *OTHER))
        with pytest.raises(LedgerBehindStateError):
            state.apply(ticket(2, incarnation="i2", fence=99), batch(spec, *OTHER))
        assert (state.marker(), rows_of(state)) == before
        state.apply(ticket(1, fence=9), batch(spec, *ROWS))
        with pytest.raises(FencedError):
            state.apply(ticket(2, fence=8), batch(spec, *OTHER))


def test_a_sink_that_lacks_what_the_ledger_calls_committed_takes_nothing(spec: StateSpec) -> None:
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
        state.apply(ticket(4), batch(spec, *OTHER))
        before = state.marker(), rows_of(state)
        for txid in (5, 4):
            with pytest.raises(StateBehindLedgerError, match="up to 4 and lacks 3"):
                state.apply(ticket(txid, fence=60, needs=(1, 3, 4)), batch(spec, *OTHER))
            assert (state.marker(), rows_of(state)) == before
        state.apply(ticket(5, needs=(1, 4), floor=3), batch(spec, *OTHER))
        marker = state.marker()
        assert marker is not None
        assert marker.holes == ((3, 3),)


def test_a_transaction_that_was_left_out_is_appended_late_once(spec: StateSpec) -> None:
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(2), batch(spec, *ROWS))
        for fence, answer in ((30, Applied.APPLIED), (31, Applied.ALREADY)):
            assert state.apply(ticket(1, fence=fence, late=True), batch(spec, *OTHER)) is answer
        assert rows_of(state) == expected(spec, ROWS, OTHER)


def test_the_batch_of_the_highest_txid_is_replaced_by_that_of_a_newer_attempt(spec: StateSpec) -> None:
    if not spec.factory.capabilities.opaque:
        assert isinstance(spec.factory, DeltaTable | IcebergTable)  # a topology of opaque spouts is refused with it
        return
    spec = replace(spec, opaque=True)
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(2, fence=1), batch(spec, *ROWS))
        state.apply(ticket(1, fence=2, late=True), batch(spec, *OTHER))
        state.apply(ticket(2, fence=3, attempt=1), batch(spec, *OTHER))
        assert rows_of(state) == expected(spec, OTHER, OTHER)
        state.apply(ticket(2, fence=4, attempt=2), batch(spec))
        state.apply(ticket(2, fence=5, attempt=3), batch(spec, *ROWS))
        assert rows_of(state) == expected(spec, OTHER, ROWS)


def test_of_many_committers_at_once_one_appends(spec: StateSpec) -> None:
    def commit(_: int) -> Applied:
        with spec.factory.make_state(spec) as state:
            return state.apply(ticket(1), batch(spec, *ROWS))

    with ThreadPoolExecutor(4) as pool:
        answers = Counter(pool.map(commit, range(4)))
    assert answers == {Applied.APPLIED: 1, Applied.ALREADY: 3}
    with spec.factory.make_state(spec) as state:
        assert rows_of(state) == expected(spec, ROWS)


def test_another_definition_is_refused_and_so_are_queries_by_key(spec: StateSpec) -> None:
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, *ROWS))
        with pytest.raises(ConfigurationError, match="by key"):
            state.get_many([()])
    other = parse_declared("word string, n string, tags array<string>, at timestamp")
    with pytest.raises((DefinitionChangedError, ConfigurationError), match=r"n string|column n is long"):
        spec.factory.make_state(replace(spec, values=other, staged=other))


# ---- tables ----------------------------------------------------------------------------------------------------


def test_rows_say_which_transaction_they_came_in(postgres: PostgresServer, tmp_path: Path) -> None:
    spec = spec_of("table", tmp_path)
    with spec.factory.make_state(spec) as state, postgres.connect() as connection:
        assert isinstance(state, OpenTableSink)
        state.apply(ticket(1), batch(spec, *ROWS))
        state.apply(ticket(2), batch(spec, *OTHER))
        found = connection.execute(f"SELECT txid, count(*) FROM {state.dialect.data} GROUP BY 1 ORDER BY 1".encode())
        assert found.fetchall() == [(1, 3), (2, 1)]


# ---- in a topology ---------------------------------------------------------------------------------------------


def test_a_stream_is_persisted_into_a_sink_by_the_fields_alone(tmp_path: Path) -> None:
    topology = Topology("letters")
    letters = topology.new_stream("letters", FixedBatchSpout("letter string, n long", [("a", 1), ("b", 2)]))
    letters.partition_persist(FileSink(str(tmp_path)), "n, letter", name="kept")
    (spec,) = topology.states.values()
    assert (spec.keys, spec.values, spec.commutes) == ((), parse_declared("n long, letter string"), True)
    assert spec.describe().endswith("-> (n long, letter string) by appending")
    topology.compile()


@pytest.mark.parametrize("more", [{"keys": "letter"}, {"values": "n long"}, {"updater": print}])
def test_a_sink_takes_neither_keys_nor_an_updater(tmp_path: Path, more: Any) -> None:
    letters = Topology("letters").new_stream("letters", FixedBatchSpout("letter string", ["a"]))
    with pytest.raises(PlanError, match="appends"):
        letters.partition_persist(FileSink(str(tmp_path)), "letter", **more)


def test_aggregates_are_no_rows_to_append_and_a_map_has_keys(tmp_path: Path) -> None:
    letters = Topology("letters").new_stream("letters", FixedBatchSpout("letter string", ["a"]))
    with pytest.raises(PlanError, match="only appends"):
        letters.group_by("letter").persistent_aggregate(FileSink(str(tmp_path)), Count(), "n")
    with pytest.raises(PlanError, match="no keys"):
        letters.partition_persist(SqliteState(str(tmp_path / "x.db")), "letter")


@pytest.mark.parametrize("options", [{"path": ""}, {"path": "x", "format": "xml"}])
def test_a_sink_that_cannot_be_is_refused_when_the_dag_is_built(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        FileSink(**options)


@pytest.mark.parametrize(("form", "fields"), [("csv", "a array<long>"), ("csv", "a binary"), ("json", "a binary")])
def test_types_that_a_format_cannot_hold_are_refused(tmp_path: Path, form: str, fields: str) -> None:
    schema = parse_declared(fields)
    factory = FileSink(str(tmp_path), form)
    spec = StateSpec(topology="t", name="s", keys=(), values=schema, staged=schema, factory=factory)
    with pytest.raises(ConfigurationError, match=f"as {form}"):
        factory.make_state(spec)
