"""Checks a type that is written for a field against the type that is known of it: an engine that converts must lose
nothing, and a value that does not fit must be an error in every engine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_trident.errors import FieldError
from airflow_trident.types import WHOLE_TYPES, Field, Schema, members

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)\Z")
_DIGITS = {"byte": 3, "short": 5, "int": 10, "long": 19}


def require_lossless(fields: Schema, known: Sequence[str | None], what: str, cure: str) -> None:
    """:param known: the type of each field; None: it is not known, and what is written is believed.
    :raises FieldError: a written type would cut or change values of the known one.
    """
    for field, given in zip(fields, known, strict=True):
        if given is not None and not _keeps(given, field.type):
            raise FieldError(f"{what} gives {given}, and {field.name!r} is declared {field.type}", cure)


def _keeps(given: str, wanted: str) -> bool:
    """A whole number or decimal that is too large is an error in every engine; a digit behind the point that is cut off
    is none."""
    if given in (wanted, "void"):
        return True
    if given in WHOLE_TYPES:
        return wanted in (*WHOLE_TYPES, "double") or _decimal_keeps((_DIGITS[given], 0), wanted)
    if given == "float":
        return wanted == "double"
    if found := _DECIMAL.match(given):
        return _decimal_keeps((int(found[1]), int(found[2])), wanted)
    return _same_parts(members(given), members(wanted))


def _decimal_keeps(given: tuple[int, int], wanted: str) -> bool:
    found = _DECIMAL.match(wanted)
    return found is not None and int(found[2]) >= given[1]


def _same_parts(given: Sequence[Field], wanted: Sequence[Field]) -> bool:
    names = [one.name for one in given]
    return (
        bool(names)
        and names == [one.name for one in wanted]
        and all(_keeps(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    )
