"""Random files, read in tiny blocks by the package and by Python's own `csv` and `json`.

Each case is drawn from a seed. `make fuzz SECONDS=3600 FUZZ=csv` plays seeds for so long, and prints those that fail.
"""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import json
import lzma
import math
import re
import struct
from collections.abc import Callable
from decimal import Context, Decimal
from random import Random
from typing import Any
from unittest.mock import patch
from zoneinfo import ZoneInfo

import pyarrow as pa
import zstandard

from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import table_to_rows
from airflow_trident.spouts.files import csv_records, lines
from airflow_trident.spouts.files.formats import read_part
from airflow_trident.spouts.files.packing import HEAD_BYTES
from airflow_trident.spouts.files.read_options import CsvDialect, FileFormat, FilePart, ReadOptions
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
    if rows is not None:  # -0 is a whole number to Python, and has no sign
        rows = [tuple(0.0 if value == 0 and type(value) is float else value for value in row) for row in rows]
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
    """Arrow refuses a zero whose last digit stands above 1e308, too."""
    digits = re.search(r"(?:\.([0-9]*))?[eE]\+?([0-9]+)", text)
    is_high = digits is not None and int(digits[2]) - len(digits[1] or "") > 308
    if math.isinf(number := float(text)) or (number == 0 and is_high):
        raise ValueError(text)
    return number


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    for name, _ in pairs:
        _text(name)
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
    value = value.strip(" \t")
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
    "r": _of(float, lambda value: float(value) + 0.0),
    "b": _of(bool),
    "f": _of(float, lambda value: _single(float(value)) + 0.0),
    "t": _of(dict, _struct),
    "l": _of(list, lambda value: [_whole(64)(part) for part in value]),
}

# ---- JSON with maps, which Python looks at first -------------------------------------------------------------------


def json_maps(random: Random) -> None:
    values = [0, 1, -1, 2**63, 1.5, None, "x", {}, {"a": None}, {"b": 2, "1": 3}, [1], {"a": {"b": 1}}]
    keys = ["m", "m", "m", "k", "n", "x"]
    text = "\n".join(
        json.dumps({random.choice(keys): random.choice(values) for _ in range(random.randrange(3))})
        for _ in range(random.randrange(1, 4))
    )
    for _ in range(random.choice([0, 0, 1, 2])):
        at = random.randrange(len(text) + 1)
        text = text[:at] + random.choice([*TOKENS, ""]) + text[at + random.choice([0, 0, 1, 3]) :]
    ignore = random.random() < 0.5
    fields = "m map<string,long>, k map<string,map<string,long>>, n long"
    with patch.object(lines, "BLOCK_BYTES", random.randrange(1, 60)):
        rows = rows_of(text.encode("utf-8", "surrogatepass"), fields, FileFormat.JSON, ignore_extra=ignore)
    require_same(_maps_by_python(text, ignore), rows, (text, ignore))


def _maps_by_python(text: str, ignore: bool) -> Rows | None:
    rows: Rows = []
    try:
        text.encode()
        for line in text.removeprefix("\ufeff").split("\n"):
            if plain := line.strip(" \t\r"):
                record = json.loads(plain, object_pairs_hook=_distinct, parse_float=_finite)
                _text(json.dumps(record, ensure_ascii=False))
                if not isinstance(record, dict) or (set(record) - {"m", "k", "n"} and not ignore):
                    raise ValueError("no object of the fields")
                plain_map, nested = _of(dict, _map(_whole(64))), _of(dict, _map(_of(dict, _map(_whole(64)))))
                rows.append((plain_map(record.get("m")), nested(record.get("k")), _whole(64)(record.get("n"))))
    except (ValueError, OverflowError, RecursionError):
        return None
    return rows


def _map(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {_text(name): check(part) for name, part in value.items()}


# ---- texts of numbers and moments ----------------------------------------------------------------------------------

PIECES = [
    "0",
    "1",
    "9",
    "12",
    "+",
    "-",
    ".",
    "e",
    "E5",
    "x",
    "inf",
    "nan",
    " ",
    "\t",
    "00",
    "_",
    "9" * 20,
    "e-99999999",
    "0x1F",
    "1e400",
    "nan(1)",
]
TRUTHS = ["true", "FALSE", "t", "1", "0", "yes", " "]
MOMENTS = ["2024-02-29", "2023-02-29", "0001-01-01", "9999-12-31", "T", " ", "12:30", ":59", ".5", ".123456"]
MOMENTS += [".1234567", "000"]
MOMENTS += ["Z", "z", "+02", "-0130", "+23:59", "+24:00", "24:00", "1", "-"]
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d)(:\d\d(?:\.\d{1,6}0*)?)?)?(?:([Zz])|([+-]\d\d)(?::?(\d\d))?)?", re.ASCII
)


