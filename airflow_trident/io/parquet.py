"""Parquet files: as Spark wrote them, and damaged ones."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def damage_as_arrow_error(file: Any) -> Iterator[None]:
    """Arrow reports damaged pages as OSError, as it reports a storage that does not answer. This context finds out
    which of both it was: it reads the file once more, and notes whether the storage answers.

    :param file: an open file whose rows are read in the context.
    :raises pyarrow.ArrowInvalid: the storage answers, and what it gives is damaged.
    :raises OSError: any other error of the storage.
    """
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        if error.errno is not None or not _is_damaged(file):
            raise
        raise pa.ArrowInvalid(str(error)) from error


def _is_damaged(file: Any) -> bool:
    import pyarrow as pa

    watched = _WatchedFile(file)
    try:
        for _ in parquet_file(watched).iter_batches():
            pass
    except (OSError, pa.ArrowException):
        return not watched.has_failed
    return False


class _WatchedFile(io.RawIOBase):
    """An open file; `has_failed`: has its storage ever raised an error?"""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.has_failed = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        with self._noting():
            return int(self._file.tell())

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._noting():
            self._file.seek(offset, whence)
            return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        with self._noting():
            return bytes(self._file.read() if size < 0 else self._file.read(size))

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            self.has_failed = True
            raise
