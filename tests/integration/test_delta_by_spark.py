"""Delta tables of this package, read by Spark with Delta's own jars: the rows are those that deltalake reads."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_trident.spouts.delta.spout import DeltaSpout
from airflow_trident.states.delta.state import DeltaState
from airflow_trident.testing.suites import batch_rows, metadata_of_all
from airflow_trident.types import parse_declared
from tests.contracts.test_table_partitions import ODD
from tests.fixtures.program import Program
from tests.fixtures.rewrites import keyed, processed, two
from tests.fixtures.state import batch, counts, ticket
from tests.fixtures.table import ForeignDeltaTable, ForeignTable

TYPES = parse_declared(
    "n long, word string, many int, yes boolean, d date, at timestamp, sum decimal(38,9), real double, raw binary, "
    "parts array<string>, told map<string,long>"
)


def every_type(folder: Path) -> ForeignTable:
    """In partitions with odd names, some of them null; with a checkpoint, and rows behind it."""
    table = ForeignDeltaTable(folder, TYPES, partition_by=("word", "d"))
    day, at = datetime.date(1912, 2, 28), datetime.datetime(2026, 3, 29, 1, 30, 0, 7, datetime.UTC)
    rows = [
        (1, ODD, -7, True, day, at, Decimal("-1.000000001"), 0.1, b"\0x", ["a", None], {"a": 1}),
        (2, None, None, None, None, None, None, None, None, None, None),
        (3, "a", 1, False, day, at, Decimal(10) ** 28, float("inf"), b"", [], {}),
    ]
    with table.opened() as state:
        for txid in range(1, 5):
            state.apply(ticket(txid), batch(table.spec, *((txid * 10 + row[0], *row[1:]) for row in rows)))
            if txid == 2:
                deltalake.DeltaTable(str(folder / "sales")).create_checkpoint()
    return table


def overwritten(folder: Path) -> ForeignTable:
    table = ForeignDeltaTable(folder, partition_by=("word",), overwrites=True)
    with table.opened() as state:
        state.apply(ticket(1), batch(table.spec, ("a", 1), ("b", 2), (None, 3)))
        state.apply(ticket(2), batch(table.spec, ("a", 4), (None, 5)))
    return table


def rewritten(folder: Path) -> ForeignTable:
    table = keyed(folder, "delta")
    with table.opened() as state:
        two(table, state)
        state.apply_files(ticket(3), processed(table, state, 3, (2, "new"), (5, "e"), (3, None, True)))
    return table


def plain(rows: Iterable[dict[str, Any]]) -> list[str]:
    """In one order, and as JSON has them."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


@pytest.mark.rare
@pytest.mark.spark
def test_spark_reads_what_deltalake_reads(tmp_path: Path) -> None:
    made: dict[str, ForeignTable] = {}
    for name, make in (
        ("every type", every_type),
        ("overwrite", overwritten),
        ("re [1]{b,c}*?write", rewritten),
    ):
        (tmp_path / name).mkdir()
        made[name] = make(tmp_path / name)
    wanted = {name: plain(table.read().to_pylist()) for name, table in made.items()}
    queries = {name: f"SELECT * FROM delta.`{tmp_path}/{name}/sales`" for name in made}
    spec = counts(DeltaState(str(tmp_path), table="n"))
    with spec.factory.make_state(spec) as state:
        state.apply(ticket(1), batch(spec, ("a", 1), ("b", 2)))
        state.apply(ticket(2), batch(spec, ("a", 3)))
        state.publish()
    queries["state"] = f"SELECT word, sum(n) AS n FROM delta.`{tmp_path}/n` GROUP BY word"
    queries["published"] = f"SELECT * FROM delta.`{tmp_path}/n_latest`"
    wanted["state"] = wanted["published"] = plain([{"word": "a", "n": 4}, {"word": "b", "n": 2}])
    assert {name: plain(rows) for name, rows in by_spark(tmp_path, queries).items()} == wanted


def by_spark(folder: Path, queries: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    (folder / "queries.json").write_text(json.dumps(queries))
    program = Program("delta_by_spark", folder / "queries.json", printed=folder / "printed")
    assert program.wait(300) == 0, (folder / "printed").read_text()
    found: dict[str, list[dict[str, Any]]] = json.loads((folder / "printed").read_text().splitlines()[-1])
    return found


@pytest.mark.rare
@pytest.mark.spark
def test_a_spout_reads_tables_of_spark_with_deletion_vectors_and_other_names_of_columns(tmp_path: Path) -> None:
    modes = ("name", "id", "none")
    queries = {}
    for kind in modes:
        table = f"delta.`{tmp_path}/{kind}`"
        for number, text in enumerate(
            [
                f"CREATE TABLE {table} (n long, {'word' if kind == 'none' else '`a word`'} string, day date)"
                f" USING delta PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode'='{kind}',"
                " 'delta.enableDeletionVectors'='true')",
                f"INSERT INTO {table} SELECT id, 'w' || id, date'2026-01-01' + cast(id % 2 AS int) FROM range(100000)",
                f"DELETE FROM {table} WHERE n % 3 = 0",
                *([f"ALTER TABLE {table} RENAME COLUMN `a word` TO word"] if kind != "none" else []),
                f"ALTER TABLE {table} ADD COLUMN more int",
                f"INSERT INTO {table} SELECT id, 'new', date'2026-01-05', 7 FROM range(5)",
                f"UPDATE {table} SET word = 'other' WHERE n = 1",
            ]
        ):
            queries[f"{kind} {number}"] = text
        queries[kind] = f"SELECT n, word, day, more FROM {table} WHERE n < 100 OR n > 99900"
    found = by_spark(tmp_path, queries)
    for kind in modes:
        spout = DeltaSpout(f"{tmp_path}/{kind}", fields="n long, word string, day date, more int", max_files=2)
        metadata = metadata_of_all(spout)
        rows = [row for each in metadata for row in batch_rows(spout, each)]
        assert len(metadata) > 1
        assert len(rows) == 66_666 + 5
        some = [
            dict(zip(("n", "word", "day", "more"), row, strict=True)) for row in rows if not 100 <= row[0] <= 99_900
        ]
        assert plain(some) == plain(found[kind])