def csv_values(random: Random) -> None:
    """What texts of csv are as values of a type, alone and beside others."""
    kind = random.choice(["byte", "long", "double", "decimal(10,2)", "boolean", "timestamp"])
    texts = [_value_text(kind, random) for _ in range(random.choice([1, 1, 1, 2, 4]))]
    notes = random.choices(["", "x", "10x", "0X1"], k=len(texts)) if random.random() < 0.3 else [""] * len(texts)
    content = "".join(f"{text},{note}\n" for text, note in zip(texts, notes, strict=True))
    with patch.object(csv_records, "BLOCK_BYTES", random.choice([1, 10, 100])):
        rows = rows_of(content.encode(), f"v {kind}, e string", FileFormat.CSV)
    if kind == "timestamp" and any(re.match(r"\d{4}-\d\d-\d\d[ T]\d\d(?!:)", text.strip(" \t")) for text in texts):
        return  # Arrow takes hours alone, too
    try:
        values = [_VALUES[kind](text.strip(" \t")) if text else None for text in texts]
        expected: Rows | None = list(zip(values, notes, strict=True))
    except (ValueError, ArithmeticError):
        expected = None
    require_same(expected, rows, (kind, texts, notes))


def _value_text(kind: str, random: Random) -> str:
    pieces = {"timestamp": MOMENTS, "boolean": TRUTHS}.get(kind, PIECES)
    text = "".join(random.choices(pieces, k=random.choice([1, 1, 2, 2, 3, 4])))
    return "2024-02-29T12:30" + text if kind == "timestamp" and random.random() < 0.5 else text


def _number(text: str) -> Decimal:
    if not NUMBER.fullmatch(text):
        raise ValueError(text)
    return Decimal(text)


def _whole_text(bits: int) -> Callable[[str], int]:
    def run(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ValueError(text)
        return int(_whole(bits)(int(text)))

    return run


def _double_text(text: str) -> float:
    if re.fullmatch(r"[+-]?(nan|inf)", text):
        return float(text)
    if not NUMBER.fullmatch(text):
        raise ValueError(text)
    if math.isinf(number := float(text)):
        raise OverflowError(text)
    return number


def _decimal_text(text: str) -> Decimal:
    number = _number(text)
    return _fixed(number, 8, 2)


def _fixed(number: Decimal, whole: int, scale: int) -> Decimal:
    """With so many digits behind the point, and at most `whole` before it. A zero has no sign."""
    if not number:
        return Decimal(0).scaleb(-scale)
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.adjusted() >= whole or any(digits[len(digits) + exponent + scale :] if exponent < -scale else ()):
        raise OverflowError(number)
    if exponent < -scale and len(digits) + exponent + scale <= 0:
        raise OverflowError(number)
    return number.quantize(Decimal(1).scaleb(-scale), context=Context(prec=100))


def _boolean_text(text: str) -> bool:
    return {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}[text.lower()]


def _moment_text(text: str) -> datetime.datetime:
    match = MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, minute, second, zulu, hours, minutes = match.groups()
    if (zulu or hours) and not minute:
        raise ValueError("a zone needs a time")
    digits = (second or ":00")[1:]
    whole, _, fraction = digits.partition(".")
    made = datetime.datetime.fromisoformat(f"{day} {minute or '00:00'}:{whole}")
    made = made.replace(microsecond=int(f"{fraction:0<6}"[:6]), tzinfo=ZoneInfo("UTC"))
    if not hours:
        return made
    if int(hours[1:]) > 23 or int(minutes or 0) > 59:
        raise ValueError(text)
    span = datetime.timedelta(hours=int(hours[1:]), minutes=int(minutes or 0))
    return made - span if hours[0] == "+" else made + span


_VALUES: dict[str, Callable[[str], Any]] = {
    "byte": _whole_text(8),
    "long": _whole_text(64),
    "double": _double_text,
    "decimal(10,2)": _decimal_text,
    "boolean": lambda text: _boolean_text(text) if text.lower() in ("true", "t", "1", "false", "f", "0") else int("x"),
    "timestamp": _moment_text,
}


# ---- decimals: texts of any length and exponent ----------------------------------------------------------------------


def decimals(random: Random) -> None:
    """A decimal in csv, as a number and as a text of JSON, at each depth."""
    precision = random.randrange(1, 39)
    scale = random.randrange(precision + 1)
    digits = "".join(random.choices("00019", k=random.choice([1, 1, 2, 5, 20, 38, 39, 60])))
    point = random.choice(["", "", f".{digits}", ".0", f".{'0' * 50}", "."])
    size = random.choice([0, 1, 2, 10, 38, 77, 300, 10**5, 10**8, 999_999_999, 10**30])
    exponent = random.choice(["", "", f"{random.choice('eE')}{random.choice(['', '+', '-'])}{size}"])
    text = random.choice(["", "", "-"]) + digits + point + exponent
    declared = f"decimal({precision},{scale})"
    try:
        expected: Decimal | None = _fixed(_number(text), precision - scale, scale)
    except (ValueError, ArithmeticError):
        expected = None
    shapes: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "{}": (declared, lambda value: value),
        "[{},null]": (f"array<{declared}>", lambda value: [value, None]),
        '{{"a":{}}}': (f"struct<a:{declared}>", lambda value: {"a": value}),
        '{{"k":{}}}': (f"map<string,{declared}>", lambda value: {"k": value}),
    }
    shape, (kind, made) = random.choice(list(shapes.items()))
    form = random.choice(["csv", "number", "text"])
    if form == "csv":
        rows, made = rows_of(f"{text},x\n".encode(), f"v {declared}, e string", FileFormat.CSV), lambda value: value
        want: Rows | None = None if expected is None else [(expected, "x")]
    else:
        plain = f'"{text}"' if form == "text" else text
        rows = rows_of(f'{{"v":{shape.format(plain)}}}\n{{"v":null}}\n'.encode(), f"v {kind}", FileFormat.JSON)
        is_json = form == "text" or re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", text)
        want = None if expected is None or not is_json else [(made(expected),), (None,)]
    if want is not None and rows is None and expected == 0 and exponent:
        return  # a zero with an exponent beyond those of decimals is refused in some forms
    require_same(want, rows, (text, kind, form))


