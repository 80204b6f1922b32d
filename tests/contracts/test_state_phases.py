"""What the commit phase asks of every state: windows can be kept in it, and its new values can be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from airflow_trident import Count, FixedBatchSpout, Max, Sum, Topology
from airflow_trident.engine.local import LocalEngine
from airflow_trident.errors import StoreUnavailableError
from airflow_trident.functions import MapGet
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from tests.fixtures.state import FACTORIES, content

WORDS = ["a", "b", "a", None, "a", "b", "d", "a", None, "e"]
EVENTS = [(word, 10 * place) for place, word in enumerate(WORDS)]


@pytest.mark.parametrize("store", FACTORIES)
def test_new_values_windows_and_queries_by_every_state(store: str, tmp_path: Path) -> None:
    factory = FACTORIES[store](tmp_path)
    topology = Topology("phases")
    words = topology.new_stream("words", FixedBatchSpout("word string, at long", EVENTS, 3))
    counts = words.group_by("word").persistent_aggregate(factory, Count(), "n")
    counts.new_values_stream().persistent_aggregate(factory, "n", Sum(), "sum")
    windows = words.sliding_window(4, 2, factory, (Count(), "tuples"), ("word", Max(), "last"), bounds=True)
    windows.partition_persist(factory, "window_end, tuples, last", keys="window_end", name="windows")
    times = words.group_by("word").tumbling_window(
        timedelta(milliseconds=40), factory, Count(), "in_time", time="at", bounds=True
    )
    times.partition_persist(factory, "window_end, word, in_time", keys="window_end, word", name="times")
    asked = words.group_by("word").aggregate(Count(), "k").state_query(counts, "word", MapGet(), "n", after_commit=True)
    asked.persistent_aggregate(factory, "n", Sum(), "asked")
    with MemoryLedger("phases") as ledger, LocalEngine() as engine:
        runner = LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=str(tmp_path / "staging"))
        for _ in range(100):
            try:
                assert runner.run(max_transactions=4) is not None
            except StoreUnavailableError:
                continue
            break
    found = {}
    for name, spec in topology.states.items():
        with spec.factory.make_state(spec) as state:
            found[name] = content(state)
    assert found["n"] == {("a",): (4,), ("b",): (2,), (None,): (2,), ("d",): (1,), ("e",): (1,)}
    assert found["sum"] == found["asked"] == {(): (2 + 1 + 1 + 3 + 2 + 1 + 4 + 2 + 1,)}
    first, second = (datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=end) for end in (40, 80))
    assert found["times"] == {
        (first, "a"): (2,),
        (first, "b"): (1,),
        (first, None): (1,),
        (second, "a"): (2,),
        (second, "b"): (1,),
        (second, "d"): (1,),
    }
    assert found["windows"] == {(2,): (2, "b"), (4,): (4, "b"), (6,): (4, "b"), (8,): (4, "d"), (10,): (4, "e")}
