"""Rows with fields of many types, and random well-typed expressions over them."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from airflow_trident.operations.expressions import (
    Expression,
    coalesce,
    col,
    concat,
    length,
    lit,
    lower,
    size,
    split,
    split_words,
    substring,
    trim,
    upper,
    when,
)
from airflow_trident.types import INTERVAL, Schema, parse_declared

SCHEMA: Schema = parse_declared(
    "a long, b long, i int, x double, y double, f float, s string, t string, p boolean, q boolean, "
    "words array<string>, d decimal(6,2), day date, at timestamp, h short, g byte, "
    "clock time, took interval day to second"
)
DAY, AT = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 23, 59, 59, 123_400, datetime.UTC)
OLD, OLD_AT = datetime.date(1, 1, 1), datetime.datetime(1582, 10, 4, 0, 0, 1, tzinfo=datetime.UTC)
EARLY, LATE = datetime.time(0, 0, 0, 1), datetime.time(23, 59, 59, 500_000)
TOOK, BACK = datetime.timedelta(days=3, microseconds=1), datetime.timedelta(microseconds=-1)
ROWS: list[tuple[Any, ...]] = [
    (None,) * len(SCHEMA),
    (
        7,
        2,
        -3,
        1.5,
        -0.0,
        0.25,
        "The CAT  sat",
        "CAT",
        True,
        False,
        ["a", None, ""],
        Decimal("1.25"),
        DAY,
        AT,
        300,
        -5,
        EARLY,
        TOOK,
    ),
    (0, 0, 0, 0.0, 0.0, 0.0, "", "", False, None, [], Decimal("0.00"), OLD, OLD_AT, 0, 0, LATE, BACK),
    (
        -7,
        3,
        7,
        math.nan,
        math.inf,
        math.nan,
        " \t\u0391Σ größe\u00a0猫😀\n",
        "e",
        None,
        True,
        ["x"],
        Decimal("-1.25"),
        DAY,
        AT,
        -1,
        None,
        datetime.time(),
        datetime.timedelta(),
    ),
    (
        2**53 + 1,
        -1,
        1,
        2.0**53,
        -math.inf,
        math.inf,
        "a.b..c.",
        ".",
        True,
        True,
        ["b", "b"],
        Decimal("9999.99"),
        OLD,
        AT,
        None,
        1,
        None,
        None,
    ),
    (
        1,
        10,
        5,
        1e300,
        1e-300,
        -1.5,
        "\uffff",
        "😀",
        False,
        False,
        ["😀"],
        Decimal("-0.01"),
        DAY,
        OLD_AT,
        -32768,
        -128,
        LATE,
        None,
    ),
    (5, None, 2, None, 3.5, None, "\\E,\\Q", ",", None, None, None, None, None, None, 32767, 127, None, TOOK),
]

Make = Callable[["Trees"], Expression]


class Trees:
    """Makes well-typed expressions from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.depth = 0

    def of(self, wanted: str) -> Expression:
        self.depth += 1
        leaf = self.depth > 4 or self.random.random() < 0.2
        made = self.random.choice(LEAVES[wanted] if leaf else INNER[wanted])(self)
        self.depth -= 1
        return made

    def number(self) -> Expression:
        return self.of(self.random.choice(["long", "double"]))

    def comparison(self) -> Expression:
        kind = self.random.choice(
            ["long", "double", "string", "boolean", "date", "timestamp", "time", "interval", "decimal", "mixed"]
        )
        left, right = (self.number(), self.number()) if kind == "mixed" else (self.of(kind), self.of(kind))
        compare = self.random.choice(
            [
                lambda a, b: a == b,
                lambda a, b: a != b,
                lambda a, b: a < b,
                lambda a, b: a <= b,
                lambda a, b: a > b,
                lambda a, b: a >= b,
            ]
        )
        made: Expression = compare(left, right)
        return made


def leaves(*expressions: Any) -> list[Make]:
    return [lambda _, one=one: lit(one) for one in expressions]


