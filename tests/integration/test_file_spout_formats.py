"""What FileSpout reads out of text, csv, json and Parquet files, and that damage is an error, never fewer rows."""

from __future__ import annotations

import bz2
import csv
import datetime
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from airflow_trident.errors import ConfigurationError, DamagedInputError
from airflow_trident.spouts.files.spout import FileSpout
from tests.fixtures.file import TYPED, TYPED_ROW, UTC, begin, read, written

# ---- text ------------------------------------------------------------------------------------------------------


def test_text_is_lines_of_everything_but_their_ends(tmp_path: Path) -> None:
    content = b'plain\n"quoted, text"\r\n\n\0nul\x85\xe2\x80\xa8\n\xff\xfe broken\rreturn\nlast'
    expected = ["plain", '"quoted, text"', "", "\0nul\ufffd\u2028", "\ufffd\ufffd broken\rreturn", "last"]
    for name, packed in (("a.txt", content), ("a.txt.gz", gzip.compress(content))):
        assert read(written(tmp_path, name, packed), encoding_errors="replace") == [(line,) for line in expected]


@pytest.mark.parametrize("content", [b"fine\nbroken \xff\n", "utf-16\n".encode("utf-16")], ids=["latin-1", "utf-16"])
def test_text_that_is_no_utf8_is_an_error_unless_asked_otherwise(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, "a.txt", content)
    cure = "encoding_errors=" if content.startswith(b"fine") else "It is UTF-16: convert it"
    with pytest.raises(DamagedInputError, match=rf"a\.txt' cannot be read in the lines from byte 0.*{cure}"):
        read(path)
    assert len(read(path, encoding_errors="replace")) == 2


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("name", ["a.txt", "a", "A.GZ", "a.bz2", "a.gzip"])
def test_packed_files_are_known_by_their_content_whatever_their_names_are(tmp_path: Path, kind: str, name: str) -> None:
    pack = PACKERS[kind]
    path = written(tmp_path, name, pack(b"1\n2") + pack(b"2\n3\n"))
    assert read(path, split_bytes=5) == [("1",), ("22",), ("3",)]
    assert read(written(tmp_path, "b", pack(b"n\n1\n")), format="csv", fields="n long") == [(1,)]
    assert read(written(tmp_path, "b", pack(b'{"n": 1}')), format="json", fields="n long", split_bytes=5) == [(1,)]


@pytest.mark.parametrize("kind", PACKERS)
def test_spark_reads_no_packed_file_that_it_would_take_for_another_one(tmp_path: Path, kind: str) -> None:
    """Its readers of texts are not used, and a script, which uses them, gets no such file."""
    for name in ("a.txt", f"a{kind}"):
        folder = tmp_path / name
        folder.mkdir()
        spout = FileSpout(str(written(folder, name, PACKERS[kind](b"1\n"))))
        metadata, emitter = begin(spout), spout.emitter()
        assert emitter.text_files(metadata) is None
        if name == "a.txt" or kind == ".xz":
            with pytest.raises(ConfigurationError, match=r"is packed by .*by its name for something else"):
                emitter.batch_for_script(metadata, str(tmp_path))
        else:
            assert emitter.batch_for_script(metadata, str(tmp_path)) is not None
    plain = FileSpout(str(written(tmp_path, "plain.gz", b"1\n")))
    with pytest.raises(ConfigurationError, match="is not packed"):
        plain.emitter().batch_for_script(begin(plain), str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"PK\x03\x04\x14\0rest", "packed by zip, which FileSpout does not unpack"),
        ("a.csv", b"\x04\x22\x4d\x18rest", "packed by lz4"),
        ("a.csv.zst", b"n\n1\n", "its name says zstd, and its content is not packed so"),
        ("a.csv", b"\0\1\2\xff\n", "It looks like a packed or binary file"),
    ],
)
def test_what_cannot_be_unpacked_is_named_before_anything_is_replaced(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    with pytest.raises(DamagedInputError, match=said) as caught:
        read(written(tmp_path, name, content))
    assert "replace" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.csv", "a.csv.gz", "a.json"])
def test_empty_files_have_no_rows(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, gzip.compress(b"") if name.endswith("gz") else b"")
    kind = name.split(".")[1]
    options = {"format": kind, "fields": "n long"} if kind in ("csv", "json") else {}
    assert read(path, **options) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "not gzip"])
