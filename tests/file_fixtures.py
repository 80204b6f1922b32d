"""Files for FileSpout, and what it reads out of them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_trident.arrow import arrow_schema, table_to_rows
from airflow_trident.spouts.file import FileSpout

UTC = datetime.UTC
TYPED = (
    "s string, l long, i int, d double, f float, b boolean, y binary, day date, at timestamp, p decimal(10,2), "
    "c time, took interval day to second"
)
TYPED_ROW = (
    "x",
    2**63 - 1,
    -(2**31),
    0.1,
    0.5,
    True,
    b"xyz",
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 12, 30, 0, 250000, UTC),
    Decimal("-1.50"),
    datetime.time(12, 30, 0, 250_000),
    datetime.timedelta(days=-1, microseconds=5),
)


def read(path: Path, **options: Any) -> list[tuple[Any, ...]]:
    spout = FileSpout(str(path), **options)
    emitter = spout.emitter()
    rows: list[tuple[Any, ...]] = []
    for split in emitter.splits(spout.coordinator().initialize_transaction(1, None)):
        for batch in emitter.read(split):
            assert batch.schema == arrow_schema(spout.schema)
            batch.validate(full=True)
            rows.extend(table_to_rows(pa.Table.from_batches([batch])))
    return rows


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
