"""Reads a file, or a part of it, as record batches of the declared fields. Damage is an error, never fewer rows."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import StructRule, arrow_schema, fitted_batch
from airflow_trident.io.parquet import parquet_file
from airflow_trident.io.values import UnfitValueError
from airflow_trident.spouts.files.columns import parsed, reading_type
from airflow_trident.spouts.files.contents import MENDED
from airflow_trident.spouts.files.json_maps import with_lists
from airflow_trident.spouts.files.lines import LineTooLongError, lines_of, whole_lines
from airflow_trident.spouts.files.statistics import groups_that_may_hold
from airflow_trident.types import Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_trident.operations.expr.tree import Expression

BATCH_ROWS = 1 << 16
_BROKEN = 'encoding_errors="replace" reads U+FFFD where bytes are no UTF-8. Or:'
_CSV_BLOCK_BYTES = 8 << 20
_CURE = f"Declare the type that the values have. Or: {MENDED}"
_NULL_LINE = re.compile(rb"\n[ \t\r]*null[ \t\r]*(?:\n|\Z)")
_DAMAGE = (KeyError, EOFError, zlib.error, gzip.BadGzipFile, LineTooLongError, ValueError, RecursionError)


class FileFormat(StrEnum):
    TEXT = "text"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"

    @property
    def has_lines(self) -> bool:
        """Can a file be cut at the ends of lines?"""
        return self in (FileFormat.TEXT, FileFormat.JSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read. `header`: the first line of a csv file names the columns. `ignore_extra`: undeclared columns are
    left out; otherwise they are an error. `replace_broken`: in text, bytes that are not UTF-8 become U+FFFD. For
    Parquet: `columns`, the columns of the schema to read (None: all), and `filters`, column expressions: rows that do
    not fulfil all of them may be left out.
    """

    format: FileFormat
    schema: Schema
    header: bool
    ignore_extra: bool
    replace_broken: bool = False
    columns: tuple[str, ...] | None = None
    filters: tuple[Expression, ...] = ()

    @property
    def read_schema(self) -> Schema:
        return self.schema if self.columns is None else select(self.schema, self.columns, "FileSpout")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """The bytes [begin, end) of the file at `path`; the whole file if `end` is None."""

    path: str
    begin: int = 0
    end: int | None = None


