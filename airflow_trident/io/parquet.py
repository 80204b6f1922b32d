"""Parquet files: as Spark wrote them, damaged ones, and our own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_trident.io.arrow import Calendar

if TYPE_CHECKING:
    import pyarrow as pa

_LOOKED_AT = 4096
"""The rows of a column that show whether its values repeat."""
_REPEATS = 0.9
"""At most this share of them is distinct, else a dictionary becomes too large, and its writer begins anew without."""

_GROUP_ROWS = 1 << 17
"""The rows of a row group, if pieces are written."""

_NULLS = b"airflow_trident.nulls"
_REALS = ("FLOAT", "DOUBLE")

WRITTEN_BY_SPARK = b"org.apache.spark.version"
"""Spark's note in the footers of its files."""


_OTHER_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_OUR_CALENDAR_SINCE = (3, 1)


def calendar_of(footer: Any) -> Calendar:
    """The calendar of the days and moments of a file. Only Spark says it, by its version or a note.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    notes = footer.metadata or {}
    if any(note in notes for note in _OTHER_CALENDAR):
        return Calendar.HYBRID
    version = notes.get(WRITTEN_BY_SPARK)
    if version is None or tuple(map(int, version.split(b".")[:2])) >= _OUR_CALENDAR_SINCE:
        return Calendar.GREGORIAN
    return Calendar.HYBRID


_LIMITS = {"date": (-719_162, 2_932_896), "timestamp": (-62_135_596_800_000_000, 253_402_300_799_999_999)}
"""The years 1 to 9999 in days and microseconds."""


def is_within_years(footer: Any, names: set[str]) -> bool:
    """Do statistics show that days and moments of these columns, and of their parts, are within the years 1 to 9999?
    Spark does not look at that.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    for place in range(footer.num_columns):
        kind = _LIMITS.get(str(footer.schema.column(place).logical_type.type).lower())
        if kind is None or footer.schema.column(place).path.split(".")[0] not in names:
            continue
        for group in range(footer.num_row_groups):
            statistics = footer.row_group(group).column(place).statistics
            if not footer.row_group(group).num_rows:
                continue
            # nulls alone have no least one
            if statistics is None or not (statistics.has_min_max or statistics.has_null_count):
                return False
            if statistics.has_min_max and not kind[0] <= statistics.min_raw <= statistics.max_raw <= kind[1]:
                return False
    return True


def parquet_file(file: Any) -> Any:
    """A `pyarrow.parquet.ParquetFile` that compares the checksums of pages, where their writer made some: without, a
    bit that flipped is another value.

    :param file: an open file; it stays open.
    :raises pyarrow.ArrowException, OSError: it cannot be read.
    """
    import pyarrow.parquet as pq

    footer = pq.read_metadata(file)
    # Spark writes microsecond timestamps in an old format, which Arrow reads as nanoseconds: a range of only 584 years
    unit = "us" if WRITTEN_BY_SPARK in (footer.metadata or {}) else None
    return _with_unit(file, footer, unit)


def _with_unit(file: Any, footer: Any, unit: str | None) -> Any:
    """:param unit: of INT96 moments; None: nanoseconds."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, metadata=footer, coerce_int96_timestamp_unit=unit, page_checksum_verification=True)


def with_all_years(parquet: Any, file: Any, columns: Collection[str], groups: Iterable[int] | None = None) -> Any:
    """The same file with its INT96 moments in microseconds, if none has a finer part. Arrow reads them in nanoseconds,
    of which 64 bits hold the years 1677 to 2262, and wraps others.

    :param parquet: as :func:`parquet_file` opened `file`.
    :param columns: those that will be read. `groups`: the row groups; None: all.
    :raises pyarrow.ArrowException, OSError: it cannot be read.
    """
    footer = parquet.metadata
    leaves = (footer.schema.column(place) for place in range(footer.num_columns))
    old = [leaf.path for leaf in leaves if leaf.physical_type == "INT96" and leaf.path.split(".")[0] in columns]
    if not old or WRITTEN_BY_SPARK in (footer.metadata or {}):
        return parquet
    wide = _with_unit(file, footer, "us")
    for group in range(footer.num_row_groups) if groups is None else groups:
        exact, rounded = (each.read_row_group(group, columns=old) for each in (parquet, wide))
        if not all(map(_is_whole, _leaves(exact), _leaves(rounded))):
            return parquet
    return wide


def _leaves(nested: Any) -> Iterator[Any]:
    """The arrays of values below a table or an array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(nested, pa.Table):
        parts = [column.combine_chunks() for column in nested.columns]
    elif pa.types.is_struct(nested.type):
        parts = nested.flatten()
    elif pa.types.is_map(nested.type):
        parts = [nested.keys, nested.items]
    elif (
        pa.types.is_list(nested.type) or pa.types.is_large_list(nested.type) or pa.types.is_fixed_size_list(nested.type)
    ):
        parts = [pc.list_flatten(nested)]
    else:
        yield nested
        return
    for part in parts:
        yield from _leaves(part)


