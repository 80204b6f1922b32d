"""Where the rows of an aggregation are written: small results by the driver, large results by the workers.

The size of a result is known only when it is there. What Spark reads says how large it can be: after a small input the
driver collects the result. After a large input each worker decides by what it has: a small part comes home, a large
part is written there. So one job is enough, and the memory that the driver needs has a limit.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Split
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.staging.manifest import StagedFile
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_INPUT_BYTES = 64 << 20
"""Sources of this size in all: a result is collected, which saves a Python pass over it."""
HOME_BYTES = 32 << 20
"""The parts that come home have at most this size together, as Parquet."""


def known_bytes(splits: Iterable[Split]) -> int:
    """The size of a batch, without splits of unknown size."""
    return sum(split.size_bytes or 0 for split in splits)


def came_home(parts: Sequence[StagedFile]) -> tuple[pa.Table | None, list[StagedFile]]:
    """The rows of the parts that are no files yet, and the files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(io.BytesIO(part.content)) for part in parts if part.content]
    return pa.concat_tables(tables) if tables else None, [part for part in parts if not part.content]


def plain(table: pa.Table, schema: Schema) -> pa.Table:
    """With exactly the sink's fields and types: Spark marks nullability in its own way."""
    return table.select(list(names_of(schema))).cast(arrow_schema(schema))
