"""CSV by RFC 4180 and by declared dialects, whatever the size of a record and wherever a block ends."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from airflow_trident.errors import ConfigurationError, DamagedInputError
from airflow_trident.spouts.files import csv_records
from airflow_trident.spouts.files.spout import FileSpout
from tests.fixtures.file import read, written


def rows(tmp_path: Path, content: str | bytes, fields: str, **options: Any) -> list[tuple[Any, ...]]:
    return read(written(tmp_path, "a.csv", content), format="csv", fields=fields, **options)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_stray_quotes_are_an_error_also_if_their_number_is_even(tmp_path: Path, count: int) -> None:
    lines = [f'{number},"abc' if number <= count else f"{number},x" for number in range(1, 6)]
    with pytest.raises(DamagedInputError, match=r"cannot be read in row 1: a (quoted )?value"):
        rows(tmp_path, "\n".join(["n,s", *lines, ""]), "n long, s string")


@pytest.mark.parametrize("block", [1, 2, 3, 7, 8 << 20])
def test_a_line_end_in_quotes_is_whole_wherever_a_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(csv_records, "BLOCK_BYTES", block)
    expected = [("1", "two\r\nlines"), ("2", "\r"), ("3", "\n\n")]
    text = io.StringIO()
    csv.writer(text).writerows([("n", "s"), *expected])
    assert rows(tmp_path, text.getvalue(), "n string, s string") == expected


@pytest.mark.parametrize("value", ["x" * (20 << 20), "two\nlines " * (2 << 20)], ids=["plain", "quoted"])
def test_a_record_may_be_larger_than_any_block(tmp_path: Path, value: str) -> None:
    found = rows(tmp_path, f'n,s\n1,a\n2,"{value}"\n3,c\n', "n long, s string")
    assert [(n, len(s)) for n, s in found] == [(1, 1), (2, len(value)), (3, 1)]
    assert found[1][1] == value


@pytest.mark.parametrize("content", ["n,s", "n,s\n", "n,s\r\n", "\ufeffn,s", '"n","s"', "\n\nn,s\n\n"])
def test_a_file_with_only_its_header_has_no_rows(tmp_path: Path, content: str) -> None:
    assert rows(tmp_path, content, "n long, s string") == []


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_an_empty_line_is_no_row_where_the_file_has_more_columns_than_are_declared(tmp_path: Path, end: str) -> None:
    content = end.join(["id,name,amount", "1,a,10", "", "2,b,20", "", ""])
    assert rows(tmp_path, content, "id long", extra_columns="ignore") == [(1,), (2,)]


@pytest.mark.parametrize("type_text", ["byte", "long"])
def test_whole_numbers_are_those_of_a_cast(tmp_path: Path, type_text: str) -> None:
    assert rows(tmp_path, "n\n+7\n -007\t\n\n", f"n {type_text}") == [(7,), (-7,), (None,)]
    for text in ("0xFF", "0x10", "1_0", "1.0", "1e2", "++1", "+", "\u0661"):
        with pytest.raises(DamagedInputError, match=r"the field 'n' of row 2 holds '.*', where "):
            rows(tmp_path, f"n\n1\n{text}\n2\n", f"n {type_text}")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("n double", "1e400"),
        ("n float", "1e39"),
        ("n double", "0x1p3"),
        ("n decimal(10,2)", "100000000"),
        ("n decimal(10,2)", "1.005"),
        ("n decimal(10,2)", "." + "9" * 41),
        ("n boolean", "yes"),
        ("n date", "2024-02-30"),
        ("n time", "24:00:00"),
        ("n timestamp", "2024-01-01 12:00:00.1234567"),
        ("n timestamp", "infinity"),
    ],
)
def test_a_text_that_the_type_cannot_hold_is_an_error_with_its_row(tmp_path: Path, field: str, text: str) -> None:
    with pytest.raises(DamagedInputError, match=rf"'n' of row 3 holds '{text}', where .*Declare the type"):
        rows(tmp_path, f"m,n\n1,\n2,\n3,{text}\n4,\n", f"m long, {field}")


DIALECTS = [
    # PostgreSQL: COPY ... CSV, COPY ... CSV with a null, and COPY's own format.
    ('1,,"",t,2024-01-01 12:00:00+00\n2,"a ""b""","\n",f,\n', {"null": ""}),
    ('1|NULL|""|t|2024-01-01 12:00:00+00\n2|"a ""b"""|"\n"|f|NULL\n', {"null": "NULL", "delimiter": "|"}),
    (
        '1\t\\N\t\tt\t2024-01-01 12:00:00+00\n2\ta "b"\t\\n\tf\t\\N\n',
        {"quote": None, "escape": "\\", "null": "\\N", "delimiter": "\t"},
    ),
    # Spark, with its escape
    ('1,,"",true,2024-01-01T12:00:00.000Z\n2,"a \\"b\\"","\n",false,\n', {"null": "", "escape": "\\"}),
    # Excel in much of Europe
    ('\ufeff1;;"";TRUE;2024-01-01 12:00\r\n2;"a ""b""";"\n";FALSE;\r\n', {"null": "", "delimiter": ";"}),
]  # fmt: skip


