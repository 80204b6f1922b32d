"""When two values are the same: one rule for keys and values of states, in every engine and store.

Keys that user code makes, as the fields of a state hold them.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from airflow_trident.operations.expressions import decimal_parts
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema, names_of

_NAN = math.nan


def canonical_key(key: Sequence[Any]) -> tuple[Any, ...]:
    """Equal keys give equal tuples: NaN is one key and -0.0 is 0.0, as in Spark's grouping."""
    return tuple(canonical_real(part) if isinstance(part, float) else part for part in key)


def canonical_real(part: float) -> float:
    """As :func:`canonical_key`, for one part."""
    return _NAN if math.isnan(part) else part + 0.0


def canonical(value: Any) -> Any:
    """As :func:`canonical_key`, at every depth. Tuples become lists."""
    if isinstance(value, float):
        return canonical_real(value)
    if isinstance(value, list | tuple):
        return [canonical(part) for part in value]
    return {name: canonical(part) for name, part in value.items()} if type(value) is dict else value


def same(left: Any, right: Any) -> bool:
    """Are two values of a field's type the same, part by part? NaN equals NaN, null equals null."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return left.keys() == right.keys() and all(same(value, right[name]) for name, value in left.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (left != left and right != right))


_AS_THEY_ARE: dict[str, type] = {
    "string": str,
    **dict.fromkeys(WHOLE_TYPES, int),
    "double": float,
    "boolean": bool,
    "binary": bytes,
    "date": datetime.date,
}
_UTC = ZoneInfo("UTC")
"""As Arrow gives timestamps."""
_NUMBERS: dict[str, type] = {**dict.fromkeys(WHOLE_TYPES, int), **dict.fromkeys(REAL_TYPES, float), "boolean": bool}


def stored_keys(fields: Schema, keys: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The keys with each part as its field holds it: 4.0 of a long is 4, 1.5 of a decimal(9,2) is 1.50, as for Python,
    which calls these equal. A store that keeps keys as text then finds what one that compares values does.

    :raises ValueError: a part does not fit its field; names it.
    """
    if all(_is_as_stored(fields, key) for key in keys):
        return [canonical_key(key) for key in keys]
    import pyarrow as pa

    from airflow_trident.io.arrow import rows_to_table, table_to_rows

    converted: list[tuple[object, ...]] = [
        tuple(_number(field.type, part) for field, part in zip(fields, key, strict=True)) for key in keys
    ]
    try:
        return [canonical_key(row) for row in table_to_rows(rows_to_table(fields, converted))]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"a key has not the type of its fields ({', '.join(names_of(fields))}): {error}") from error


def _is_as_stored(fields: Schema, key: Sequence[Any]) -> bool:
    return all(part is None or _is_own(field.type, part) for field, part in zip(fields, key, strict=True))


def _is_own(type_text: str, part: Any) -> bool:
    exact_type = _AS_THEY_ARE.get(type_text)
    if exact_type is not None:
        return type(part) is exact_type
    if type_text == "timestamp":
        return type(part) is datetime.datetime and part.tzinfo is _UTC
    scale = _scale(type_text)
    return scale is not None and type(part) is Decimal and part.as_tuple().exponent == -scale


def _number(type_text: str, part: Any) -> Any:
    """A number as one of the field's kind, if there is an equal one; Arrow does not know that True is 1."""
    kind = Decimal if _scale(type_text) is not None else _NUMBERS.get(type_text)
    if kind is None or not isinstance(part, int | float | Decimal):
        return part
    try:
        number = kind(part)
    except (ValueError, OverflowError):  # such as NaN as a whole number
        return part
    return number if number == part else part


@lru_cache
def _scale(type_text: str) -> int | None:
    parts = decimal_parts(type_text)
    return None if parts is None else parts[1]
