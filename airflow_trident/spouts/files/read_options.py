"""How the files of a FileSpout are written and are to be read: formats, dialects of csv, parts of files, batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_trident.errors import ConfigurationError
from airflow_trident.types import Schema, select

if TYPE_CHECKING:
    from airflow_trident.operations.expressions import Expression
    from airflow_trident.spouts.files.listing import FoundFile

_LINE_ENDS = ("\n", "\r")
_QUOTE = '"'


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
class CsvDialect:
    """How a program writes csv. The default is RFC 4180.

    :param delimiter: between the values of a record.
    :param quote: around values; None: there are no quotes.
    :param escape: None: a quote in a quoted value is doubled. Otherwise it stands before a quote, or before itself, in
        quoted values. Where there are no quotes, it stands before a delimiter, a line end or itself, and begins the
        escapes of COPY: ``\\b \\f \\n \\r \\t \\v``.
    :param null: what an unquoted value is that is null in every column; None: an empty value is null in columns that
        are not text.
    :raises ConfigurationError: the characters contradict each other.
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    null: str | None = None

    def __post_init__(self) -> None:
        for name in ("delimiter", "quote", "escape"):
            mark = getattr(self, name)
            if mark is None and name != "delimiter":
                continue
            if not isinstance(mark, str) or len(mark) != 1 or not mark.isascii() or mark in (*_LINE_ENDS, "\0"):
                raise ConfigurationError(
                    f"FileSpout with {name}={mark!r}",
                    "It must be a single ASCII character, and no line end"
                    + ("." if name == "delimiter" else ", or None."),
                )
        if self.escape == self.quote:
            object.__setattr__(self, "escape", None)  # doubled quotes under another name
        marks = [mark for mark in (self.delimiter, self.quote, self.escape) if mark is not None]
        if len(set(marks)) < len(marks):
            raise ConfigurationError(
                f"FileSpout with delimiter={self.delimiter!r}, quote={self.quote!r}, escape={self.escape!r}",
                "Delimiter, quote and escape must be different characters.",
            )
        if self.delimiter == _QUOTE:
            raise ConfigurationError(f"FileSpout with delimiter={self.delimiter!r}", "Name what stands between values.")
        if self.null is not None and (
            not isinstance(self.null, str)
            or any(mark in self.null for mark in (self.delimiter, self.quote or _QUOTE, _QUOTE, *_LINE_ENDS))
        ):
            raise ConfigurationError(
                f"FileSpout with null={self.null!r}",
                "It must be a text as an unquoted value may be: without the delimiter, the quote and line ends.",
            )


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
    dialect: CsvDialect = field(default_factory=CsvDialect)
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


class ChangedFiles(StrEnum):
    """What to do with a read file that is another one now."""

    ERROR = "error"
    READ = "read"
    """It is a new file, whole."""


class GoneFiles(StrEnum):
    """What to do if a read file is not there any more, whose rows the states have."""

    ERROR = "error"
    KEEP = "keep"
    """The rows stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """A batch has at least one file, and otherwise at most `max_files` and `max_bytes`. Files younger than `min_age_ns`
    wait, because somebody may still be writing them. Files older than `since_ns` are not read.

    `lookback_ns`: an object may sort before others that are younger by so much, if names give the order. `replaces`: a
    file replaces the rows that it had; then `gone` says what becomes of those of a file that is gone.
    """

    max_files: int
    max_bytes: int
    min_age_ns: int = 0
    since_ns: int | None = None
    changed: ChangedFiles = ChangedFiles.ERROR
    lookback_ns: int = 0
    replaces: bool = False
    gone: GoneFiles = GoneFiles.ERROR

    def takes(self, file: FoundFile) -> bool:
        return self.since_ns is None or file.mtime_ns >= self.since_ns

    def is_old_enough(self, file: FoundFile, now_ns: int) -> bool:
        """By the earlier of both times: if only one of them is in the future, it does not matter."""
        return self.min_age_ns == 0 or min(file.mtime_ns, file.ctime_ns) <= now_ns - self.min_age_ns


def moment_ns(name: str, moment: datetime | str) -> int:
    """A moment that a user gave, in ns since 1970.

    :param name: of the argument.
    :raises ConfigurationError: it is no moment, or has no time zone.
    """
    try:
        at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if at.tzinfo is None:
            raise ValueError("it has no time zone")
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{name} is {moment!r} ({error})", "Write a moment with its time zone, as in 2026-01-31T00:00:00+01:00."
        ) from error
    return round(at.timestamp() * 1_000_000) * 1_000