LEAVES: dict[str, list[Make]] = {
    "long": leaves(col("a"), col("b"), col("i"), col("h"), col("g"), 0, 1, -3, 10, lit(None, "long")),
    "double": leaves(col("x"), col("y"), col("f"), 0.0, -0.5, 1e10, math.nan, math.inf, lit(None, "double")),
    "string": leaves(col("s"), col("t"), "", "a", "größe Σ", lit(None, "string")),
    "boolean": leaves(col("p"), col("q"), True, False, lit(None, "boolean")),
    "date": leaves(col("day"), DAY, OLD),
    "timestamp": leaves(col("at"), AT, OLD_AT),
    "time": leaves(col("clock"), EARLY, LATE, lit(None, "time")),
    "interval": leaves(col("took"), TOOK, BACK, lit(None, INTERVAL)),
    "decimal": leaves(col("d"), Decimal("1.250"), Decimal(-3)),
    "array": [lambda _: col("words"), lambda _: split(col("s"), "."), lambda _: split_words(col("s"))],
}


def chosen(wanted: str) -> list[Make]:
    """The expressions that every type has: coalesce and when."""
    return [
        lambda make: coalesce(make.of(wanted), make.of(wanted)),
        lambda make: when(make.of("boolean"), make.of(wanted)).otherwise(make.of(wanted)),
        lambda make: when(make.of("boolean"), make.of(wanted)).when(make.of("boolean"), make.of(wanted)),
    ]


INNER: dict[str, list[Make]] = {
    "long": [
        *chosen("long"),
        lambda make: make.of("long") + make.of("long"),
        lambda make: make.of("long") - make.of("long"),
        lambda make: make.of("long") * make.of("long"),
        lambda make: make.of("long") % make.of("long"),
        lambda make: -make.of("long"),
        lambda make: abs(make.of("long")),
        lambda make: length(make.of("string")),
        lambda make: size(make.of("array")),
        lambda make: make.of("double").cast("long"),
        lambda make: make.of("boolean").cast(make.random.choice(["int", "short", "byte"])),
        lambda make: (make.of("long") % 100).cast("byte"),
    ],
    "double": [
        *chosen("double"),
        lambda make: make.number() / make.number(),
        lambda make: make.of("double") + make.number(),
        lambda make: make.number() - make.of("double"),
        lambda make: make.of("double") * make.number(),
        lambda make: make.of("double") % make.number(),
        lambda make: -make.of("double"),
        lambda make: abs(make.of("double")),
        lambda make: make.of("double").cast("float"),
        lambda make: make.of("decimal").cast("double"),
    ],
    "string": [
        *chosen("string"),
        lambda make: lower(make.of("string")),
        lambda make: upper(make.of("string")),
        lambda make: trim(make.of("string")),
        lambda make: concat(make.of("string"), make.of("string")),
        lambda make: substring(make.of("string"), make.random.randint(1, 4), make.random.randint(0, 5)),
        lambda make: make.of("long").cast("string"),
        lambda make: make.of("boolean").cast("string"),
        lambda make: make.of("date").cast("string"),
        lambda make: make.of("timestamp").cast("string"),
        lambda make: make.of("time").cast("string"),
    ],
    "boolean": [
        *chosen("boolean"),
        lambda make: make.of("boolean") & make.of("boolean"),
        lambda make: make.of("boolean") | make.of("boolean"),
        lambda make: ~make.of("boolean"),
        lambda make: make.comparison(),
        lambda make: make.comparison(),
        lambda make: make.of("string").contains(make.of("string")),
        lambda make: make.of("string").starts_with(make.of("string")),
        lambda make: make.of("string").ends_with(make.of("string")),
        lambda make: make.of("array").is_null(),
        lambda make: make.of("long").cast("boolean"),
    ],
    "date": [*chosen("date"), lambda make: make.of("timestamp").cast("date")],
    "timestamp": [*chosen("timestamp"), lambda make: make.of("date").cast("timestamp")],
    "time": [*chosen("time"), lambda make: make.of("time").cast("string").cast("time")],
    "interval": chosen("interval"),
    "decimal": [*chosen("decimal"), lambda make: make.of("decimal").cast("decimal(7,1)")],
    "array": [
        *chosen("array"),
        lambda make: split(make.of("string"), ","),
        lambda make: split_words(make.of("string")),
    ],
}
