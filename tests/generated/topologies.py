"""Random topologies with random data, and their right results from a few lines of Python each.

A program is a list of small numbers, so that hypothesis can shrink it: each instruction chooses a verb, one or two of
the present streams, and a variant. Every stream has the fields ``k``, ``n``, ``x``, and perhaps more that are ignored;
`rows` are the values of those three, in any order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any
from weakref import WeakKeyDictionary

from hypothesis import strategies as st

from airflow_trident import Count, FixedBatchSpout, Max, Min, Stream, Sum, Topology
from airflow_trident.functions import Average, CollectSet, CountDistinct, MaxBy, Percentile, Variance, check, expect
from airflow_trident.operations.expressions import coalesce, col, concat, explode, length, split, when
from airflow_trident.operations.rules import written
from tests.fixtures.engine import CHECKS, keep
from tests.generated.in_python import (
    ABOUT,
    about_pairs,
    groups_of,
    key_of,
    largest,
    mean,
    median,
    numbers,
    of_the_largest,
    pairs,
    smallest,
    spread,
    total,
)
from tests.generated.operations import (
    AboveZero,
    Doubled,
    Letters,
    Longest,
    Odds,
    Row,
    Sides,
    SidesOf,
    Turned,
    Twice,
    compare,
    doubled,
    is_short,
    repeat,
    turned,
)

SCHEMA = "k string, n long, x double"
MAX_ROWS = 400
COPIES = 3
"""Of a tuple that is broadcast. No other hint here is larger, because the largest one counts of all that a merge puts
into a stage."""

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "a b", "", "é", None]),
        st.sampled_from([0, 1, 2, 3, -4, 7, None]),
        st.sampled_from([0.0, 0.5, -1.25, 8.0, math.nan, math.inf, None]),
    ),
    max_size=7,
)
PROGRAMS = st.lists(st.tuples(*[st.integers(0, 60)] * 4), min_size=1, max_size=9)
SOURCES = st.tuples(ROWS, ROWS)


@dataclass(frozen=True)
class Made:
    """A stream, and the rows that it must have."""

    stream: Stream
    rows: list[Row]


def build(
    topology: Topology, sources: Iterable[list[Row]], program: Iterable[tuple[int, ...]], *, on_spark: bool = False
) -> dict[str, list[Row]]:
    """Builds the topology. Returns its states with the rows that must be staged for each: one for every unused stream.

    :param on_spark: with verbs that only Spark runs.
    """
    verbs = (*VERBS, transform, transform) if on_spark else VERBS
    made = [
        Made(topology.new_stream(f"s{place}", FixedBatchSpout(SCHEMA, rows, splits=2)), rows)
        for place, rows in enumerate(sources)
    ]
    used: set[int] = set()
    for verb, first, second, variant in program:
        one, other = first % len(made), second % len(made)
        change = verbs[verb % len(verbs)]
        result = change(topology, made[one], made[other], variant)
        if len(result.rows) > MAX_ROWS:
            continue
        used |= {one, other} if change in (*BINARY, transform) else {one}
        made.append(result)
    expected = {}
    for place, result in enumerate(made):
        if place not in used:
            keep(result.stream.project("k, n, x"), f"state_{place}")
            expected[f"state_{place}"] = result.rows
    if GATES.get(topology):
        expected[CHECKS] = GATES[topology]
    return expected


# ---- verbs -----------------------------------------------------------------------------------------------------


def fresh(stream: Stream) -> str:
    return f"extra_{len(stream.fields)}"


def each_function(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    rows = [row for row in one.rows for _ in repeat(row[0], row[1])]
    return Made(one.stream.each("k, n", repeat, f"{fresh(one.stream)} long"), rows)


def each_expression(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream.each(coalesce(col("n"), 1) * 2 + length(coalesce(col("k"), "")), fresh(one.stream))
    return Made(stream.each(when(col("x") > 1, concat(col("k"), "!")).otherwise("-"), fresh(stream)), one.rows)


def each_explode(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    rows = [row for row in one.rows if row[0] is not None for _ in row[0].split(" ")]
    return Made(one.stream.each(explode(split(col("k"), " ")), fresh(one.stream)), rows)


def filter_function(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    return Made(one.stream.filter("k", is_short), [row for row in one.rows if is_short(row[0])])


def vectorised(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream
    if variant % 3 == 0:
        both = f"{fresh(stream)}, {fresh(stream)}_again"
        return Made(stream.each("n, k", Doubled(), both), one.rows)
    if variant % 3 == 1:
        return Made(stream.filter("n", AboveZero()), [row for row in one.rows if row[1] is not None and row[1] > 0])
    rows = [(k, n or 0, x) for k, n, x in (row[:3] for row in one.rows)]
    return Made(stream.project("k, n, x").map(Turned(), SCHEMA), rows)


def filter_expression(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    choices: list[tuple[Any, Callable[[Row], Any]]] = [
        (col("n") > 0, lambda row: row[1] is not None and row[1] > 0),
        (col("x").is_not_null(), lambda row: row[2] is not None),
        (col("k") == "a", lambda row: row[0] == "a"),
        (col("n") + 1 <= 3, lambda row: row[1] is not None and row[1] <= 2),
        (col("x") >= 0.5, lambda row: row[2] is not None and (row[2] != row[2] or row[2] >= 0.5)),
    ]
    expression, holds = choices[variant % len(choices)]
    return Made(one.stream.filter(expression), [row for row in one.rows if holds(row)])


def map_(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream.project("k, n, x")
    if variant % 2:
        return Made(stream.flat_map(doubled), [new for row in one.rows for new in doubled(*row)])
    return Made(stream.map(turned), [turned(*row) for row in one.rows])


GATES: WeakKeyDictionary[Topology, list[tuple[str, int, Any]]] = WeakKeyDictionary()
"""What the checks of a topology must measure: rule, rows, value."""


def gate(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    """Rules that no batch fails by: what they measure is known, and every tuple passes on."""
    gates, rules = GATES.setdefault(topology, []), list[Any]()
    if len(gates) > 40:
        return one
    ks, ns, xs = ([row[place] for row in one.rows] for place in range(3))
    n_values, x_values = ([value for value in column if value is not None] for column in (ns, xs))
    of_a = [row for row in one.rows if row[0] == "a"]
    choices: list[tuple[Callable[[str], Any], int, Any]] = [
        (lambda name: expect(name, col("n") > 0, severity="warn"), len(ns), sum(not (n or 0) > 0 for n in ns)),
        (lambda name: expect(name, is_short, inputs="k", severity="warn"), len(ks), sum(not is_short(k) for k in ks)),
        (lambda name: _warn(name, "row_count"), len(ks), len(ks)),
        (lambda name: _warn(name, "row_count", where=col("k") == "a"), len(of_a), len(of_a)),
        (lambda name: _warn(name, "null_count", "x"), len(xs), len(xs) - len(x_values)),
        (lambda name: _warn(name, "unique_violations", "n"), len(ns), len(n_values) - len(set(n_values))),
        (lambda name: _warn(name, "distinct_count", "x"), len(xs), len(set(map(repr, x_values)))),
        (lambda name: _warn(name, "sum", "n"), len(ns), sum(n_values) if n_values else None),
        (lambda name: _warn(name, "max", "x"), len(xs), written(largest(one.rows))),
        (lambda name: _warn(name, "min", "n"), len(ns), min(n_values, default=None)),
        (lambda name: _warn(name, "mean", "x"), len(xs), written(mean(one.rows))),
    ]
    for place in (variant, variant + 1, variant + 5):
        rule, rows, value = choices[place % len(choices)]
        gates.append((f"rule {len(gates)}", rows, value))
        rules.append(rule(gates[-1][0]))
    return Made(one.stream.expect(*rules), one.rows)


def _warn(name: str, what: str, column: str | None = None, **more: Any) -> Any:
    return check(name, what, column, leq_to=0, severity="warn", **more)


def repartition(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream
    choices: list[Callable[[], Stream]] = [
        stream.shuffle,
        stream.local_or_shuffle,
        stream.global_,
        stream.batch_global,
        stream.identity_partition,
        lambda: stream.partition_by("k"),
        lambda: stream.partition_by("x, n"),
        lambda: stream.shuffle().parallelism_hint(2),
        lambda: stream.peek(lambda *values: None).project("n, x, k"),
    ]
    return Made(choices[variant % len(choices)](), one.rows)


def repeating(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    if variant % 2:
        return Made(one.stream.broadcast().parallelism_hint(COPIES), one.rows * COPIES)
    rows = [row for row in one.rows for _ in range(2 if row[0] == "a" else 1)]
    return Made(one.stream.project("k, n, x").partition(Twice()).parallelism_hint(2), rows)


def aggregate(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream
    if variant % 4 == 3:
        summed_up = stream.aggregate(("x, n", MaxBy(), "x"), ("n", CollectSet(), "all"), ("n", Variance(), "v"))
        made = summed_up.map(lambda x, all, v: (str(all), None if v is None else int(v * 100), x), SCHEMA)
        return Made(made, [(str(numbers(one.rows)), spread(one.rows), of_the_largest(one.rows))])
    if variant % 3 == 0:
        several = stream.aggregate((Count(), "c"), ("n", Sum(), "s"), ("x", Max(), "m"))
        rows = [("all", len(one.rows) + total(one.rows), largest(one.rows))]
        return Made(several.map(lambda c, s, m: ("all", c + s, m), SCHEMA), rows)
    if variant % 3 == 1:
        both = stream.chained_agg().aggregate("k", Letters(), "k").aggregate("k", Longest(), "w").chain_end()
        letters = "".join(sorted({letter for row in one.rows for letter in row[0] or ""}))
        longest = max((row[0] or "" for row in one.rows), key=lambda text: (len(text), text), default="")
        return Made(both.map(lambda k, w: (k, len(w), None), SCHEMA), [(letters, len(longest), None)])
    emitted = stream.aggregate("n", Odds(), "k, n").each(col("n") / 2, "x")
    return Made(emitted, [(k, n, n / 2) for k, n in _odds(one.rows)])


def _odds(rows: list[Row]) -> list[tuple[str, int]]:
    odd = [row[1] for row in rows if row[1] is not None and row[1] % 2]
    return [("odd", n) for n in odd] + [("others", len(rows) - len(odd))] * (len(odd) < len(rows))


def group_aggregate(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream
    if variant % 7 == 6:
        halves = stream.group_by("k").aggregate(("n, x", ABOUT, "n"), ("n", Percentile(0.5), "x"))
        return Made(halves, [(rows[0][0], about_pairs(rows), median(rows)) for rows in groups_of(one.rows, 0)])
    if variant % 5 == 4:
        summed_up = stream.group_by("k").aggregate(("n, x", CountDistinct(), "n"), ("x", Average(), "x"))
        return Made(summed_up, [(rows[0][0], pairs(rows), mean(rows)) for rows in groups_of(one.rows, 0)])
    if variant % 4 == 0:
        several = stream.group_by("k").aggregate(("n", Sum(), "n"), ("x", Min(), "x"))
        return Made(several, [(rows[0][0], total(rows), smallest(rows)) for rows in groups_of(one.rows, 0)])
    if variant % 4 == 1:
        counted = stream.group_by("x, k").aggregate(Count(), "n")
        return Made(counted, [(rows[0][0], len(rows), rows[0][2]) for rows in groups_of(one.rows, 0, 2)])
    if variant % 4 == 2:
        emitted = stream.group_by("x").aggregate("n", Odds(), "k, n")
        return Made(emitted, [(k, n, rows[0][2]) for rows in groups_of(one.rows, 2) for k, n in _odds(rows)])
    reduced = stream.group_by("n").aggregate(("k", Letters(), "k"), ("x", Max(), "x"))
    return Made(
        reduced,
        [
            ("".join(sorted({letter for row in rows for letter in row[0] or ""})), rows[0][1], largest(rows))
            for rows in groups_of(one.rows, 1)
        ],
    )


def partition_aggregate(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    stream = one.stream
    if variant % 4 == 0:
        summed = stream.partition_by("k").group_by("k").partition_aggregate(("n", Sum(), "n"), ("x", Max(), "x"))
        return Made(summed, [(rows[0][0], total(rows), largest(rows)) for rows in groups_of(one.rows, 0)])
    if variant % 4 == 1:
        best = stream.project("k, n, x").global_().max(compare)
        return Made(best, sorted(one.rows, key=cmp_to_key(compare))[-1:])
    if variant % 4 == 2:
        least = stream.batch_global().min_by("n").project("n").map(lambda n: ("least", n, None), SCHEMA)
        known = [row[1] for row in one.rows if row[1] is not None]
        return Made(least, [("least", min(known), None)] if known else [])
    counted = stream.partition_by("n").partition_aggregate(Count(), "c").aggregate("c", Sum(), "n")
    return Made(counted.map(lambda n: (None, n, None), SCHEMA), [(None, len(one.rows), None)])


def merge(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    streams = [made.stream.project("k, n, x") for made in (one, other)]
    rows = [*one.rows, *other.rows]
    if variant % 3 == 0:
        return Made(topology.merge(streams), rows)
    alike = [stream.partition_by("k") for stream in streams]
    if variant % 3 == 1:
        alike[0] = alike[0].filter("k", is_short)
        rows = [*(row for row in one.rows if is_short(row[0])), *other.rows]
    summed = topology.merge(alike).group_by("k").partition_aggregate(("n", Sum(), "n"), ("x", Max(), "x"))
    return Made(summed, [(some[0][0], total(some), largest(some)) for some in groups_of(rows, 0)])


def join(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    left, right = one.stream.project("k, n, x"), other.stream.project("x, n, k")
    outer = ((variant // 2) % 2 == 1, (variant // 4) % 2 == 1)
    kinds = ["outer" if may_be_missing else "inner" for may_be_missing in outer]
    places = [0] if variant % 2 else [2, 1]
    names = ["k"] if variant % 2 else ["x, n"]
    preserved = topology.join([left, right], names * 2, "k, n, x, x2, n2, k2", kinds, "preserve")
    rows = []
    keys = {tuple(key_of(row[place]) for place in places) for row in (*one.rows, *other.rows)}
    for key in keys:
        sides = [
            [row for row in made.rows if tuple(key_of(row[place]) for place in places) == key] for made in (one, other)
        ]
        if all(side or missing for side, missing in zip(sides, outer, strict=True)):
            rows += [(a[0], a[1], b[2]) for a in sides[0] or [(None,) * 3] for b in sides[1] or [(None,) * 3]]
    return Made(preserved.project("k, n, x2").map(lambda k, n, x: (k, n, x), SCHEMA), rows)


def multi_reduce(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    streams = [one.stream, other.stream]
    if variant % 2:
        grouped = [stream.group_by("k") for stream in streams]
        counts: dict[Any, int] = defaultdict(int)
        for weight, made in ((1, one), (-10, other)):
            for row in made.rows:
                counts[row[0]] += weight
        reduced = topology.multi_reduce(["n", "k, x"], grouped, SidesOf(), "k, n, x")
        return Made(reduced, [(k, count, None) for k, count in counts.items()])
    whole = [stream.global_() for stream in streams]
    reduced = topology.multi_reduce(["n", "n"], whole, Sides(), "k, n, x")
    return Made(reduced, [("sides", len(one.rows) - len(other.rows), None)])


def transform(topology: Topology, one: Made, other: Made, variant: int) -> Made:
    """Whole DataFrames. After one Spark cuts partitions as it likes, so a shuffle follows."""
    left, right = one.stream.project("k, n, x"), other.stream.project("k, n, x")
    rows = [*(row[:3] for row in one.rows), *(row[:3] for row in other.rows)]
    if variant % 3 == 0:
        query = "SELECT x, k, n + 1 AS n FROM {one} WHERE n > 0 UNION ALL SELECT x, k, n + 1 FROM {other} WHERE n > 0"
        found = [(k, n + 1, x) for k, n, x in rows if n is not None and n > 0]
        return Made(left.sql(query, SCHEMA, other=right).shuffle(), found)
    function = united if variant % 3 == 1 else counted
    made = left.transform(function, SCHEMA, others={"other": right}, version=variant).shuffle()
    return Made(made, rows if function is united else [(some[0][0], len(some), None) for some in groups_of(rows, 0)])


def united(frame: Any, other: Any) -> Any:
    return frame.unionAll(other)


def counted(frame: Any, other: Any) -> Any:
    return united(frame, other).groupBy("k").count().selectExpr("count AS n", "k", "cast(NULL AS double) AS x")


BINARY = (merge, join, multi_reduce)
VERBS: tuple[Callable[[Topology, Made, Made, int], Made], ...] = (
    each_function,
    each_expression,
    each_explode,
    filter_function,
    filter_expression,
    vectorised,
    gate,
    map_,
    repartition,
    repartition,
    repeating,
    aggregate,
    group_aggregate,
    partition_aggregate,
    *BINARY,
    *BINARY,
)
