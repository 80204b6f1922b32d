"""What FileSpout reads out of json files, and that damage is an error, never fewer rows."""

from __future__ import annotations

import datetime
import json
import random
from decimal import Decimal
from pathlib import Path

import pytest

from airflow_trident.errors import DamagedInputError
from tests.fixtures.file import TYPED, TYPED_ROW, read, written


def test_json_holds_every_type(tmp_path: Path) -> None:
    row = {
        "s": "é\0\U0001f600",
        "l": 2**63 - 1,
        "i": -(2**31),
        "d": 0.1,
        "f": 0.5,
        "b": True,
        "y": "xyz",
        "day": "2024-02-29",
        "at": "2024-02-29T12:30:00.25Z",
        "p": -1.5,
        "c": "12:30:00.25",
        "took": -86399999995,
        "a": ["x", None],
        "aa": [[1], [], None],
        "ad": ["2024-01-01"],
        "st": {"day": "2024-01-01", "Inner": {"x": [1.5]}},
        "hours": [["01:02:03", None], None],
    }
    content = f"{json.dumps(row)}\r\n\n{{}}\n{json.dumps(dict.fromkeys(row))}"
    fields = f"{TYPED}, a array<string>, aa array<array<long>>, ad array<date>"
    fields += ", st struct<day:date,Inner:struct<x:array<double>>>, hours array<array<time>>"
    first = ("é\0\U0001f600", *TYPED_ROW[1:], ["x", None], [[1], [], None], [datetime.date(2024, 1, 1)])
    first = (*first, {"day": datetime.date(2024, 1, 1), "Inner": {"x": [1.5]}})
    first = (*first, [[datetime.time(1, 2, 3), None], None])
    nothing = (None,) * len(first)
    assert read(written(tmp_path, "a.json", content), format="json", fields=fields) == [first, nothing, nothing]


def test_json_objects_are_maps_where_maps_are_declared(tmp_path: Path) -> None:
    """Beside a decimal with more digits than a float, and a member that is only looked at by the parser."""
    fields = (
        "m map<string,long>, days map<date,array<decimal(38,1)>>, deep struct<by:map<int,map<string,time>>>, x double"
    )
    beyond = b'\xef\xbb\xbf{"m": {"3600000000": 1e308}}'
    spans = read(written(tmp_path, "b.json", beyond), format="json", fields="m map<interval day to second,double>")
    assert spans == [({datetime.timedelta(hours=1): 1e308},)]
    with pytest.raises(DamagedInputError, match="the number 1e999 is too big"):
        read(written(tmp_path, "b.json", '{"m": {"1": 1e999}}'), format="json", fields="m map<long,double>")
    digits = "1234567890123456789012345678901234567.5"
    lines = [
        '{"m": {"a": 1, "é\\u0000": null}, "days": {"2024-02-29": [' + digits + ', null]}, "x": 0.1}',
        '{"m": {}, "days": null, "deep": {"by": {"7": {"x": "01:02:03"}, "-1": null}}}',
        "",
        "{}",
    ]
    found = read(written(tmp_path, "a.json", "\r\n".join(lines)), format="json", fields=fields)
    day = datetime.date(2024, 2, 29)
    assert found == [
        ({"a": 1, "é\0": None}, {day: [Decimal(digits), None]}, None, 0.1),
        ({}, None, {"by": {7: {"x": datetime.time(1, 2, 3)}, -1: None}}, None),
        (None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"m": {"1": 1}}\n{"m": \n', "line 2: Expecting value"),
        ('{"m": {"1": 1, "1": 2}}', "'1' is there twice"),
        ('{"m": {"1": 1, "01": 2}}', "it has a key twice"),
        ('{"m": {"x": 1}}', "the field 'm' of row 1 holds 'x' in its keys, where long is declared"),
        ('{"m": {"1": "x"}}', "'m.1' holds \"x\""),
        ('{"m": [1]}', "'m' holds \\[1\\], and map<long,long> is declared"),
        ('{"m": 1}', "'m' holds 1"),
        ('[{"m": {}}]', "line 1: the line is \\[.* and no object"),
        ('{"m": {}, "n": 2}', "the field 'n' is not declared"),
        ('{"m": {"1": NaN}}', "'m.1' holds NaN"),
        (b'{"m": {"\xff": 1}}', "utf-8"),
        ("null", "line 1: the line is null"),
        ('{"m": {}}\n\u00a0\n', "Expecting value"),
        ('{"m": ' + '{"1": ' * 100_000, "recursion"),
    ],
)
def test_json_that_does_not_fit_a_map_is_an_error_that_names_the_file(
    tmp_path: Path, content: str | bytes, said: str
) -> None:
    with pytest.raises(DamagedInputError, match=rf"a\.json'(?s:.*){said}"):
        read(written(tmp_path, "a.json", content), format="json", fields="m map<long,long>")


