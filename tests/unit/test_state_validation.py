"""What a store cannot keep is refused while the DAG is built, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident import Count
from airflow_trident.contracts.state import StateFactory
from airflow_trident.errors import ConfigurationError, PlanError
from airflow_trident.spouts.memory import FixedBatchSpout
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.states.delta.table import DeltaTable
from airflow_trident.states.files.sink import FileSink
from airflow_trident.states.memory import MemoryState
from airflow_trident.states.redis.state import NonTransactionalRedisState, RedisState
from airflow_trident.states.sql.postgres import PostgresState
from airflow_trident.states.sql.sqlalchemy_state import SqlState
from airflow_trident.states.sql.sqlite import SqliteState
from airflow_trident.states.sql.table_sink import TableSink
from airflow_trident.topology.topology import Topology

FIELDS = "tags array<string>, at time, took interval day to second, word string, WORD string, txid long, _key long"


def stream() -> Any:
    return Topology("t").new_stream("s", FixedBatchSpout(FIELDS, []))


KEPT_BY_KEY: list[StateFactory] = [
    SqliteState("x.db"),
    MemoryState("x"),
    PostgresState(),
    SqlState("x"),
    RedisState(),
    NonTransactionalRedisState(),
    DeltaState("x"),
]


@pytest.mark.parametrize("factory", KEPT_BY_KEY, ids=lambda factory: type(factory).__name__)
def test_keys_with_parts(factory: StateFactory) -> None:
    with pytest.raises(ConfigurationError, match=r"state 'n' has the key field 'tags' of type array<string>"):
        stream().group_by("tags").persistent_aggregate(factory, Count(), "n")


@pytest.mark.parametrize(
    ("factory", "groups", "said"),
    [
        (SqliteState("x.db"), "word, WORD", "SQLite cannot tell from another column"),
        (SqliteState("x.db"), "_key", "SQLite cannot tell from another column"),
        (DeltaState("x"), "word, WORD", "a Delta table cannot tell from another column"),
        (DeltaState("x"), "at", "'at' of type time; Delta tables have neither times nor intervals"),
        (DeltaState("x"), "took", "Delta tables have neither times nor intervals"),
        (RedisState(hash_by="at"), "word, at", "has the keys word, at, and hash_by='at'"),
    ],
)
def test_fields_that_cannot_be_keys_of_the_store(factory: StateFactory, groups: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        stream().group_by(groups).persistent_aggregate(factory, Count(), "n")


@pytest.mark.parametrize(
    ("sink", "fields", "said"),
    [
        (FileSink("x", "csv"), "tags", "cannot write nested values and bytes as csv"),
        (TableSink(), "word, txid", "'txid', which is its column of txids"),
    ],
)
def test_fields_that_cannot_be_written_by_a_sink(sink: StateFactory, fields: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        stream().partition_persist(sink, fields)


def test_static_states() -> None:
    with pytest.raises(ConfigurationError, match="Delta tables have neither times"):
        Topology("t").new_static_state(DeltaState("x"), "n", keys="at time", values="n long")


# ---- states that only append rows -----------------------------------------------------------------------------------


FACTORIES = {
    "TableSink": lambda folder: TableSink("db"),
    "FileSink": lambda folder: FileSink(str(folder)),
    "DeltaTable": lambda folder: DeltaTable(str(folder / "delta")),
}


@pytest.mark.parametrize("kind", FACTORIES)
def test_new_values_of_what_only_appends_are_refused_when_the_dag_is_built(tmp_path: Path, kind: str) -> None:
    topology = Topology("t")
    stream: Any = topology.new_stream("in", FixedBatchSpout("w string, n long", [("a", 1)]))
    state = stream.partition_persist(FACTORIES[kind](tmp_path), "w, n", name="rows")
    with pytest.raises(PlanError, match=r"state 'rows' is kept in .*, which appends rows and gives no new values"):
        state.new_values_stream()
    spec = state.spec
    assert spec.factory.capabilities.appends
    assert spec.factory.takes_pieces(spec)
