"""States that only append rows: they take a batch piece by piece, and have no values to ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_trident.errors import PlanError
from airflow_trident.spouts.memory import FixedBatchSpout
from airflow_trident.states.delta.table import DeltaTable
from airflow_trident.states.files.sink import FileSink
from airflow_trident.states.sql.table_sink import TableSink
from airflow_trident.topology.topology import Topology

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
