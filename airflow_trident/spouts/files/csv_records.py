r"""Cuts csv into blocks of whole records, each proven to be read in one way only, whatever its size.

A block without a quote (or an escape, where there are no quotes) has only one reading. In others it is proved for all
quotes at once that each one is where RFC 4180 has it: the value begins before it, ends behind it, or it is doubled.
What is not of this kind, a strict parser reads value by value: it refuses what has no reading, and writes the rest
down again as RFC 4180 has it. So Arrow's parser, which takes anything, never sees a block that it might take wrongly.

Records end with ``\n``, ``\r\n`` or ``\r``. Like Python's `csv` with ``strict=True``, a quote inside of an unquoted
value is a character like others. `csv` itself cannot be used here: it does not tell ``""`` from an empty value, knows
no escapes of Spark and COPY, and its limit of a value is one for the whole process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

from airflow_trident.spouts.files.lines import MAX_LINE_BYTES, LineTooLongError
from airflow_trident.spouts.files.read_options import CsvDialect

BLOCK_BYTES = 8 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COPY_ESCAPES = {
    b"b": b"\b",
    b"f": b"\f",
    b"n": b"\n",
    b"r": b"\r",
    b"t": b"\t",
    b"v": b"\v",
    b"0": b"\0",
    b"Z": b"\x1a",
}


class BadRecordError(ValueError):
    """A record has no reading. `row`: its number, from 0, among the records behind those that were read before."""

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(problem)
        self.row = row


@dataclass(frozen=True, slots=True)
class CsvValue:
    """A value of a record. `quoted`: it cannot be null."""

    text: bytes
    quoted: bool


@dataclass(frozen=True, slots=True)
class CsvBlock:
    """Whole records. `quote`: of the values in it, or None. `delimiter`: as in the dialect."""

    content: bytes
    quote: str | None


@dataclass(frozen=True)
class CsvGrammar:
    """The strict parser of a dialect."""

    dialect: CsvDialect

    def records(self, content: bytes, *, at_end: bool) -> Iterator[tuple[list[CsvValue], int]]:
        """The records that are whole, each with the offset behind it. An empty line is one empty value.

        :param at_end: does the content end with the file? Otherwise a record without an end may go on.
        :raises BadRecordError: a value is not closed, or goes on behind its closing quote.
        """
        values: list[CsvValue] = []
        at, row, size = 0, 0, len(content)
        while at < size or values:
            value, begin = self._value(content, at, at_end, row)
            if value is None:
                return
            values.append(value)
            end = content[begin : begin + 1]
            if end == self._delimiter:
                at = begin + 1
                if at == size and not at_end:
                    return
                continue
            if end == b"\r" and begin + 1 == size and not at_end:
                return  # is the next one its newline?
            at = begin + (2 if content[begin : begin + 2] == b"\r\n" else 1)
            if not end and not at_end:
                return
            yield values, min(at, size)
            values, row = [], row + 1

    def _value(self, content: bytes, at: int, at_end: bool, row: int) -> tuple[CsvValue | None, int]:
        """The value at an offset, and where it ends; None: it may go on."""
        quoted = self._quoted.match(content, at) if self._quoted else None
        if quoted is None:
            if self._quote and content.startswith(self._quote, at):
                if at_end:
                    raise BadRecordError(row, "a quoted value is not closed")
                return None, at
            plain = self._plain.match(content, at)
            assert plain
            if plain.end() < len(content) and content[plain.end() : plain.end() + 1] == self._escape:
                # The pattern stops before an escape only at the end of the content.
                if at_end:
                    raise BadRecordError(row, "an escape has nothing behind it")
                return None, at
            return self._unescaped(plain[0], row), plain.end()
        end = quoted.end()
        behind = content[end : end + 1]
        if behind not in (b"", self._delimiter, b"\n", b"\r"):
            raise BadRecordError(row, "a value goes on behind its closing quote")
        if not behind and not at_end:
            return None, at  # the next quote may double this one
        inside = content[at + 1 : end - 1]
        return CsvValue(self._escaped.sub(rb"\1", inside), True), end

    def _unescaped(self, text: bytes, row: int) -> CsvValue:
        if self._quote or not self._escape or self._escape not in text or text == self._null:
            return CsvValue(text, False)

        def character(match: re.Match[bytes]) -> bytes:
            escaped = match[1]
            if escaped.isalnum() and escaped not in _COPY_ESCAPES:
                raise BadRecordError(row, f"{match[0].decode()} is no escape")
            return _COPY_ESCAPES.get(escaped, escaped)

        return CsvValue(self._escaped.sub(character, text), True)

    def written(self, values: list[CsvValue]) -> bytes:
        """The record as RFC 4180 has it."""
        return self._delimiter.join(map(self._written, values)) + b"\n"

    def _written(self, value: CsvValue) -> bytes:
        if value.quoted or b'"' in value.text:
            return b'"' + value.text.replace(b'"', b'""') + b'"'
        return value.text

    @cached_property
    def _delimiter(self) -> bytes:
        return self.dialect.delimiter.encode()

    @cached_property
    def _quote(self) -> bytes:
        return (self.dialect.quote or "").encode()

    @cached_property
    def _escape(self) -> bytes:
        return (self.dialect.escape or "").encode()

    @cached_property
    def _null(self) -> bytes | None:
        return None if self.dialect.null is None else self.dialect.null.encode()

    @cached_property
    def _quoted(self) -> re.Pattern[bytes] | None:
        """A quoted value, up to its closing quote."""
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        if not quote:
            return None
        if escape:
            return re.compile(rb"%b(?:[^%b%b]++|%b[%b%b]?+)*+%b" % (quote, quote, escape, escape, quote, escape, quote))
        return re.compile(rb"%b[^%b]*+(?:%b%b[^%b]*+)*+%b" % (quote, quote, quote, quote, quote, quote))

    @cached_property
    def _plain(self) -> re.Pattern[bytes]:
        """An unquoted value."""
        delimiter, escape = re.escape(self._delimiter), re.escape(self._escape)
        if self._quote or not escape:
            return re.compile(rb"[^%b\r\n]*+" % delimiter)
        return re.compile(rb"(?:[^%b%b\r\n]++|%b[\s\S])*+" % (delimiter, escape, escape))

    @cached_property
    def _escaped(self) -> re.Pattern[bytes]:
        """What stands for a character, which is its group."""
        quote, escape = re.escape(self._quote), re.escape(self._escape)
        if not quote:
            return re.compile(rb"%b([\s\S])" % escape)
        if escape:
            return re.compile(rb"%b([%b%b])" % (escape, quote, escape))
        return re.compile(rb"%b(%b)" % (quote, quote))


class CsvBlocks:
    """The blocks of a file, in order.

    :param file: at its begin.
    :raises BadRecordError, LineTooLongError: while it is read.
    """

    def __init__(self, file: BinaryIO, dialect: CsvDialect) -> None:
        self._file = file
        self.grammar = CsvGrammar(dialect)
        self._mark = (dialect.quote or dialect.escape or "").encode()
        self._waiting = self._read(max(BLOCK_BYTES, len(_BYTE_ORDER_MARK) + 1)).removeprefix(_BYTE_ORDER_MARK)
        self._at_end = not self._waiting

    @property
    def is_empty(self) -> bool:
        return self._at_end and not self._waiting

    def header(self) -> list[CsvValue] | None:
        """The first record that is no empty line; None: there is none."""
        while True:
            for values, end in self.grammar.records(self._waiting, at_end=self._at_end):
                if values != [CsvValue(b"", False)]:
                    self._waiting = self._waiting[end:]
                    return values
            if self._at_end:
                self._waiting = b""
                return None
            self._more()

    def __iter__(self) -> Iterator[CsvBlock]:
        while self._waiting or not self._at_end:
            cut, quote = self._plain_cut()
            if cut:
                # For Arrow an empty value that the file ends with is quoted if the value before it is.
                end = b"" if self._waiting[cut - 1 : cut] in (b"\n", b"\r") else b"\n"
                yield CsvBlock(self._waiting[:cut] + end, quote)
                self._waiting = self._waiting[cut:]
            elif self._waiting and (self._at_end or self._mark):
                yield from self._written()
            if not self._at_end:
                self._more()

    def _written(self) -> Iterator[CsvBlock]:
        """The whole records of what waits, read value by value."""
        pieces, done_bytes = list[bytes](), 0
        for values, end in self.grammar.records(self._waiting, at_end=self._at_end):
            pieces.append(self.grammar.written(values))
            done_bytes = end
        if pieces:
            yield CsvBlock(b"".join(pieces), '"')
        self._waiting = self._waiting[done_bytes:]

    def _plain_cut(self) -> tuple[int, str | None]:
        """How much of what waits Arrow can read as it is, and with which quotes."""
        if not self._mark or self._mark not in self._waiting:
            return self._last_end(len(self._waiting)), None
        quote, escape = self.grammar.dialect.quote, self.grammar.dialect.escape
        if quote is None or (escape is not None and escape.encode() in self._waiting):
            return 0, None
        return self._quoted_cut(may_double=escape is None), quote

    def _last_end(self, end: int) -> int:
        """Behind the last line end before `end`, without a look at quotes."""
        content = self._waiting
        if self._at_end and end == len(content):
            return end
        cut = content.rfind(b"\n", 0, end) + 1
        # A last return may have its newline in the next block.
        return cut or content.rfind(b"\r", 0, min(end, len(content) - 1)) + 1

    def _quoted_cut(self, *, may_double: bool) -> int:
        """Behind the last record whose quotes, like those of all before it, are where RFC 4180 has them; 0: look at
        each value.

        :param may_double: may a quote be doubled? In a dialect with an escape it may not.
        """
        import numpy as np

        content = self._waiting
        data = np.frombuffer(content, dtype=np.uint8)
        quotes = np.flatnonzero(data == self._mark[0])
        cut = len(content) if self._at_end and len(quotes) % 2 == 0 else self._end_outside(quotes)
        inside = quotes[: np.searchsorted(quotes, cut)]
        opening, closing = inside[0::2], inside[1::2]
        is_end = np.zeros(256, dtype=bool)
        is_end[[ord(self.grammar.dialect.delimiter), 10, 13]] = True
        begins = (opening == 0) | is_end[data[opening - 1]]
        if may_double:
            begins[1:] |= opening[1:] == closing[: len(opening) - 1] + 1
        behind = data[np.minimum(closing + 1, len(data) - 1)]
        ends = (closing + 1 == len(data)) | is_end[behind] | ((behind == self._mark[0]) & may_double)
        return cut if bool(begins.all()) and bool(ends.all()) else 0

    def _end_outside(self, quotes: Any) -> int:
        """Behind the last line end that is outside of all quotes, if these come in pairs."""
        import numpy as np

        end = len(self._waiting)
        while cut := self._last_end(end):
            before = int(np.searchsorted(quotes, cut))
            if before % 2 == 0:
                return cut
            end = int(quotes[before - 1])
        return 0

    def _more(self) -> None:
        """Reads on, twice as much each time: a long record is not looked at too often."""
        if len(self._waiting) > MAX_LINE_BYTES:
            raise LineTooLongError(f"a record is longer than {MAX_LINE_BYTES} bytes")
        block = self._read(max(BLOCK_BYTES, min(len(self._waiting), MAX_LINE_BYTES // 4)))
        self._at_end = not block
        self._waiting = self._waiting + block if self._waiting else block

    def _read(self, size: int) -> bytes:
        """So many bytes, or all up to the end: a packed file gives fewer at a time."""
        pieces = list[bytes]()
        while size and (piece := self._file.read(size)):
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)
