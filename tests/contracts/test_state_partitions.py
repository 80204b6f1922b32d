"""T13 of `contracts.state`: states of bound topologies replace partitions, alone and in groups. Where files are
partitions, a batch replaces several."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import Applied, State, StateFactory, StateSpec
from airflow_trident.operations.aggregators import Count
from airflow_trident.protocol.file_partitions import FilePartitions
from airflow_trident.protocol.partitions import Partitions
from airflow_trident.protocol.records import CommitTicket
from airflow_trident.states.delta.table import DeltaTable
from airflow_trident.states.memory import MemoryState
from tests.fixtures.state import FACTORIES, SINKS, Product, batch, combined, iceberg_table, ticket

STEPS: dict[str, Partitions | FilePartitions] = {
    "day": Partitions("day", begin="2026-01-01", timezone="Europe/Berlin"),
    "hour": Partitions("hour", begin="2026-01-01T00:00:00", column="at"),
    "month": Partitions("month", begin="2026-01"),
    "file": FilePartitions(),
}
KEYS = {
    "day": ["2026-10-24", "2026-10-25", "2026-10-26"],
    "hour": ["2026-01-01T00:00:00", "2026-01-01T01:00:00", "2026-12-31T23:00:00"],
    "month": ["2026-01", "2026-02", "2026-12"],
    "file": ["day=1/a.csv", "A.csv", "a.csv", "ä %.csv"],
}


def keyed(factory: StateFactory, partitions: Partitions | FilePartitions, combiner: Any) -> StateSpec:
    """The partition column is behind another key."""
    spec = combined(factory, f"shop string, {partitions.field}", "n long", combiner)
    return replace(spec, partition=partitions)


def of_rows(factory: StateFactory, partitions: Partitions | FilePartitions) -> StateSpec:
    column = partitions.column
    if isinstance(factory, DeltaTable):
        factory = replace(factory, partition_by=f"shop, {column}")
    elif hasattr(factory, "partition_by"):
        factory = replace(factory, partition_by=(column, "shop"))
    spec = combined(factory, f"shop string, {partitions.field}, n long", "")
    names = tuple(getattr(factory, "partition_by", ()))
    by = tuple(name.strip() for name in factory.partition_by.split(",")) if isinstance(factory, DeltaTable) else names
    return replace(spec, keys=(), values=spec.staged, partition=partitions, overwrites=True, partition_by=by)


MAPS = ("memory", "sqlite", "postgres", "sqlalchemy on sqlite", "sqlalchemy on postgres", "sqlalchemy on mariadb")
TABLES = {
    "delta table": SINKS["delta table"],
    "iceberg table": iceberg_table,
    "table": SINKS["table"],
}
STATES: dict[str, Callable[[Path, Partitions | FilePartitions], StateSpec]] = {
    **{
        f"{name}, {combiner}": lambda folder, partitions, name=name, made=made: keyed(
            FACTORIES[name](folder), partitions, made()
        )
        for name in MAPS
        for combiner, made in (("added by the store", Count), ("merged by us", Product))
    },
    **{name: lambda folder, partitions, make=make: of_rows(make(folder), partitions) for name, make in TABLES.items()},
}


def drawn_rows(partitions: Partitions | FilePartitions, key: str, txid: int, chance: random.Random) -> list[tuple]:
    """Rows of a partition; a shop may be new, or gone, and there may be none."""
    value = partitions.value_of(key)
    shops = chance.sample(["north", "south", "öst/lich", "w%"], chance.randrange(4))
    return [(shop, value, txid * 10 + place + 1) for place, shop in enumerate(shops)]


def rows_of(state: State) -> list[tuple]:
    return sorted(key + value for key, value in state.items())


def bound_ticket(txid: int, fence: int, *keys: str) -> CommitTicket:
    return replace(ticket(txid, fence=fence), partitions=keys)


CASES = [
    *((name, "day") for name in STATES),
    *((name, step) for step in ("hour", "file") for name in STATES if not name.endswith("by us")),
    ("memory, merged by us", "file"),
    ("sqlite, merged by us", "file"),
    ("sqlite, added by the store", "month"),
]


@pytest.mark.parametrize(("name", "step"), CASES)
def test_t13_a_state_has_the_rows_of_the_last_batch_of_each_partition(name: str, step: str, tmp_path: Path) -> None:
    partitions, chance = STEPS[step], random.Random(f"{name} {step}")
    spec = STATES[name](tmp_path, partitions)
    expected: dict[str, list[tuple]] = {}
    txid = 0
    with spec.factory.make_state(spec) as state:
        for turn in range(8):
            members = []
            for _ in range(chance.choice([1, 2, 3]) if spec.takes_groups else 1):
                txid += 1
                keys = chance.sample(KEYS[step], chance.randrange(4) if step == "file" else 1)
                rows_by_key = {key: drawn_rows(partitions, key, txid, chance) for key in keys}
                rows = [row for part in rows_by_key.values() for row in part]
                members.append((bound_ticket(txid, turn + 1, *keys), batch(spec, *rows)))
                expected |= rows_by_key
            tickets, batches = [one for one, _ in members], [rows for _, rows in members]
            if len(members) > 1:
                assert set(state.apply_group(tickets, batches)) == {Applied.APPLIED}
            else:
                assert state.apply(tickets[0], batches[0]) is Applied.APPLIED
            assert rows_of(state) == sorted(row for rows in expected.values() for row in rows)
        assert state.apply(tickets[-1], batches[-1]) is Applied.ALREADY
        assert rows_of(state) == sorted(row for rows in expected.values() for row in rows)
    if isinstance(spec.factory, MemoryState):
        spec.factory.forget()


@pytest.mark.parametrize("name", ["memory, added by the store", "sqlite, added by the store", "table"])
def test_t13_a_group_goes_on_with_what_the_state_lacks(name: str, tmp_path: Path) -> None:
    """The committer died between the steps: the first of two revisions is there, and another one of its partition."""
    partitions = STEPS["day"]
    spec, day, other = STATES[name](tmp_path, partitions), *KEYS["day"][:2]
    value, aside = partitions.value_of(day), partitions.value_of(other)
    first, third = batch(spec, ("north", value, 1), ("south", value, 2)), batch(spec, ("north", value, 10))
    with spec.factory.make_state(spec) as state:
        tickets = [bound_ticket(1, 1, day), bound_ticket(2, 1, other), bound_ticket(3, 1, day)]
        second = batch(spec, ("north", aside, 5))
        state.apply_group(tickets[:2], [first, second])
        tickets = [replace(one, fence=2) for one in tickets]
        assert state.apply_group(tickets, [first, second, third]) == (
            Applied.ALREADY,
            Applied.ALREADY,
            Applied.APPLIED,
        )
        assert rows_of(state) == [("north", value, 10), ("north", aside, 5)]
    if isinstance(spec.factory, MemoryState):
        spec.factory.forget()
