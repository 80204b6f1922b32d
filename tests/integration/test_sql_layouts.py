"""The tables of SQL states are a durable format: a database in the form of its dump is opened and continued, and what a
state writes has that form.

The dumps in tests/golden/sql have version 1 of the format.
"""

from __future__ import annotations

import datetime
import re
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_trident.contracts.state import State, StateFactory, StateSpec
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.operations.aggregators import Count, Max, Sum
from airflow_trident.states.memory import MemoryState
from airflow_trident.topology.verbs.states import MapPut
from airflow_trident.types import names_of
from tests.fixtures.postgres import PASSWORD, postgres_program, running
from tests.fixtures.state import FACTORIES, batch, combined, content, keep_longest, ticket

GOLDEN = Path(__file__).parent.parent / "golden" / "sql"
STORES = ["sqlite", "sqlalchemy on sqlite", "postgres", "sqlalchemy on postgres"]
ALL_TYPES = (
    "i int, x double, d decimal(20,3), t timestamp, day date, at time, took interval day to second, bits binary, "
    "ok boolean, tags array<string>, m map<string,long>, s struct<a:long,b:string>"
)
DAY = datetime.date(2024, 2, 29)
INSTANT = datetime.datetime(2024, 2, 29, 12, 30, 0, 125_000, tzinfo=datetime.UTC)
TOOK = datetime.timedelta(hours=1, microseconds=5)
FULL = (7, 0.1, Decimal("1.250"), INSTANT, DAY, INSTANT.time(), TOOK, b"\0\xff", True, ["x", None], {"k": 1}, None)
ODD = (None, float("nan"), None, None, None, None, None, b"", False, [], {}, {"a": 1, "b": "y"})


def states(factory: StateFactory) -> dict[str, tuple[StateSpec, list[list[tuple[Any, ...]]]]]:
    """Of each state the batches: of txid 1, 2, 2 again under a newer attempt, 4, and 3, which comes late."""
    counted = replace(
        combined(factory, "word string", "n long, most double", Count(), Max(), name="counted"), opaque=True
    )
    kept = combined(factory, "word string, k double", ALL_TYPES, name="kept")
    put = MapPut(state="kept", staged=names_of(kept.staged), keys=kept.key_names, values=kept.value_names)
    kept = replace(kept, updater=put, opaque=True)
    total = combined(factory, "", "x double, d decimal(38,3)", Sum(), Sum(), name="total")
    longest = replace(combined(factory, "word string", "line string", name="longest"), updater=keep_longest)
    return {
        "counted": (
            counted,
            [[("a", 1, 0.5), ("b", 2, 1.5)], [("a", 3, 9.0), (None, 1, None)], [("b", 5, 0.0), ("c", 1, 2.0)],
             [("a", 1, 7.0)], [("a", 10, 8.0), ("d", 1, 1.0)]],
        ),
        "kept": (
            kept,
            [[("a", 0.5, *FULL), (None, None, *ODD)], [("a", 0.5, *ODD), ("it's \\ \t", -1.0, *FULL)],
             [("a", 0.5, *FULL)], [("z", 2.0, *ODD)]],
        ),
        "total": (
            total,
            [[(0.5, Decimal("0.125"))], [(1.0, Decimal(2))], [], [(2.0, Decimal(1))], [(3.0, Decimal(0))]],
        ),
        "longest": (longest, [[("a", "xx"), ("b", "y")], [("a", None), ("c", "zz")], [], [("c", "zzz")]]),
    }  # fmt: skip


def begun(name: str, spec: StateSpec, batches: list[list[tuple[Any, ...]]]) -> None:
    with spec.factory.make_state(spec) as state:
        for txid in (1, 2):
            state.apply(ticket(txid), batch(spec, *batches[txid - 1]))


def gone_on(state: State, spec: StateSpec, batches: list[list[tuple[Any, ...]]]) -> None:
    if spec.opaque:
        state.apply(ticket(2, attempt=1, fence=25), batch(spec, *batches[2]))
    state.apply(ticket(4), batch(spec, *batches[3]))
    if spec.commutes:
        state.apply(ticket(3, fence=45, late=True), batch(spec, *batches[4]))
        if spec.opaque:
            state.apply(ticket(4, attempt=1, fence=50), batch(spec, *batches[0]))


# ---- dumps -----------------------------------------------------------------------------------------------------


def file_of(factory: Any) -> str:
    return str(factory.path if hasattr(factory, "path") else factory.connection.host)


def dump_sqlite(factory: Any) -> str:
    with closing(sqlite3.connect(file_of(factory))) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def load_sqlite(factory: Any, text: str) -> None:
    with closing(sqlite3.connect(file_of(factory))) as connection:
        connection.executescript(text)


def dump_postgres(factory: Any) -> str:
    one = running().connection
    where = f"postgresql://{one.login}@{one.host}:{one.port}/{one.schema}"
    asked = [str(postgres_program("pg_dump")), f"--schema={factory.schema}", "--inserts", "--no-owner", where]
    done = subprocess.run(asked, env={"PGPASSWORD": PASSWORD}, check=True, capture_output=True, text=True)
    kept = [line for line in done.stdout.splitlines() if line and not line.startswith(("--", "SET ", "SELECT ", "\\"))]
    return "\n".join(kept).replace(factory.schema, "golden") + "\n"


def load_postgres(factory: Any, text: str) -> None:
    running()
    with running().connect() as connection:
        connection.execute(re.sub(r"\bgolden\b", factory.schema, text).encode())


DUMPS: dict[str, Callable[[Any], str]] = dict.fromkeys(STORES[:2], dump_sqlite) | dict.fromkeys(
    STORES[2:], dump_postgres
)
LOADS: dict[str, Callable[[Any, str], None]] = dict.fromkeys(STORES[:2], load_sqlite) | dict.fromkeys(
    STORES[2:], load_postgres
)


def golden(store: str) -> str:
    return (GOLDEN / f"{store.replace(' ', '_')}.sql").read_text()


def shown(state: State, spec: StateSpec) -> list[str]:
    """As Arrow gives it: kinds of UTC differ from store to store."""
    rows = [(*key, *value) for key, value in content(state).items()]
    return sorted(map(str, rows_to_table((*spec.keys, *spec.values), rows).to_pylist()))


# ---- the tests -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_a_database_of_the_dump_is_opened_and_continued(store: str, tmp_path: Path) -> None:
    factory = FACTORIES[store](tmp_path)
    LOADS[store](factory, golden(store))
    for name, (spec, batches) in states(factory).items():
        memory = replace(spec, factory=MemoryState(f"{tmp_path}/{name}"))
        begun(name, memory, batches)
        with factory.make_state(spec) as state, memory.factory.make_state(memory) as other:
            for step in (lambda *_: None, gone_on):
                for one in (state, other):
                    step(one, spec, batches)
                assert state.marker() == other.marker()
                assert shown(state, spec) == shown(other, spec)


@pytest.mark.parametrize("store", STORES)
def test_what_a_state_writes_looks_as_the_dump(store: str, tmp_path: Path) -> None:
    factory = FACTORIES[store](tmp_path)
    for name, (spec, batches) in states(factory).items():
        begun(name, spec, batches)
    found = DUMPS[store](factory)
    # Rows have no order.
    assert sorted(found.splitlines()) == sorted(golden(store).splitlines())
