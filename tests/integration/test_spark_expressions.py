"""The JVM gives for every expression what Python gives: the same values, and errors where there are errors."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from airflow_trident.engine.spark.engine import SparkEngine
from airflow_trident.engine.spark.errors import is_expression_error
from airflow_trident.engine.spark.expressions import compile_expression
from airflow_trident.engine.spark.sessions.session import SESSION_CONF, Attached, _configured
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.operations.evaluate import TEXT_PATTERNS, bind
from airflow_trident.operations.expressions import (
    Expression,
    col,
    dtype,
    lower,
    split,
    upper,
    when,
)
from airflow_trident.staging.manifest import Slot
from airflow_trident.types import parse_declared
from tests.generated.expressions import LEAVES, ROWS, SCHEMA, Trees

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def attached(spark_engine: SparkEngine) -> Iterator[Attached]:
    session = spark_engine._sessions.open(Slot(topology="expressions", incarnation="0", txid=1, attempt=0))
    yield session
    session.release()


def test_a_timestamp_is_an_instant_on_a_cluster_whose_timestamps_are_none(spark_session: SparkSession) -> None:
    session = spark_session.newSession()
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    at = "CAST('2024-02-29 01:02:03+05:30' AS timestamp)"
    (row,) = _configured(session, SESSION_CONF).sql(f"SELECT unix_micros({at}) AS at").collect()
    assert row.at == 1_709_148_723_000_000


def in_jvm(attached: Attached, expressions: list[Expression], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """One tuple of values per row, in the order of `rows`. Behind a shuffle: else the optimiser would calculate it."""
    columns = {field.name: list(values) for field, values in zip(SCHEMA, zip(*rows, strict=True), strict=True)}
    table = pa.table(columns, schema=arrow_schema(SCHEMA)).append_column("row", pa.array(range(len(rows))))
    data = attached.session.createDataFrame(table).repartition(2)
    compiled = [compile_expression(one, SCHEMA, attached.functions) for one in expressions]
    named = [column.alias(f"v{place}") for place, column in enumerate(compiled)]
    found = sorted(data.select("row", *named).toArrow().to_pylist(), key=lambda row: row["row"])
    return [tuple(row[f"v{place}"] for place in range(len(expressions))) for row in found]


def in_python(expression: Expression, rows: list[tuple[Any, ...]]) -> list[Any]:
    names = [field.name for field in SCHEMA]
    call = bind(expression, SCHEMA)
    return [call(*(row[names.index(name)] for name in expression.reads)) for row in rows]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or (left, math.copysign(1, left)) == (
            right,
            math.copysign(1, right),
        )
    return type(left) is type(right) and bool(left == right)


def compare(attached: Attached, expressions: list[Expression], rows: list[tuple[Any, ...]]) -> None:
    meant = [in_python(one, rows) for one in expressions]
    given = in_jvm(attached, expressions, rows)
    wrong = [
        f"{expression} over {row}: JVM {given[number][place]!r}, Python {meant[place][number]!r}"
        for place, expression in enumerate(expressions)
        for number, row in enumerate(rows)
        if not same(given[number][place], meant[place][number])
    ]
    assert not wrong, "\n".join(wrong[:10])


# ---- random trees ----------------------------------------------------------------------------------------------


def test_random_expressions_mean_the_same_in_the_jvm(attached: Attached) -> None:
    """Those that fail in Python on some row must fail in the JVM on it, and give equal values on the other rows."""
    make = Trees(20)
    expressions = [make.of(wanted) for wanted in LEAVES for _ in range(15)]
    sound = [one for one in expressions if not _fails(one, ROWS)]
    assert len(sound) > 80
    compare(attached, sound, ROWS)


def _fails(expression: Expression, rows: list[tuple[Any, ...]]) -> bool:
    try:
        in_python(expression, rows)
    except (ValueError, ArithmeticError):
        return True
    return False


# ---- errors and casts ------------------------------------------------------------------------------------------


def row_with(**values: Any) -> tuple[Any, ...]:
    return tuple(values.get(field.name) for field in SCHEMA)


BIG, SMALL = 2**63 - 1, -(2**63)


@pytest.mark.parametrize(
    ("expression", "row"),
    [
        (col("a") + 1, row_with(a=BIG)),
        (col("a") - 1, row_with(a=SMALL)),
        (col("a") * -1, row_with(a=SMALL)),
        (-col("a"), row_with(a=SMALL)),
        (abs(col("a")), row_with(a=SMALL)),
        (col("a").cast("int"), row_with(a=2**31)),
        (col("x").cast("long"), row_with(x=2.0**63)),
        (col("x").cast("long"), row_with(x=math.nan)),
        (col("x").cast("int"), row_with(x=-(2.0**31) - 1)),
        (col("a").cast("decimal(3,0)"), row_with(a=1000)),
        (col("d").cast("decimal(3,1)"), row_with(d=Decimal("99.99"))),
        (col("a").cast("short"), row_with(a=2**15)),
        (col("h").cast("byte"), row_with(h=-129)),
        (col("x").cast("byte"), row_with(x=128.5)),
        (col("f").cast("short"), row_with(f=math.inf)),
        (col("s").cast("byte"), row_with(s="128")),
        (col("s").cast("long"), row_with(s="9223372036854775808")),
        (col("s").cast("int"), row_with(s="2147483648")),
        (col("s").cast("date"), row_with(s="2023-02-29")),
    ],
)
def test_what_is_an_error_in_python_is_one_in_the_jvm(attached: Attached, expression: Expression, row: Any) -> None:
    assert _fails(expression, [row])
    with pytest.raises(Exception) as caught:
        in_jvm(attached, [expression], [row])
    assert is_expression_error(caught.value)


def test_a_text_is_split_alike_by_whatever_means_something_in_a_regular_expression(attached: Attached) -> None:
    delimiters = [*map(chr, range(1, 127)), "é", "\\E", "a.", ". ", "猫", "\\Q", "||"]
    text = f"x{'y'.join(delimiters)}{''.join(delimiters)}"
    compare(attached, [split(col("s"), one) for one in delimiters], [row_with(s=text), row_with(s=""), row_with()])


TEXTS = [
    *(
        "",
        " ",
        "0",
        "-0",
        "+7",
        " 12 ",
        "1_000",
        "٣",
        "1.0",
        "9223372036854775807",
        "1e3",
        ".5",
        "5.",
        "-.5E-2",
        "1e999",
    ),
    *("inf", "-inf", "Infinity", "-Infinity", "+Infinity", "NaN", "nan", "1d", "1f", "0x1p3", "1e", "\t1", "1\n"),
    *("true", "false", "TRUE", "t", "yes", "1"),
    *("2024-02-29", "0001-01-01", "0000-01-01", "2024-2-9", "10000-01-01", "2024-02-29T", "1582-10-10"),
    *("2024-02-29 00:00:00", "2024-02-29T23:59:59.5", "2024-02-29 23:59:59.123456", "2024-02-29 23:59:59.1234567"),
    *("2024-02-29 24:00:00", "2024-02-29 01:02:03Z", "2024-02-29 01:02:03+05:30", "2024-02-29 01:02:03 +05:30"),
    *("00:00:00", " 23:59:59.5", "12:30:00.123456", "12:30:00.1234567", "24:00:00", "1:02:03", "01:02", "01:02:03Z"),
    *("2024-02-29 01:02", "1582-10-10 00:00:00.000001-11:00"),
]


@pytest.mark.parametrize("wanted", ["byte", "short", "int", "long", "double", "boolean", "date", "time", "timestamp"])
def test_a_text_is_cast_alike_and_refused_alike(attached: Attached, wanted: str) -> None:
    """All texts that Python takes are cast in one query; for the others, the JVM's own test of the text says no."""
    expression = col("s").cast(wanted)
    taken = [text for text in TEXTS if not _fails(expression, [row_with(s=text)])]
    compare(attached, [expression], [row_with(s=text) for text in taken])
    refused = [text for text in TEXTS if text not in taken and not _refused_by_value(text, wanted)]
    for text in refused[:2]:
        with pytest.raises(Exception, match=r"cannot be cast"):
            in_jvm(attached, [expression], [row_with(s=text)])
    # the same guard, asked about all of them at once: what it lets through in the JVM has a value in Python
    guarded = attached.functions.col("s")
    pattern = attached.functions.trim(guarded).rlike(rf"\A(?:{TEXT_PATTERNS[wanted]})\z")
    data = attached.session.createDataFrame([(text,) for text in refused], "s string")
    assert [row["s"] for row in data.where(pattern).toArrow().to_pylist()] == []