@pytest.mark.parametrize(("content", "dialect"), DIALECTS)
def test_a_declared_dialect_is_read_as_it_was_meant(tmp_path: Path, content: str, dialect: dict[str, Any]) -> None:
    fields = "n long, s string, e string, b boolean, at timestamp"
    found = rows(tmp_path, content, fields, header=False, **dialect)
    assert [(n, s, e, b) for n, s, e, b, _ in found] == [(1, None, "", True), (2, 'a "b"', "\n", False)]
    assert [at and at.isoformat() for *_, at in found] == ["2024-01-01T12:00:00+00:00", None]


@pytest.mark.parametrize("options", [{}, {"quoting": csv.QUOTE_ALL}, {"sep": ";", "lineterminator": "\r\n"}])
def test_what_pandas_writes_is_read_as_it_was_meant(tmp_path: Path, options: dict[str, Any]) -> None:
    texts = ["plain", 'say "hi"', "a,b;c", "two\nlines\r\n", "\\", "é", " x "]
    frame = pd.DataFrame({"s": [*texts, None], "n": range(8), "r": [0.1, None] * 4, "b": [True, False] * 4})
    frame["at"] = pd.Timestamp("2024-02-29 12:30:00.25", tz="Europe/Berlin")
    content = frame.to_csv(index=False, na_rep="NA", **options)
    null = {"null": "NA"} if options.get("quoting") is None else {}
    frame = frame if null else frame.dropna(subset=["s", "r"])
    content = content if null else frame.to_csv(index=False, **options)
    fields = "s string, n long, r double, b boolean, at timestamp"
    found = rows(tmp_path, content, fields, delimiter=options.get("sep", ","), **null)
    assert [s for s, *_ in found] == [None if s is None else s for s in frame["s"]]
    assert [tuple(row[1:4]) for row in found] == [
        (n, None if pd.isna(r) else r, b) for n, r, b in zip(frame["n"], frame["r"], frame["b"], strict=True)
    ]
    assert {at.isoformat() for *_, at in found} == {"2024-02-29T11:30:00.250000+00:00"}


def test_a_value_that_is_null_by_its_text_is_none_in_quotes(tmp_path: Path) -> None:
    found = rows(tmp_path, 'a,b\nNA,1\n"NA",NA\n', "a string, b long", null="NA")
    assert found == [(None, 1), ("NA", None)]
    with pytest.raises(DamagedInputError, match="'b' of row 1 holds '', where long is declared"):
        rows(tmp_path, "a,b\nx,\n", "a string, b long", null="NA")


def test_an_escape_that_copy_does_not_write_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DamagedInputError, match=r"row 2: \\q is no escape"):
        rows(tmp_path, "a\\tb\na\\qb\n", "a string", header=False, quote=None, escape="\\")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delimiter": "||"}, "delimiter='\\|\\|'"),
        ({"delimiter": "\n"}, "no line end"),
        ({"quote": "“"}, "a single ASCII character"),
        ({"quote": ""}, "or None"),
        ({"delimiter": ";", "quote": ";"}, "different characters"),
        ({"delimiter": '"', "quote": None}, "stands between values"),
        ({"null": "a,b"}, "unquoted value"),
        ({"null": 0}, "unquoted value"),
        ({"format": "json", "delimiter": ";"}, "how csv is written"),
    ],
)
def test_a_dialect_that_contradicts_itself_is_refused_when_the_dag_is_built(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        FileSpout("/in", **{"format": "csv", "fields": "a string", **options})
