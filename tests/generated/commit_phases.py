"""Random topologies that continue after their states: new values, windows and queries among the verbs of
`random_topologies`, run through the whole protocol in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from airflow_trident import Count, FixedBatchSpout, Max, MemoryState, Sum, Topology
from airflow_trident.contracts.updater import MapState
from airflow_trident.engine.engine import Engine
from airflow_trident.errors import PlanError
from airflow_trident.functions import MapGet
from airflow_trident.ledger.ledger import MemoryLedger
from airflow_trident.runtime.local import LocalRunner
from airflow_trident.topology.stream import TridentState
from tests.fixtures.engine import rows_as_text
from tests.generated.in_python import groups_of, largest, total
from tests.generated.operations import Row
from tests.generated.topologies import BINARY, MAX_ROWS, SCHEMA, VERBS, Made

Verb = Callable[[Topology, Made, Made, int], Made]


def run_committed(
    engine: Engine, sources: Iterable[list[Row]], program: Iterable[tuple[int, ...]]
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The final content of the states at the ends of a random topology, and what it must be."""
    with TemporaryDirectory() as folder:
        topology = Topology("random", exactly_once=False)
        store = MemoryState(folder)
        expected = _build(topology, _Behind(store), sources, program)
        with MemoryLedger("random") as ledger:
            staging = str(Path(folder) / "staging")
            LocalRunner(ledger=ledger, topology=topology, engine=engine, staging_root=staging).run()
        found = {}
        for name in expected:
            with store.make_state(topology.states[name]) as state:
                found[name] = rows_as_text(values for _, values in state.items())
        store.forget()
    return found, {name: rows_as_text(rows) for name, rows in expected.items()}


def _build(
    topology: Topology, behind: _Behind, sources: Iterable[list[Row]], program: Iterable[tuple[int, ...]]
) -> dict[str, list[Row]]:
    made = [
        Made(topology.new_stream(f"s{place}", FixedBatchSpout(SCHEMA, rows, splits=2)), rows)
        for place, rows in enumerate(sources)
    ]
    verbs: tuple[Verb, ...] = (behind.new_values, *VERBS, behind.window, behind.query, behind.new_values)
    binary = (*BINARY, behind.query)
    used: set[int] = set()
    for verb, first, second, variant in program:
        one, other = first % len(made), second % len(made)
        change = verbs[verb % len(verbs)]
        try:
            result = change(topology, made[one], made[other], variant)
        except PlanError as error:
            if "broadcast" not in error.message and "published already" not in error.message:
                raise
            continue  # a state is not asked once more for each copy of a tuple, and nothing is gated behind one
        if len(result.rows) > MAX_ROWS:
            continue
        used |= {one, other} if change in binary else {one}
        made.append(result)
    expected = {}
    for place, result in enumerate(made):
        if place not in used:
            behind.collect(result, f"end_{place}")
            expected[f"end_{place}"] = result.rows
    return expected


class _Behind:
    """The verbs after states; all states are in one store."""

    def __init__(self, store: MemoryState) -> None:
        self._store = store

    def _totals(self, topology: Topology, one: Made) -> TridentState:
        name = f"state_{len(topology.states)}"
        what = (("n", Sum(), "n"), ("x", Max(), "x"))
        return one.stream.group_by("k").persistent_aggregate(self._store, *what, name=name)

    def new_values(self, topology: Topology, one: Made, other: Made, variant: int) -> Made:
        if variant % 2:
            stream = self._totals(topology, one).new_values_stream()
            return Made(stream, [(rows[0][0], total(rows), largest(rows)) for rows in groups_of(one.rows, 0)])
        name = f"state_{len(topology.states)}"
        counted = one.stream.persistent_aggregate(self._store, Count(), "count", name=name).new_values_stream()
        return Made(counted.map(lambda count: ("all", count, None), SCHEMA), [("all", len(one.rows), None)])

    def window(self, topology: Topology, one: Made, other: Made, variant: int) -> Made:
        """Windows of which only the size is known, because tuples of a batch have no order."""
        length, slide = ((2, 2), (3, 1), (4, 2))[variant % 3]
        name = f"state_{len(topology.states)}"
        windows = one.stream.sliding_window(length, slide, self._store, Count(), "count", name=name)
        rows = [("window", min(end, length), None) for end in range(slide, len(one.rows) + 1, slide)]
        # Windows may be equal: without bounds they are still one tuple each.
        return Made(windows.map(lambda count: ("window", count, None), SCHEMA), rows)

    def query(self, topology: Topology, one: Made, other: Made, variant: int) -> Made:
        state = self._totals(topology, one)
        known = {rows[0][0]: (total(rows), largest(rows)) for rows in groups_of(one.rows, 0)}
        asked = other.stream.project("k, n, x").state_query(state, "k", MapGet(), "n2, x2", after_commit=True)
        found = asked.map(lambda k, n, x, n2, x2: (k, n2, x2), SCHEMA)
        return Made(found, [(row[0], *known.get(row[0], (None, None))) for row in other.rows])

    def collect(self, one: Made, name: str) -> None:
        numbered = one.stream.project("k, n, x").each("", lambda: [0], "number long")
        numbered.partition_persist(
            self._store,
            "number, k, n, x",
            _put_all,
            keys="number",
            values="k string, n long, x double",
            name=name,
        )


def _put_all(state: MapState, tuples: Iterable[tuple[Any, ...]]) -> None:
    rows = [row[1:] for row in tuples]
    state.multi_put([(number,) for number in range(len(rows))], rows)
