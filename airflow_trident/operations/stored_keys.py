"""Keys that user code makes, as the fields of a state hold them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from airflow_trident.io.arrow import rows_to_table, table_to_rows
from airflow_trident.operations.equality import canonical_key
from airflow_trident.operations.expr.dtypes import decimal_parts
from airflow_trident.types import REAL_TYPES, WHOLE_TYPES, Schema, names_of

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

    own: list[tuple[object, ...]] = [
        tuple(_number(field.type, part) for field, part in zip(fields, key, strict=True)) for key in keys
    ]
    try:
        return [canonical_key(row) for row in table_to_rows(rows_to_table(fields, own))]
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"a key has not the type of its fields ({', '.join(names_of(fields))}): {error}") from error


def _is_as_stored(fields: Schema, key: Sequence[Any]) -> bool:
    return all(part is None or _is_own(field.type, part) for field, part in zip(fields, key, strict=True))


def _is_own(type_text: str, part: Any) -> bool:
    own = _AS_THEY_ARE.get(type_text)
    if own is not None:
        return type(part) is own
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
        own = kind(part)
    except (ValueError, OverflowError):  # such as NaN as a whole number
        return part
    return own if own == part else part


@lru_cache
def _scale(type_text: str) -> int | None:
    parts = decimal_parts(type_text)
    return None if parts is None else parts[1]
