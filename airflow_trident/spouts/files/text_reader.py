"""Reads text files, and cuts what has lines into chunks of whole ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from airflow_trident.io.arrow import arrow_schema
from airflow_trident.spouts.files.lines import lines_of, whole_lines
from airflow_trident.spouts.files.packing import unpacked
from airflow_trident.spouts.files.reading import FilePart, ReadOptions, advice_on_bytes, damage

if TYPE_CHECKING:
    import pyarrow as pa

_REPLACE = 'Or encoding_errors="replace" reads U+FFFD where bytes are no UTF-8. Or:'


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
