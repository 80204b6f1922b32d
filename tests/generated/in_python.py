"""What the verbs of random topologies do with rows, in plain Python."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from fractions import Fraction
from typing import Any

from airflow_trident.functions import ApproxCountDistinct
from tests.fixtures.aggregator import value_of
from tests.generated.operations import Row

ABOUT = ApproxCountDistinct(0.01)


def key_of(value: Any) -> Any:
    return "NaN" if value != value else value


def groups_of(rows: list[Row], *places: int) -> list[list[Row]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(key_of(row[place]) for place in places)].append(row)
    return list(groups.values())


def total(rows: list[Row]) -> int:
    return sum(row[1] or 0 for row in rows)


def numbers(rows: list[Row]) -> list[int]:
    return sorted({row[1] for row in rows if row[1] is not None})


def spread(rows: list[Row]) -> int | None:
    """A hundred times the variance, without decimal places."""
    known = [Fraction(row[1]) for row in rows if row[1] is not None]
    return int(float(statistics.variance(known)) * 100) if len(known) > 1 else None


def mean(rows: list[Row]) -> float | None:
    known = [row[2] for row in rows if row[2] is not None]
    if not all(map(math.isfinite, known)):
        return sum(known)
    return float(sum(map(Fraction, known)) / len(known)) if known else None


def median(rows: list[Row]) -> float | None:
    known = [row[1] for row in rows if row[1] is not None]
    return float(statistics.median(known)) if known else None


def pairs(rows: list[Row]) -> int:
    return len({(row[1], key_of(row[2])) for row in rows if row[1] is not None and row[2] is not None})


def about_pairs(rows: list[Row]) -> int:
    """What `ABOUT` says without an engine: for it, two pairs can be the same."""
    return int(value_of(ABOUT, [row[1:3] for row in rows]))


def of_the_largest(rows: list[Row]) -> float | None:
    """The smallest x among the rows with the largest n."""
    most = max(numbers(rows), default=None)
    return smallest([row for row in rows if most is not None and row[1] == most])


def largest(rows: list[Row]) -> Any:
    known = [row[2] for row in rows if row[2] is not None]
    return max(known, key=lambda value: (value != value, value), default=None)


def smallest(rows: list[Row]) -> Any:
    known = [row[2] for row in rows if row[2] is not None]
    return min(known, key=lambda value: (value != value, value), default=None)