def _refused_by_value(text: str, wanted: str) -> bool:
    """Well formed, and yet no such number or day."""
    return re.fullmatch(TEXT_PATTERNS[wanted], text.strip(" ")) is not None


def test_letters_change_case_alike_in_all_scripts_that_python_knows(attached: Attached) -> None:
    letters = [chr(code) for code in range(0x2D30) if unicodedata.category(chr(code)) in ("Lu", "Ll", "Lt", "Mn")]
    rows = [row_with(s=text) for text in [*letters, "\u0391Σ", "\u0391Σ.", "Σ", "\u0391Σ\u0301 \u0392", "ﬃ", "İi"]]
    newer = {"\u019b", "\u0264", "\u1c89", "\u1c8a"}  # got their capitals after Python 3.11's Unicode 14
    rows = [row for row in rows if row[6] not in newer]
    compare(attached, [lower(col("s")), upper(col("s"))], rows)


NESTED = parse_declared(
    "d decimal(6,2), e decimal(19,19), big decimal(37,0), some decimal(34,17), u decimal(18,9), w decimal(19,10), "
    "n long, words array<string>, prices map<string,decimal(6,2)>, ages map<byte,int>, "
    "part struct<a:int,b:array<struct<c:string>>>"
)
MOST, LEAST = Decimal(10**37 - 1), Decimal("1E-19")
SOME, U, W = Decimal("9" * 17 + "." + "9" * 17), Decimal("9" * 9 + "." + "9" * 9), Decimal("9" * 9 + "." + "9" * 10)
ROWS_OF_NESTED: list[tuple[Any, ...]] = [
    (
        *(Decimal("9999.99"), Decimal("0." + "9" * 19), MOST, SOME, U, W, BIG),
        *(["a", None], {"a": Decimal("1.00")}, {-3: 7}, {"a": None, "b": [None, {"c": "x"}]}),
    ),
    (
        *(Decimal("-9999.99"), -LEAST, Decimal(1 - 10**37), SOME.copy_negate(), -U, W, SMALL),
        *([], {}, {}, {"a": 1, "b": None}),
    ),
    (
        *(Decimal("0.01"), LEAST, *[Decimal(0)] * 4, -1),
        *(["b"], {"a": None, "": Decimal(0)}, {3: 1}, None),
    ),
    (None,) * len(NESTED),
]