def read_part(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """Read a part of a file.

    :param file: open, at any position; it stays open.
    :raises DamagedInputError: the content does not have the format, or not the declared columns.
    :raises OSError: the file cannot be read.
    """
    read = {
        FileFormat.TEXT: _read_text,
        FileFormat.CSV: _read_csv,
        FileFormat.JSON: _read_json,
        FileFormat.PARQUET: _read_parquet,
    }[reading.format]
    for batch in read(reading, part, file):
        for begin in range(0, batch.num_rows, BATCH_ROWS):
            yield batch.slice(begin, BATCH_ROWS)


# ---- text ------------------------------------------------------------------------------------------------------


def _read_text(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = arrow_schema(reading.schema)
    strict = not reading.replace_broken
    for at, chunk in _chunks(part, file):
        with _damage(part.path, f"in the lines from byte {at}", hint=_BROKEN):
            lines = lines_of(chunk, strict=strict)
        yield pa.record_batch([lines], schema=schema)


def _chunks(part: FilePart, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Chunks of whole lines of a part, each with the offset of its first byte in the (unpacked) file."""
    at = part.begin
    with _damage(part.path), _unpacked(part.path, file) as unpacked:
        unpacked.seek(part.begin)
        for chunk in whole_lines(unpacked, None if part.end is None else part.end - part.begin):
            yield at, chunk
            at += len(chunk)


# ---- JSON ------------------------------------------------------------------------------------------------------


def _read_json(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """One object in each line; a field that an object lacks is null. Chunks of whole lines: no line crosses a block."""
    import pyarrow as pa
    import pyarrow.json as pj

    explicit = pa.schema([(field.name, reading_type(field.type, "json")) for field in reading.schema])
    options = pj.ParseOptions(
        explicit_schema=explicit, unexpected_field_behavior="ignore" if reading.ignore_extra else "error"
    )
    has_maps = any("map<" in field.type for field in reading.schema)
    for at, chunk in _chunks(part, file):
        with _damage(part.path, f"in the lines from byte {at}", hint="Each line holds one JSON object."):
            if _NULL_LINE.search(b"\n" + chunk):
                raise ValueError("a line is null")  # the parser would end the process
            lines = with_lists(chunk, reading.schema) if has_maps else chunk
            if not lines:
                continue
            read_options = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
            table = pj.read_json(io.BytesIO(lines), read_options=read_options, parse_options=options)
            # The parser does not reject broken UTF-8.
            table.validate(full=True)
        what = f"the file {part.path!r}, in the lines from byte {at}"
        for batch in table.combine_chunks().to_batches():
            yield _parsed_batch(reading, batch, what)


# ---- CSV -------------------------------------------------------------------------------------------------------


class _CountingQuotes(io.RawIOBase):
    """Counts quotes: after an unclosed quote the parser takes all that follows for one value, without an error."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.quotes = 0

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.quotes += block.count(b'"')
        return block


def _read_csv(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    with _damage(part.path), _unpacked(part.path, file) as unpacked:
        if not unpacked.read(1):
            return  # an empty file has no columns to check
        unpacked.seek(0)
        counting = _CountingQuotes(unpacked)
        with _csv_reader(reading, counting) as reader:
            _require_columns(reading, reader.schema.names, part.path)
            rows = 0
            for batch in reader:
                yield _parsed_batch(reading, batch, f"the file {part.path!r}", rows)
                rows += batch.num_rows
        if counting.quotes % 2:
            _require_closed_quotes(part.path, unpacked)


@contextmanager
def _csv_reader(reading: ReadOptions, file: Any) -> Iterator[Any]:
    import pyarrow.csv as pc

    names = list(names_of(reading.schema))
    read_options = pc.ReadOptions(
        use_threads=False, block_size=_CSV_BLOCK_BYTES, column_names=None if reading.header else names
    )
    convert_options = pc.ConvertOptions(
        column_types={field.name: reading_type(field.type, "csv") for field in reading.schema},
        null_values=[""],
        strings_can_be_null=False,
        include_columns=names if reading.ignore_extra else None,
    )
    # With several columns an empty line is no record; with one column it is an empty value.
    parse_options = pc.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) > 1)
    reader = pc.open_csv(file, read_options=read_options, parse_options=parse_options, convert_options=convert_options)
    with reader:
        yield reader


def _require_closed_quotes(path: str, file: BinaryIO) -> None:
    """An odd number of quotes is right only if some are inside of unquoted values: a second, strict parser checks
    that."""
    import csv

    file.seek(0)
    text = io.TextIOWrapper(cast("Any", file), encoding="utf-8", newline="")
    limit = csv.field_size_limit(2**31 - 1)
    try:
        for _ in csv.reader(text, strict=True):
            pass
    except csv.Error as error:
        raise DamagedInputError(
            f"the file {path!r} ends inside a quoted value, or a quote is out of place ({error})",
            MENDED,
        ) from error
    finally:
        csv.field_size_limit(limit)
        text.detach()


# ---- Parquet ---------------------------------------------------------------------------------------------------


@contextmanager
def opened_parquet(reading: ReadOptions, path: str, file: BinaryIO) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile` that has the declared columns.

    :raises DamagedInputError, OSError: like :func:`read_part`.
    """
    with _damage(path), parquet_file(file) as parquet:
        _require_columns(reading, parquet.schema_arrow.names, path)
        yield parquet


def _read_parquet(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    what, structs = f"the file {part.path!r}", StructRule.MAY_HAVE_MORE if reading.ignore_extra else StructRule.EXACT
    with opened_parquet(reading, part.path, file) as parquet:
        every = list(range(parquet.metadata.num_row_groups))
        groups, rows = groups_that_may_hold(parquet.metadata, reading.schema, reading.filters), 0
        if groups != every:
            what = f"{what}, in row groups {groups}"
        columns = list(names_of(reading.read_schema))
        for batch in parquet.iter_batches(BATCH_ROWS, row_groups=groups, columns=columns) if groups else ():
            yield fitted_batch(batch, reading.read_schema, what, first_row=rows, structs=structs, cure=_CURE)
            rows += batch.num_rows


# ---- all -------------------------------------------------------------------------------------------------------


@contextmanager
def _unpacked(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if its name ends with .gz. The file stays open."""
    if not path.endswith(".gz"):
        yield file
        return
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        yield cast("BinaryIO", unpacked)


def _parsed_batch(reading: ReadOptions, given: pa.RecordBatch, what: str, first_row: int = 0) -> pa.RecordBatch:
    """What a parser of text gave, in the declared types."""
    import pyarrow as pa

    arrays = []
    for field in reading.read_schema:
        try:
            arrays.append(parsed(given.column(field.name), field.type, empty_is_null=reading.format is FileFormat.CSV))
        except UnfitValueError as error:
            error.position, error.field = error.position + first_row, field.name
            raise DamagedInputError(f"{what}: {error}", _CURE) from error
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(reading.read_schema))


def _require_columns(reading: ReadOptions, found: list[str], path: str) -> None:
    declared = names_of(reading.schema)
    missing = [name for name in declared if name not in found]
    extra = [name for name in found if name not in declared]
    doubled = [name for name in declared if found.count(name) > 1]
    for names, what in ((missing, "lacks"), (doubled, "has twice"), (extra, "has undeclared")):
        if names and not (names is extra and reading.ignore_extra):
            raise DamagedInputError(
                f"the file {path!r} {what} the column {names[0]!r}; it has ({', '.join(found)}) and "
                f"({', '.join(declared)}) is declared",
                f'Mend the fields of the spout; extra_columns="ignore" leaves out what is not declared. Or: {MENDED}',
            )


@contextmanager
def _damage(path: str, where: str = "", hint: str = "") -> Iterator[None]:
    """Turns errors of parsers into DamagedInputError with the file's name."""
    import pyarrow as pa

    place = f" {where}" if where else ""
    try:
        yield
    except DamagedInputError:
        raise
    except (pa.ArrowException, *_DAMAGE) as error:
        raise DamagedInputError(
            f"the file {path!r} cannot be read{place}: {error}", f"{hint} {MENDED}".strip()
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise
        # Arrow reports damage inside Parquet files as OSError without a number.
        raise DamagedInputError(f"the file {path!r} cannot be read: {error}", MENDED) from error
