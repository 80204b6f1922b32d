"""From a table to tables and files: SqlSpout, PostgresState and sinks in one topology, run by the whole protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

from airflow_trident import Count, FileSink, SqlSpout, Sum, TableSink, Topology
from airflow_trident.engine.engine import Engine
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.postgres import CONN_ID, PASSWORD, PostgresServer, postgres_state

ROWS = 1000


def sales(folder: Path, orders: str) -> Topology:
    topology = Topology("sales")
    spout = SqlSpout(CONN_ID, table=orders, fields="id long, shop string, amount long", max_rows=300)
    stream = topology.new_stream("orders", spout)
    state = postgres_state(folder)
    stream.group_by("shop").persistent_aggregate(state, "amount", Sum(), "total")
    stream.persistent_aggregate(state, Count(), "orders")
    stream.partition_persist(TableSink(CONN_ID, schema=state.schema), "id, shop", name="loaded")
    stream.partition_persist(FileSink(str(folder / "out")), "id, amount", name="copied")
    return topology


@pytest.fixture(params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def engine(request: pytest.FixtureRequest) -> Engine:
    engine: Engine = request.getfixturevalue(f"{request.param}_engine")
    return engine


def test_new_rows_are_summed_loaded_and_copied_exactly_once(
    postgres: PostgresServer, tmp_path: Path, engine: Engine
) -> None:
    orders = f"{postgres_state(tmp_path).schema}_orders"
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {orders} (id bigserial, shop text, amount bigint)".encode())
        connection.execute(
            f"INSERT INTO {orders} (shop, amount) SELECT 's' || i % 7, i FROM generate_series(1, {ROWS}) i".encode()
        )
    topology = sales(tmp_path, orders)
    said: list[str] = []
    with MemoryLedger("sales") as ledger:
        runner = LocalRunner(
            ledger=ledger,
            topology=topology,
            engine=engine,
            staging_root=str(tmp_path / "staging"),
            progress=said.append,
        )
        assert runner.run() == [1, 2, 3, 4]
        assert runner.run() == []
        recorded = repr([ledger.view(txid) for txid in range(1, 5)])

    expected: dict[str, int] = {}
    for number in range(1, ROWS + 1):
        shop = f"s{number % 7}"
        expected[shop] = expected.get(shop, 0) + number
    found: dict[str, Any] = {}
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = sorted(state.items())
    assert found["total"] == [((shop,), (total,)) for shop, total in sorted(expected.items())]
    assert found["orders"] == [((), (ROWS,))]
    assert [row for _, row in found["loaded"]] == [(number, f"s{number % 7}") for number in range(1, ROWS + 1)]
    files = pyarrow.dataset.dataset(tmp_path / "out", format="parquet").to_table()
    assert sorted(files.column("id").to_pylist()) == list(range(1, ROWS + 1))
    plan = repr(topology.compile()) + topology.definition().digest if hasattr(topology.definition(), "digest") else ""
    assert PASSWORD not in plan + recorded + "".join(said)
