"""When two values are the same: one rule for keys and values of states, in every engine and store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_NAN = math.nan


def canonical_key(key: Sequence[Any]) -> tuple[Any, ...]:
    """Equal keys give equal tuples: NaN is one key and -0.0 is 0.0, as in Spark's grouping."""
    return tuple(_canonical(part) if isinstance(part, float) else part for part in key)


def _canonical(part: float) -> float:
    return _NAN if math.isnan(part) else part + 0.0


def same(left: Any, right: Any) -> bool:
    """Are two values of a field's type the same, part by part? NaN equals NaN, null equals null."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (left != left and right != right))