def test_json_lines_beyond_one_block_are_all_there_in_any_parts(tmp_path: Path) -> None:
    rows = [(number, "x" * (number % 60)) for number in range(120_000)]
    path = written(tmp_path, "a.json", "".join(json.dumps({"n": n, "s": s}) + "\n" for n, s in rows))
    assert path.stat().st_size > 4 << 20
    for split_bytes in (10**9, 1_000_003):
        assert read(path, format="json", fields="n long, s string", split_bytes=split_bytes) == rows


def test_one_json_line_may_be_longer_than_a_block(tmp_path: Path) -> None:
    path = written(tmp_path, "a.json", json.dumps({"s": "x" * (9 << 20)}) + '\n{"s": "y"}\n')
    assert [len(text) for (text,) in read(path, format="json", fields="s string")] == [9 << 20, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"n": 1}\n{"n": \n', "line 2: Expecting value"),
        ('{"n": 1,\n', "Each line holds one JSON object"),
        ('[{"n": 1}]', "array"),
        ("7\n", "the line is 7"),
        ('{"n": 1}\nplain text\n', "line 2: Expecting value"),
        ('{"n": "1"}\n', "'n' holds \"1\""),
        ('{"n": 1.5}\n', "'n' holds 1.5, and long is declared"),
        ('{"n": 9223372036854775808}\n', "'n' holds 9223372036854775808"),
        ('{"n": 1, "m": 2}\n', "the field 'm' is not declared"),
        ('{"n": 1, "n": 2}\n', "twice"),
        ('{"s": 1}\n', "'s' holds 1, and string"),
        ('{"s": "null"}\n null\n{"n": 1}', "line 2: the line is null"),
        (b'{"s": "\xff"}\n', "line 1: 'utf-8' codec"),
    ],
)
def test_a_damaged_json_file_is_an_error_that_names_the_place(tmp_path: Path, content: str | bytes, said: str) -> None:
    with pytest.raises(DamagedInputError, match=rf"a\.json'(?s:.*){said}"):
        read(written(tmp_path, "a.json", content), format="json", fields="n long, s string")


EXTRA = [
    *(b'"x":1,"x":2', b'"y":"\xff\xfe"', b'"z":"644e5"', b'"z":1.5e3', b'"z":' + b"7" * 60, b'"o":{"a":1,"a":{"b":2}}'),
    *(b'"o":[{"a":1,"a":2}]', b'"":null', b'"m2":{"k":1,"k":1}', b'"price2":"1e5"'),
]
"""What may stand beside the fields, where `extra_columns="ignore"`."""


@pytest.mark.parametrize("fields", ["n long, st struct<a:long>", "n long, st struct<a:long>, price decimal(10,2)"])
@pytest.mark.parametrize("with_map", [False, True])
def test_what_is_not_declared_changes_nothing_whatever_it_is(tmp_path: Path, fields: str, with_map: bool) -> None:
    """A number with an exponent, or a map, sends a line through another parser than its neighbours."""
    draw = random.Random(7)
    fields += ", m map<string,long>" if with_map else ""
    for number in range(30):
        plain, full = [], []
        for _ in range(draw.randint(1, 5)):
            parts = [b'"n":%d' % draw.randint(-9, 9)]
            inner = [b'"a":%d' % draw.randint(0, 9)]
            parts += [b'"price":%s' % draw.choice([b"1.5", b"15e-1", b'"2e1"'])] if "price" in fields else []
            parts += [b'"m":{"k":1}'] if with_map else []
            plain.append(_object([*parts, b'"st":' + _object(inner)]))
            mixed = [*parts, b'"st":' + _object(draw.sample([*inner, *draw.sample(EXTRA, 2)], 3))]
            full.append(_object(draw.sample(both := [*mixed, *draw.sample(EXTRA, 3)], len(both))))
        rows = [
            read(written(tmp_path, f"{number}.json", b"\n".join(lines)), format="json", fields=fields, **options)
            for lines, options in ((plain, {}), (full, {"extra_columns": "ignore"}))
        ]
        assert rows[0] == rows[1], full
        twice = _object([b'"n":1', *draw.sample(EXTRA, 2), b'"n":2'])
        with pytest.raises(DamagedInputError, match=r"in line \d"):
            read(
                written(tmp_path, "t.json", b"\n".join([*full, twice])),
                format="json",
                fields=fields,
                extra_columns="ignore",
            )


def _object(parts: list[bytes]) -> bytes:
    return b"{" + b",".join(parts) + b"}"
