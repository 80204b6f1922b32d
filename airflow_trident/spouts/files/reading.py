"""The parts that the readers of all formats share, and the reader of text."""

from __future__ import annotations

import gzip
import lzma
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.values import UnfitValueError
from airflow_trident.spouts.files.columns import parsed
from airflow_trident.spouts.files.contents import MENDED
from airflow_trident.spouts.files.lines import LineTooLongError, lines_of, whole_lines
from airflow_trident.spouts.files.packing import unpacked
from airflow_trident.spouts.files.read_options import FileFormat, FilePart, ReadOptions
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa


_DAMAGE = (
    KeyError,
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    LineTooLongError,
    ValueError,
    RecursionError,
)
TYPE_CURE = f"Declare the type that the values have. Or: {MENDED}"
_REPLACE = 'Or encoding_errors="replace" reads U+FFFD where bytes are no UTF-8. Or:'


def parsed_batch(reading: ReadOptions, batch: pa.RecordBatch, subject: str, first_row: int) -> pa.RecordBatch:
    """What a parser of text gave, in the declared types.

    :param subject: the file, for the error text.
    :param first_row: the place of the first row in it.
    :raises DamagedInputError: a value does not fit.
    """
    import pyarrow as pa

    empty_is_null = reading.format is FileFormat.CSV and reading.dialect.null is None
    arrays = []
    for each in reading.read_schema:
        try:
            arrays.append(parsed(batch.column(each.name), each.type, empty_is_null=empty_is_null))
        except UnfitValueError as error:
            error.position, error.field = error.position + first_row, each.name
            raise DamagedInputError(f"{subject}: {error}", TYPE_CURE) from error
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(reading.read_schema))


def require_columns(reading: ReadOptions, names: Sequence[str], path: str) -> None:
    """:raises DamagedInputError: a file with columns of these names lacks a declared one, or has an undeclared one."""
    declared = names_of(reading.schema)
    missing = [name for name in declared if name not in names]
    extra = [name for name in names if name not in declared]
    doubled = [name for name in declared if names.count(name) > 1]
    for wrong, defect in ((missing, "lacks"), (doubled, "has twice"), (extra, "has undeclared")):
        if wrong and not (wrong is extra and reading.ignore_extra):
            raise DamagedInputError(
                f"the file {path!r} {defect} the column {wrong[0]!r}; it has ({', '.join(names)}) and "
                f"({', '.join(declared)}) is declared",
                f'Mend the fields of the spout; extra_columns="ignore" leaves out what is not declared. Or: {MENDED}',
            )


@contextmanager
def damage(path: str, location: str = "", hint: str = "") -> Iterator[None]:
    """Turns errors of parsers into DamagedInputError with the file's name."""
    import pyarrow as pa

    place = f" {location}" if location else ""
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
        # Arrow reports damage inside Parquet files as OSError without a number, and bzip2 its damage, too.
        raise DamagedInputError(f"the file {path!r} cannot be read{place}: {error}", MENDED) from error


_CONTROLS = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def advice_on_bytes(content: bytes) -> tuple[str, bool]:
    """The cure where bytes are no UTF-8, and whether they are text of another encoding."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "It is UTF-16: convert it to UTF-8 (`iconv -f UTF-16 -t UTF-8`).", False
    if _CONTROLS.search(content[:4096]):
        return "It looks like a packed or binary file: see what wrote it, and unpack it.", False
    return "Convert it to UTF-8, such as by `iconv -f LATIN1 -t UTF-8`.", True


# ---- lines -----------------------------------------------------------------------------------------------------


def read_text(reading: ReadOptions, part: FilePart, file: BinaryIO) -> Iterator[pa.RecordBatch]:
    """As `formats.read_part`: a row for each line."""
    import pyarrow as pa

    schema = arrow_schema(reading.schema)
    for at, chunk in chunks_of_lines(part, file):
        try:
            lines = lines_of(chunk, strict=not reading.replace_broken)
        except UnicodeDecodeError as error:
            advice, is_text = advice_on_bytes(chunk)
            with damage(part.path, f"in the lines from byte {at}", f"{advice} {_REPLACE if is_text else 'Or:'}"):
                raise error from None
        yield pa.record_batch([lines], schema=schema)


def chunks_of_lines(part: FilePart, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Chunks of whole lines of a part, each with the offset of its first byte in the (unpacked) file.

    :raises DamagedInputError, OSError: it cannot be read.
    """
    at = part.begin
    with damage(part.path), unpacked(part.path, file) as content:
        if part.begin:
            content.seek(part.begin)
        for chunk in whole_lines(content, None if part.end is None else part.end - part.begin):
            yield at, chunk
            at += len(chunk)