@pytest.mark.parametrize("options", [{}, {"format": "json", "fields": "n long"}, {"format": "csv", "fields": "n long"}])
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, damage: str, options: dict[str, Any]) -> None:
    line = '{"n": 1}\n' if options.get("format") == "json" else "1\n"
    packed = bytearray(gzip.compress(b"n\n" * (options.get("format") == "csv") + line.encode() * 5000))
    if damage == "cut":
        packed = packed[:-9]
    elif damage == "flipped":
        packed[-6] ^= 0xFF
    else:
        packed = bytearray(b"no gzip at all")
    with pytest.raises(
        DamagedInputError, match=r"a\.gz' cannot be read.*accept-source TOPOLOGY TXID.*anew, under new names"
    ):
        read(written(tmp_path, "a.gz", bytes(packed)), **options)


# ---- csv -------------------------------------------------------------------------------------------------------


def test_csv_holds_every_simple_type_in_any_order_of_columns(tmp_path: Path) -> None:
    text = (
        "at,p,day,y,b,f,d,i,l,s,c,took\n"
        f"2024-02-29T12:30:00.25,-1.5,2024-02-29,xyz,true,0.5,0.1,{-(2**31)},{2**63 - 1},x,12:30:00.25,-86399999995\n"
        ",,,,,,,,,,,\n"
    )
    nothing = ("", None, None, None, None, None, b"", None, None, None, None, None)
    assert read(written(tmp_path, "a.csv", text), format="csv", fields=TYPED) == [TYPED_ROW, nothing]


@pytest.mark.parametrize(
    ("text", "hour"),
    [("2024-01-01 12:00:00", 12), ("2024-01-01T12:00:00Z", 12), ("2024-01-01 12:00:00+02:00", 10), ("2024-01-01", 0)],
)
@pytest.mark.parametrize("name", ["a.csv", "a.json"])
def test_times_without_a_zone_are_utc(tmp_path: Path, text: str, hour: int, name: str) -> None:
    content = f"at\n{text}\n" if name == "a.csv" else json.dumps({"at": text})
    found = read(written(tmp_path, name, content), format=name[2:], fields="at timestamp")
    assert found == [(datetime.datetime(2024, 1, 1, hour, tzinfo=UTC),)]


def test_an_empty_line_of_a_csv_file_is_an_empty_value_where_there_is_one_column(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "n\n1\n\n2\n")
    assert read(path, format="csv", fields="n long") == [(1,), (None,), (2,)]
    assert read(path, format="csv", fields="n string") == [("1",), ("",), ("2",)]
    assert read(written(tmp_path, "b.csv", "n,m\n1,2\n\n"), format="csv", fields="n long, m long") == [(1, 2)]


def test_csv_without_header_has_the_declared_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", "1,a\n2,b\n")
    assert read(path, format="csv", fields="n long, s string", header=False) == [(1, "a"), (2, "b")]


def test_csv_values_may_hold_quotes_commas_and_line_ends(tmp_path: Path) -> None:
    rows = [('say "hi"', "a,b"), ("two\nlines", "return\r\nline"), ("", "NA"), ("null", "NULL"), ("  x ", "\t")]
    text = io.StringIO()
    csv.writer(text).writerows([("a", "b"), *rows])
    for name, content in (("a.csv", text.getvalue().encode()), ("b.csv.gz", gzip.compress(text.getvalue().encode()))):
        assert read(written(tmp_path, name, content), format="csv", fields="a string, b string") == rows


