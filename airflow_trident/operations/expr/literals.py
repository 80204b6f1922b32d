"""The type of a Python value as a literal of an expression."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

from airflow_trident.errors import FieldError
from airflow_trident.types import INTERVAL, LONGEST_INTERVAL, WHOLE_TYPES

MAX_PRECISION = 38


def type_of_value(value: Any) -> str:
    """The type of a Python value as a literal.

    :raises FieldError: no type holds such values.
    """
    simple: dict[type, str] = {
        bool: "boolean",
        int: "long",
        float: "double",
        str: "string",
        bytes: "binary",
        datetime.datetime: "timestamp",
        datetime.date: "date",
        datetime.timedelta: INTERVAL,
    }
    limit = WHOLE_TYPES["long"]
    if isinstance(value, int) and not -limit <= value < limit:
        raise FieldError(f"{value} does not fit a long", "Use lit(Decimal(...)) or a double.")
    if isinstance(value, datetime.timedelta) and abs(value) > LONGEST_INTERVAL:
        raise FieldError(f"{value} does not fit an {INTERVAL}", f"It has at most {LONGEST_INTERVAL.days} days.")
    if type(value) in simple:
        return simple[type(value)]
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return "time"
    if isinstance(value, Decimal) and value.is_finite():
        _, digits, exponent = value.as_tuple()
        scale = max(0, -int(exponent))
        precision = max(len(digits) + max(0, int(exponent)), scale, 1)
        if precision <= MAX_PRECISION:
            return f"decimal({precision},{scale})"
    raise FieldError(
        f"{value!r} ({type(value).__name__}) cannot be a literal",
        "Use a str, int, float, bool, bytes, Decimal of at most 38 digits, date, time without a zone, datetime or "
        "timedelta.",
    )