def _is_whole(nanoseconds: Any, microseconds: Any) -> bool:
    """Both wrap alike, so equality shows that nothing is below a microsecond."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_timestamp(microseconds.type):  # a key of a map, say
        return not pa.types.is_nested(microseconds.type)
    wrapped = pc.multiply(microseconds.cast(pa.int64()), 1000)
    return bool(pc.all(pc.equal(wrapped, nanoseconds.cast(pa.int64())), min_count=0).as_py())


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


def write_parquet(table: pa.Table, file: Any, **more: Any) -> None:
    """Writes the whole file. Only columns whose first values repeat get a dictionary: for others one is made, found too
    large and thrown away, which takes a quarter of the time and makes the file larger.

    :param file: an open file; it stays open.
    :param more: of `pyarrow.parquet.ParquetWriter`.
    """
    with parquet_writer(file, table.schema, _with_dictionary(table), **more) as write:
        write(table)


@contextmanager
def parquet_writer(
    file: Any, schema: pa.Schema, dictionary: bool | list[str] = True, **more: Any
) -> Iterator[Callable[..., None]]:
    """Writes tables into one file. Real numbers get neither statistics nor dictionaries: Arrow's leave out NaN and tell
    -0.0 from 0.0, so that a filter in Spark would lose rows. The nulls of such columns, which statistics would count,
    are in the footer's own metadata (:func:`null_counts`).

    :param file: an open file; it stays open.
    :param dictionary: columns that get one; True: each.
    :param more: of `pyarrow.parquet.ParquetWriter`.
    :returns: for a table, and options of `pyarrow.parquet.ParquetWriter.write_table`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = _without_reals(schema)
    if plain is not None:
        kept = plain if dictionary is True else [name for name in dictionary or () if name in plain]
        more = {"use_dictionary": kept, "write_statistics": plain, **more}
    else:
        more = {"use_dictionary": dictionary, **more}
    real = [field.name for field in schema if pa.types.is_floating(field.type)]
    nulls = dict.fromkeys(real, 0)
    with pq.ParquetWriter(file, schema, compression="zstd", **more) as writer:

        def write(table: pa.Table, **how: Any) -> None:
            for name in real:
                nulls[name] += table.column(name).null_count
            writer.write_table(table, **how)

        yield write
        if real:
            writer.add_key_value_metadata({_NULLS: json.dumps(nulls)})


def null_counts(footer: Any) -> dict[str, int]:
    """Null counts of columns, without parts of nested ones, as far as they are known.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    nulls: dict[str, int] = json.loads((footer.metadata or {}).get(_NULLS, b"{}"))
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    for place in range(footer.num_columns):
        column = footer.schema.column(place)
        if column.path != column.name or column.max_repetition_level:
            continue
        parts = [group.column(place).statistics for group in groups]
        if all(part is not None and part.has_null_count for part in parts):
            nulls[column.name] = sum(part.null_count for part in parts)
    return nulls


def _without_reals(schema: pa.Schema) -> list[str] | None:
    """The paths of columns, and of parts of nested ones, that are no real numbers; None: no column is one."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.ParquetWriter(buffer, schema).close()
    parquet_schema = pq.read_metadata(buffer).schema
    columns = [parquet_schema.column(place) for place in range(len(parquet_schema))]
    plain = [
        column.path
        for column in columns
        if column.physical_type not in _REALS and str(column.logical_type) != "Float16"
    ]
    return None if len(plain) == len(columns) else plain


def footer_bytes(footer: Any) -> bytes:
    """A file without rows that has this footer, so that whoever has it need not open the file that it is of.

    :param footer: `pyarrow.parquet.FileMetaData`.
    """
    buffer = io.BytesIO()
    footer.write_metadata_file(buffer)
    return buffer.getvalue()


def write_parquet_pieces(pieces: Iterable[pa.RecordBatch], schema: pa.Schema, file: Any, **more: Any) -> int:
    """As :func:`write_parquet`, for rows that come piece by piece and are never all in memory.

    :param more: of `pyarrow.parquet.ParquetWriter`.
    :returns: the number of rows.
    """
    groups, rows = _groups(pieces, schema), 0
    first = next(groups, schema.empty_table())
    with parquet_writer(file, schema, _with_dictionary(first), **more) as write:
        for table in (first, *groups) if first.num_rows else ():
            write(table, row_group_size=_GROUP_ROWS)
            rows += table.num_rows
    return rows


def _groups(pieces: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    import pyarrow as pa

    waiting, rows = list[Any](), 0
    for piece in pieces:
        waiting.append(piece)
        rows += piece.num_rows
        if rows >= _GROUP_ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def _with_dictionary(table: pa.Table) -> bool | list[str]:
    """The columns that get one; True: each, as is the default."""
    import pyarrow as pa

    encoded_names = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        first = column.slice(0, _LOOKED_AT)
        try:
            distinct = len(first.unique())
        except pa.ArrowNotImplementedError:  # a nested column: its parts would have to be looked at
            return True
        if distinct <= _REPEATS * len(first):
            encoded_names.append(name)
    return encoded_names