def test_csv_rows_beyond_one_block_are_all_there(tmp_path: Path) -> None:
    chosen = random.Random(1)
    rows = [(number, "x" * chosen.randrange(100)) for number in range(200_000)]
    path = written(tmp_path, "a.csv", "n,s\n" + "".join(f"{number},{text}\n" for number, text in rows))
    assert path.stat().st_size > 8 << 20
    assert read(path, format="csv", fields="n long, s string") == rows


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("n,s\n1,a\nx,b\n", r"the field 'n' of row 2 holds 'x', where long"),
        ("n,s\n1,a\n2\n", r"in row 2: expected 2 columns, got 1"),
        ("n,s\n1,a,b\n", r"in row 1: expected 2 columns, got 3"),
        ("n\n1\n", r"lacks the column 's'; it has \(n\)"),
        ("n,s,t\n1,a,b\n", r"has undeclared the column 't'.*extra_columns"),
        ("n,s,n\n1,a,2\n", r"has twice the column 'n'"),
        ('n,s\n1,"a\n2,b\n', r"in row 1: a quoted value is not closed"),
        ('n,s\n1,a\n2,"b', r"in row 2: a quoted value is not closed"),
        (b"n,s\n1,\xff\n", r"in row 1: in the column 's', 'utf-8' codec"),
        ("n,s\n9223372036854775808,a\n", r"the field 'n' of row 1 holds '9223372036854775808'"),
        ("\n", r"has no line with the names of its columns"),
    ],
)
def test_a_damaged_csv_file_is_an_error_that_names_the_place(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(DamagedInputError, match=rf"a\.csv'(?s:.*){said}") as caught:
        read(written(tmp_path, "a.csv", content), format="csv", fields="n long, s string")
    assert caught.value.cure


def test_a_quote_inside_an_unquoted_csv_value_is_only_a_quote(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'n,s\n1,5" pipe\n2,b\n')
    assert read(path, format="csv", fields="n long, s string") == [(1, '5" pipe'), (2, "b")]


# ---- Parquet ---------------------------------------------------------------------------------------------------


def parquet(tmp_path: Path, **columns: pa.Array) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_parquet_columns_are_widened_and_zones_are_given_without_loss(tmp_path: Path) -> None:
    when = datetime.datetime(2024, 1, 1, 12)
    path = parquet(
        tmp_path,
        other=pa.array([1.5, None, 2.5], pa.float32()),
        at=pa.array([when] * 3, pa.timestamp("ns")),
        n=pa.array([1, 2, 3], pa.int8()),
        s=pa.array(["a", "b", "a"]).dictionary_encode(),
        t=pa.array(["a", None, "c"], pa.large_string()),
        z=pa.array([when.replace(tzinfo=UTC)] * 3, pa.timestamp("ms", "Europe/Berlin")),
        p=pa.array([Decimal("1.5")] * 3, pa.decimal128(5, 1)),
        e=pa.nulls(3),
    )
    fields = "n long, s string, t string, other double, at timestamp, z timestamp, p decimal(10,2), e string"
    utc = when.replace(tzinfo=UTC)
    assert read(path, format="parquet", fields=fields) == [
        (1, "a", "a", 1.5, utc, utc, Decimal("1.50"), None),
        (2, "b", None, None, utc, utc, Decimal("1.50"), None),
        (3, "a", "c", 2.5, utc, utc, Decimal("1.50"), None),
    ]


@pytest.mark.parametrize(
    ("column", "field"),
    [
        (pa.array([2**40]), "n int"),
        (pa.array([1.5]), "n long"),
        (pa.array(["1"]), "n long"),
        (pa.array([1]), "n string"),
        (pa.array([1]), "n timestamp"),
        (pa.array([1], pa.timestamp("ns")), "n timestamp"),
        (pa.array([b"\xff"]), "n string"),
        (pa.array([[1]]), "n long"),
        (pa.array([1]), "n time"),
        (pa.array([1], pa.timestamp("us")), "n time"),
        (pa.array([1], pa.timestamp("us")), "n date"),
        (pa.array([1], pa.time64("us")), "n interval day to second"),
        (pa.array([1.5]), "n interval day to second"),
        (pa.array([1], pa.duration("us")), "n long"),
        (pa.array([{"a": 1}]), "n map<string,long>"),
        (pa.array([{"key": 1, "value": 2}]), "n map<long,long>"),
        (pa.array([Decimal("1.234")]), "n decimal(10,2)"),
    ],
)
def test_a_parquet_column_of_another_kind_is_an_error_that_names_it(
    tmp_path: Path, column: pa.Array, field: str
) -> None:
    with pytest.raises(DamagedInputError, match=r"a\.parquet': the field 'n' .*holds .* is declared.*Declare the type"):
        read(parquet(tmp_path, n=column), format="parquet", fields=field)


@pytest.mark.parametrize(
    ("kind", "declared", "shape"),
    [
        (pa.timestamp("us"), "timestamp", lambda moment: moment),
        (pa.list_(pa.timestamp("us")), "array<timestamp>", lambda moment: [moment, None]),
        (pa.large_list(pa.timestamp("us")), "array<timestamp>", lambda moment: [moment, None]),
        (pa.list_(pa.timestamp("us"), 2), "array<timestamp>", lambda moment: [moment, None]),
        (pa.struct([("a", pa.timestamp("us"))]), "struct<a:timestamp>", lambda moment: {"a": moment}),
        (pa.map_(pa.string(), pa.timestamp("us")), "map<string,timestamp>", lambda moment: {"k": moment}),
    ],
)
def test_old_timestamps_of_all_years_are_read_and_none_loses_nanoseconds(
    tmp_path: Path, kind: pa.DataType, declared: str, shape: Callable[[Any], Any]
) -> None:
    """Arrow reads INT96 in nanoseconds, and wraps what is not within the years 1677 to 2262."""
    moments = [datetime.datetime(1, 1, 1), datetime.datetime(2024, 2, 29, 12), datetime.datetime(9999, 12, 31, 23, 59)]
    column = pa.array([None, *map(shape, moments)], kind)
    pq.write_table(pa.table({"v": column}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    expected = [(None,), *((shape(moment.replace(tzinfo=UTC)),) for moment in moments)]
    assert read(tmp_path, format="parquet", fields=f"v {declared}") == expected
    finer = {
        "timestamp": pa.array([None, 1_001], pa.timestamp("ns")),
        "array<timestamp>": pa.array([None, [1_001, None]], replaced(kind, pa.timestamp("ns"))),
    }
    if declared in finer:
        pq.write_table(pa.table({"v": finer[declared]}), tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
        with pytest.raises(DamagedInputError, match=r"the field 'v' of row 2 holds .*would lose data"):
            read(tmp_path, format="parquet", fields=f"v {declared}")


def replaced(kind: pa.DataType, value: pa.DataType) -> pa.DataType:
    """The list type with other values."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(value, kind.list_size)
    return pa.large_list(value) if pa.types.is_large_list(kind) else pa.list_(value)


def test_missing_and_extra_parquet_columns_are_errors_that_name_them(tmp_path: Path) -> None:
    path = parquet(tmp_path, n=pa.array([1]), m=pa.array([2]))
    with pytest.raises(DamagedInputError, match=r"lacks the column 's'"):
        read(path, format="parquet", fields="n long, s string")
    with pytest.raises(DamagedInputError, match=r"has undeclared the column 'm'"):
        read(path, format="parquet", fields="n long")


@pytest.mark.parametrize("damage", ["cut", "no parquet", "flipped", "empty"])
def test_a_damaged_parquet_file_is_an_error(tmp_path: Path, damage: str) -> None:
    path = parquet(tmp_path, n=pa.array(range(1000)))
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[: len(content) // 2]
    elif damage == "no parquet":
        content = bytearray(b"x" * len(content))
    elif damage == "empty":
        content = bytearray()
    else:
        content[4:400] = b"\xff" * 396
    path.write_bytes(content)
    with pytest.raises(DamagedInputError, match=r"a\.parquet' cannot be read"):
        read(path, format="parquet", fields="n long")


def test_a_page_with_another_checksum_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"n": list(range(1000))})
    pq.write_table(rows, path, write_page_checksum=True, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[content.find((500).to_bytes(8, "little") + (501).to_bytes(8, "little"))] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedInputError, match=r"a\.parquet' cannot be read: .*checksum"):
        read(path, format="parquet", fields="n long")


# ---- all -------------------------------------------------------------------------------------------------------


def test_undeclared_columns_can_be_left_out(tmp_path: Path) -> None:
    options = {"fields": "n long", "extra_columns": "ignore"}
    assert read(written(tmp_path, "a.csv", "m,n\nx,1\n"), format="csv", **options) == [(1,)]
    assert read(written(tmp_path, "a.json", '{"m": {"x": 1}, "n": 1}'), format="json", **options) == [(1,)]
    path = parquet(tmp_path, m=pa.array([2]), n=pa.array([1]))
    assert read(path, format="parquet", **options) == [(1,)]
    with pytest.raises(DamagedInputError, match="'n'"):
        read(written(tmp_path, "b.csv", "m\nx\n"), format="csv", **options)