# ---- packed files --------------------------------------------------------------------------------------------------


def packed_files(random: Random) -> None:
    """Of a packed file that was cut, mixed up or changed, nothing is read, or all of it."""
    packers: list[Callable[[bytes], bytes]] = [
        gzip.compress,
        bz2.compress,
        lambda content: lzma.compress(content, preset=0),  # others take 100 MB each
        zstandard.ZstdCompressor(write_checksum=True).compress,
    ]
    pack = random.choice(packers)
    members = random.choice([1, 1, 2, 3])
    texts = ["".join(random.choices("abc\n", k=random.choice([0, 3, 50, 3000]))) for _ in range(members)]
    content = b"".join(pack(text.encode()) for text in texts)
    text = "".join(texts)
    changed = bytearray(content)
    for _ in range(random.choice([0, 1, 1, 2])):
        at = random.randrange(HEAD_BYTES, len(changed))  # what begins otherwise is no packed file
        how = random.choice(["flip", "cut", "add", "twice"])
        if how == "flip":
            changed[at] ^= 1 << random.randrange(8)
        elif how == "cut":
            del changed[at : at + random.choice([1, 5, 10**6])]
        elif how == "add":
            changed[at:at] = random.randbytes(random.choice([1, 4]))
        else:
            changed += pack(b"x\n") if random.random() < 0.5 else random.randbytes(5)
        if len(changed) <= HEAD_BYTES:
            return
    rows = rows_of(bytes(changed), "line string", FileFormat.TEXT)
    if bytes(changed) == content:
        require_same(_lines(text), rows, content)
        return
    wholes = [_lines("".join(texts[:number]) + "x\n" * more) for number in range(1, members + 1) for more in range(3)]
    if rows is not None and rows not in wholes:
        raise AssertionError(f"{bytes(changed)!r} of {content!r} was read as {rows!r}")


def _lines(text: str) -> Rows:
    return [(line,) for line in text.removesuffix("\n").split("\n")] if text else []


CASES: dict[str, Callable[[Random], None]] = {
    "csv": csv_texts,
    "dialects": csv_dialects,
    "values": csv_values,
    "decimals": decimals,
    "json": json_lines,
    "maps": json_maps,
    "packed": packed_files,
}
