"""Where the rows of an aggregation are written: small results by the driver, large results by the workers.

The size of a result is known only when it is there. What Spark reads says how large it can be: after a small input the
driver collects the result. After a large input each worker decides by what it has: a small part comes home, a large
part is written there. So one job is enough, and the memory that the driver needs has a limit.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.spout import Split
from airflow_trident.io.arrow import arrow_schema, taken
from airflow_trident.staging.manifest import StagedFile
from airflow_trident.types import Schema, names_of

if TYPE_CHECKING:
    import pyarrow as pa

SMALL_INPUT_BYTES = 64 << 20
"""Sources of this size in all: a result is collected, which saves a Python pass over it."""
HOME_BYTES = 32 << 20
"""The parts that come home have at most this size together, as Parquet."""
_LIMIT = "spark.driver.maxResultSize"
_SPARKS_OWN = "1g"
_UNITS = {"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40, "p": 50, "pb": 50}
_SIZE = re.compile(r"\s*(-?\d+)([a-z]*)\s*")


def home_bytes(session: Any, max_bytes: int = HOME_BYTES) -> int:
    """How much of a result may come home: `max_bytes`, or half of what Spark's driver takes if that is less. The other
    half is for what Spark itself sends with each task's result.
    """
    limit = _limit_of(session) if max_bytes else None
    return max_bytes if limit is None else min(max_bytes, limit // 2)


def _limit_of(session: Any) -> int | None:
    return size_of(str(session.conf.get(_LIMIT, _SPARKS_OWN)))


def size_of(setting: str) -> int | None:
    """The bytes of a size as Spark writes it: ``"512m"``; None: no limit, or it is no size."""
    match = _SIZE.fullmatch(setting.lower())
    if match is None or match[2] not in _UNITS or int(match[1]) <= 0:
        return None
    return int(match[1]) << _UNITS[match[2]]


def is_refused(error: Exception) -> bool:
    """Was a result larger than Spark's driver takes?"""
    return "maxResultSize" in str(error)


def is_collected(splits: Sequence[Split], session: Any) -> bool:
    """Does the driver collect what is made of these splits? If one is of unknown size, only under Spark's own limit."""
    if known_bytes(splits) > SMALL_INPUT_BYTES:
        return False
    return all(split.size_bytes is not None for split in splits) or _limit_of(session) is not None


def known_bytes(splits: Sequence[Split]) -> int:
    """The size of splits, without those of unknown size."""
    return sum(split.size_bytes or 0 for split in splits)


def parts_of(written: Callable[[int], pa.Table], state: str, kept_bytes: int) -> list[StagedFile]:
    """The parts that the workers wrote, and those that came home as rows.

    :param written: runs the job; its argument: a part of at most so many bytes comes home.
    """
    try:
        parts = written(kept_bytes)
    except Exception as error:
        if not kept_bytes or not is_refused(error):
            raise
        parts = written(0)  # there are more partitions than were expected
    return [StagedFile(state=state, **row) for row in parts.to_pylist()]


def notes_in(table: pa.Table) -> list[bytes]:
    """The result of a job that only measures: a note of each partition."""
    notes: list[bytes] = table.column(0).to_pylist()
    return notes


def came_home(parts: Sequence[StagedFile]) -> tuple[pa.Table | None, list[StagedFile]]:
    """The rows of the parts that are no files yet, and the files."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.read_table(io.BytesIO(part.content)) for part in parts if part.content]
    return pa.concat_tables(tables) if tables else None, [part for part in parts if not part.content]


def plain(table: pa.Table, schema: Schema) -> pa.Table:
    """With exactly the sink's fields and types: Spark marks nullability in its own way."""
    return table.select(list(names_of(schema))).cast(arrow_schema(schema))


def apart(table: pa.Table, schema: Schema, member: str, count: int) -> list[pa.Table]:
    """The rows of each transaction of a group.

    :param member: the column with the position of a row's transaction.
    """
    import numpy as np

    members = table.column(member).to_numpy()
    rows = plain(table, schema)
    if np.any(np.diff(members) < 0):
        order = np.argsort(members, kind="stable")
        members, rows = members[order], taken(rows, order)
    ends = np.searchsorted(members, np.arange(count + 1)).tolist()
    return [rows.slice(begin, end - begin) for begin, end in pairwise(ends)]
