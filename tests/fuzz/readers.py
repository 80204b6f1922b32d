"""Random files, read in tiny blocks by the package and by Python's own `csv` and `json`.

Each case is drawn from a seed. `make fuzz SECONDS=3600 FUZZ=csv` plays seeds for so long, and prints those that fail.
"""

from __future__ import annotations

import csv
import io
import json
import math
import struct
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.spouts.files import csv_records, lines
from airflow_trident.spouts.files.formats import read_part
from airflow_trident.spouts.files.reading import CsvDialect, FileFormat, FilePart, ReadOptions
from airflow_trident.types import parse_declared

Rows = list[tuple[Any, ...]]


def rows_of(content: bytes, fields: str, kind: FileFormat, **more: Any) -> Rows | None:
    """What the package reads; None: it refuses the file."""
    options = {"header": False, "ignore_extra": False, **more}
    reading = ReadOptions(format=kind, schema=parse_declared(fields), **options)
    rows: Rows = []
    try:
        for batch in read_part(reading, FilePart(path="a"), io.BytesIO(content)):
            batch.validate(full=True)
            rows.extend(table_to_rows(pa.Table.from_batches([batch])))
    except DamagedInputError:
        return None
    return rows


def require_same(expected: object, rows: object, case: object) -> None:
    if repr(expected) != repr(rows):  # NaN is equal to itself here, and 1 not to True
        raise AssertionError(f"{case!r}: expected {expected!r}, read {rows!r}")


# ---- csv: any text, as Python's strict reader has it ---------------------------------------------------------------

MARKS = [*',,,""""', "\n", "\n", "\r\n", "\r", "a", "b", " ", "é", "\0", "\\", ";", '""', '"a,b"', "1"]


def csv_texts(random: Random) -> None:
    text = "".join(random.choices(MARKS, k=random.randrange(40)))
    columns = random.choice([1, 2, 3])
    if random.random() < 0.3:  # mostly well formed, so that long files are read, too
        file = io.StringIO()
        values = ["", "a", "b,c", 'say "hi"', "two\nlines", "\r\n", "x"]
        rows = [random.choices(values, k=columns) for _ in range(random.randrange(6))]
        end = random.choice(["\n", "\r\n", "\r"])
        csv.writer(file, quoting=random.choice([0, 1]), lineterminator=end).writerows(rows)
        text = file.getvalue() + random.choice(["", "", text])
    content = (b"\xef\xbb\xbf" if random.random() < 0.1 else b"") + text.encode()
    fields = ", ".join(f"c{number} string" for number in range(columns))
    with patch.object(csv_records, "BLOCK_BYTES", random.randrange(1, 30)):
        rows = rows_of(content, fields, FileFormat.CSV)
    require_same(_by_python(text, columns), rows, (text, columns))


def _by_python(text: str, columns: int) -> Rows | None:
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return None
    if columns == 1:
        rows = [tuple(record) or ("",) for record in records]
    else:
        rows = [tuple(record) for record in records if record]
    return rows if all(len(row) == columns for row in rows) else None


# ---- csv: rows in any dialect --------------------------------------------------------------------------------------

VALUES = [
    "",
    "a",
    "b,c",
    'say "hi"',
    "two\nlines",
    "\r\n",
    "\r",
    "x;y",
    "\\",
    '\\"',
    "\\\\",
    "'",
    "''",
    "\\N",
    "N",
    "NULL",
]
VALUES += [" x ", "\t", "é\U0001f600", '"', "a\\", "\\n", "|", "\0"]
DIALECTS = [
    CsvDialect(),
    CsvDialect(null=""),
    CsvDialect(null="NULL", delimiter=";"),
    CsvDialect(quote="'", delimiter="\t"),
    CsvDialect(escape="\\"),
    CsvDialect(escape="\\", null="\\N", quote="'"),
    CsvDialect(quote=None, escape="\\", null="\\N", delimiter="\t"),
    CsvDialect(quote=None, escape="\\", delimiter="|", null=""),
]


def csv_dialects(random: Random) -> None:
    dialect = random.choice(DIALECTS)
    columns = random.choice([1, 2, 3])
    nothing = None if dialect.null is not None else ""
    values = [*random.sample(VALUES, 6), nothing]
    if dialect.quote is None and dialect.null == "":
        values = [value or nothing for value in values]
    rows = [tuple(random.choice(values) for _ in range(columns)) for _ in range(random.randrange(8))]
    end = random.choice(["\n", "\r\n"])
    records = [dialect.delimiter.join(_written(value, dialect, random) for value in row) for row in rows]
    if columns > 1:
        records += [""] * random.choice([0, 0, 1])  # an empty line is no record
    text = "".join(record + end for record in records)
    if records and records[-1] and random.random() < 0.3:
        text = text.removesuffix(end)
    fields = ", ".join(f"c{number} string" for number in range(columns))
    with patch.object(csv_records, "BLOCK_BYTES", random.randrange(1, 30)):
        found = rows_of(text.encode(), fields, FileFormat.CSV, dialect=dialect)
    require_same(rows, found, (text, dialect, columns))


