"""Orders tuples in Spark's SQL as `MinBy` and `MaxBy` do."""

from __future__ import annotations

from airflow_trident.operations.summaries import MaxBy
from airflow_trident.plan.nodes import Aggregation
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema, select


def ranked(one: Aggregation, before: Schema) -> str:
    """A value of `MinBy` or `MaxBy` after its rank, of which the smallest is best; null for a skipped tuple. In Spark,
    NaN is above every number and both zeros are equal; of the values, -0.0 is smaller."""
    value, by = select(before, one.reads, str(one))
    ranks = _reversed(by.name, by.type) if isinstance(one.aggregator, MaxBy) else [f"`{by.name}`"]
    ranks += [f"`{value.name}` is null", f"`{value.name}`"]
    if value.type in REAL_TYPES:
        ranks.append(f"not (`{value.name}` = 0 and cast(`{value.name}` as string) = '-0.0')")
    parts = ", ".join(f"'{place}', {text}" for place, text in enumerate(ranks))
    return f"case when `{by.name}` is not null then named_struct({parts}, 'value', `{value.name}`) end"


def _reversed(name: str, type_text: str) -> list[str]:
    """A key that is smaller if the value is larger."""
    value = f"`{name}`"
    if type_text in WHOLE_TYPES:
        return [f"~{value}"]  # the smallest number has no negative
    if type_text in REAL_TYPES:
        return [f"not isnan({value})", f"-{value}"]
    match type_text:
        case "boolean":
            return [f"not {value}"]
        case "date":
            return [f"-unix_date({value})"]
        case "timestamp":
            return [f"-unix_micros({value})"]
        case "string" | "binary":
            return [_reversed_text(value)]
        case "time":
            return [_reversed_text(f"cast({value} as string)")]
    return [f"-{value}"]  # decimals, intervals


def _reversed_text(text: str) -> str:
    """The hexadecimal digits of its bytes, inverted, with a larger character at the end: "a" is smaller than "ab"."""
    return f"concat(translate(hex({text}), '0123456789ABCDEF', 'FEDCBA9876543210'), 'G')"
