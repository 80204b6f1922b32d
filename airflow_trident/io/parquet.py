"""Parquet files as Spark wrote them."""

from __future__ import annotations

from typing import Any

WRITTEN_BY_SPARK = b"org.apache.spark.version"
"""Spark's note in the footers of its files."""


def parquet_file(file: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile`.

    :param file: an open file; it stays open.
    :raises pyarrow.ArrowException, OSError: it cannot be read.
    """
    import pyarrow.parquet as pq

    footer = pq.read_metadata(file)
    # Spark writes microsecond timestamps in an old format, which Arrow reads as nanoseconds: a range of only 584 years
    unit = "us" if WRITTEN_BY_SPARK in (footer.metadata or {}) else None
    return pq.ParquetFile(file, metadata=footer, coerce_int96_timestamp_unit=unit)