def _written(value: str | None, dialect: CsvDialect, random: Random) -> str:
    """As programs with such a dialect write a value."""
    if value is None:
        return str(dialect.null)
    quote, escape = dialect.quote, dialect.escape
    if quote is None:
        assert escape
        escaped = value.replace(escape, escape * 2)
        for mark in {dialect.delimiter, "\n", "\r"}:
            escaped = escaped.replace(mark, escape + mark)
        if value == "" and dialect.null == "":
            return ""
        letters = {"\n": "n", "\r": "r", "\t": "t"}
        if random.random() < 0.5:
            for mark, letter in letters.items():
                escaped = escaped.replace(escape + mark, escape + letter)
        return escaped
    needed = any(mark in value for mark in (dialect.delimiter, quote, "\n", "\r")) or value == dialect.null
    if not needed and random.random() < 0.6:
        return value
    inside = (
        value.replace(escape, escape * 2).replace(quote, escape + quote) if escape else value.replace(quote, quote * 2)
    )
    return quote + inside + quote


# ---- JSON ----------------------------------------------------------------------------------------------------------

FIELDS = "n long, s string, r double, b boolean, f float, t struct<a:int,d:date>, l array<long>"
TOKENS = [
    "null",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "\\",
    "\n",
    "\r",
    " ",
    "1",
    "-",
    ".",
    "e",
    "NaN",
    "Infinity",
    "true",
]
TOKENS += [
    '{"n":1}',
    '"n":2,',
    "\t",
    "\ufeff",
    "0",
    "9999999999",
    '"x":1,',
    "\\ud800",
    "\x01",
    "}null",
    "},{",
    "}\n{",
    "1e400",
]


def json_lines(random: Random) -> None:
    end = random.choice(["\n", "\n", "\r\n", "\n\n"])
    text = end.join(_record(random) for _ in range(random.randrange(1, 5)))
    text += random.choice(["", "\n"])
    for _ in range(random.choice([0, 0, 1, 1, 2, 4])):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice([*TOKENS, ""]) + text[at + random.choice([0, 0, 1, 3]) :]
    with patch.object(lines, "BLOCK_BYTES", random.randrange(1, 60)):
        rows = rows_of(text.encode("utf-8", "surrogatepass"), FIELDS, FileFormat.JSON)
    require_same(_json_by_python(text), rows, text)


def _record(random: Random) -> str:
    made = {
        "n": lambda: random.choice([0, -1, 2**63 - 1, 2**63, 1.5, None]),
        "s": lambda: random.choice(["", "a}b", "} null", "{", '"', "\\", "é\0", "\n", None, "}x{"]),
        "r": lambda: random.choice([0, 0.1, -1e300, 1e308, None, math.inf, math.nan, 10**400]),
        "b": lambda: random.choice([True, False, None, 1]),
        "f": lambda: random.choice([0.1, 3.4e38, 3.5e38, -1e39, 1e-50, None, -math.inf]),
        "t": lambda: random.choice(
            [{}, {"a": 1}, {"d": "2024-02-29", "a": None}, None, {"a": 2**31}, {"x": 1}, {"d": "x"}]
        ),
        "l": lambda: random.choice([[], [1, None], None, [[1]], [2**63 - 1]]),
    }
    names = random.sample(list(made), random.randrange(len(made)))
    separators = random.choice([(",", ":"), (", ", ": "), (" , ", " : ")])
    usual = random.random() < 0.7
    record = {name: made[name]() for name in names}
    if usual:
        record = {name: value for name, value in record.items() if not _is_refused(name, value)}
    return json.dumps(record, separators=separators, ensure_ascii=random.random() < 0.5)


def _is_refused(name: str, value: Any) -> bool:
    try:
        _CHECKS[name](value)
    except (ValueError, OverflowError):
        return True
    return False


class _Number(float):
    """A number, and whether its text says that it is infinite."""


def _json_by_python(text: str) -> Rows | None:
    rows: Rows = []
    try:
        text.encode()
        for line in text.removeprefix("\ufeff").split("\n"):
            plain = line.strip(" \t\r")
            if plain:
                record = json.loads(plain, object_pairs_hook=_distinct, parse_float=_finite)
                rows.append(_row(record))
    except (ValueError, OverflowError, RecursionError):
        return None
    return rows


def _finite(text: str) -> float:
    """Arrow refuses a zero with a large exponent, too."""
    if math.isinf(number := float(text)) or (number == 0 and "e400" in text.lower()):
        raise ValueError(text)
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _row(record: Any) -> tuple[Any, ...]:
    if not isinstance(record, dict) or set(record) - set(_CHECKS):
        raise ValueError("no object of the fields")
    return tuple(check(record.get(name)) for name, check in _CHECKS.items())


def _of(kind: type, check: Callable[[Any], Any] = lambda value: value) -> Callable[[Any], Any]:
    def run(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise ValueError(value)
        return check(value)

    return run


def _whole(bits: int) -> Callable[[Any], Any]:
    def check(value: int) -> int:
        if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise OverflowError(value)
        return value

    return _of(int, check)


def _single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]  # raises OverflowError


def _text(value: str) -> str:
    value.encode()  # no half of a surrogate pair
    return value


def _date(value: str) -> Any:
    import datetime

    if len(value) != 10:
        raise ValueError(value)
    return datetime.date.fromisoformat(value)


def _struct(value: dict[str, Any]) -> dict[str, Any]:
    if set(value) - {"a", "d"}:
        raise ValueError(value)
    return {"a": _whole(32)(value.get("a")), "d": _of(str, _date)(value.get("d"))}


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "n": _whole(64),
    "s": _of(str, _text),
    "r": _of(float, float),
    "b": _of(bool),
    "f": _of(float, lambda value: _single(float(value))),
    "t": _of(dict, _struct),
    "l": _of(list, lambda value: [_whole(64)(part) for part in value]),
}

CASES: dict[str, Callable[[Random], None]] = {"csv": csv_texts, "dialects": csv_dialects, "json": json_lines}