def test_decimals_members_and_elements_are_those_of_python(attached: Attached) -> None:
    d, e, n, part = col("d"), col("e"), col("n"), col("part")
    expressions = [
        *(d * d + n, d - n, n * d, 3 - d * 10, e + e, e - d, -col("some"), abs(col("some")), d * d * d),
        *(col("big") + col("big"), col("big") - 9, col("u") * col("w"), -col("u") - col("w")),
        *((d + 1 > 0) & (e * 2 < 1), when(d > 1, d * 2).otherwise(n), (d + e).cast("double")),
        *(
            col("words").get_item(0),
            col("words").get_item(BIG),
            col("prices").get_item("a"),
            col("prices").get_item(""),
        ),
        *(col("ages").get_item(-3), col("ages").get_item(3) * 2, part.get_field("a") + 1),
        *(part.get_field("b").get_item(place).get_field("c") for place in (0, 1, 2)),
    ]
    names = [field.name for field in NESTED]
    table = pa.Table.from_pylist(
        [dict(zip(["row", *names], (place, *row), strict=True)) for place, row in enumerate(as_lists(ROWS_OF_NESTED))],
        schema=pa.schema([("row", pa.int64()), *arrow_schema(NESTED)]),
    )
    columns = [compile_expression(one, NESTED, attached.functions) for one in expressions]
    named = [column.alias(f"v{place}") for place, column in enumerate(columns)]
    data = attached.session.createDataFrame(table).repartition(2).select("row", *named)
    given = sorted(data.toArrow().to_pylist(), key=lambda found: found["row"])
    for place, one in enumerate(expressions):
        call = bind(one, NESTED)
        for found, row in zip(given, ROWS_OF_NESTED, strict=True):
            assert found[f"v{place}"] == call(*(row[names.index(name)] for name in one.reads)), (str(one), row)
        assert data.schema[f"v{place}"].dataType.simpleString() == dtype(one, NESTED).replace("long", "bigint")


def as_lists(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """With maps as Arrow takes them."""
    maps = [place for place, field in enumerate(NESTED) if field.type.startswith("map")]
    return [
        tuple(list(value.items()) if place in maps and value is not None else value for place, value in enumerate(row))
        for row in rows
    ]
