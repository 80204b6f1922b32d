"""Checks a type that is written for a field against the type that is known of it: an engine that converts must lose
nothing, and a value that does not fit must be an error in every engine."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_trident.errors import FieldError
from airflow_trident.operations.expr.dtypes import decimal_parts
from airflow_trident.types import WHOLE_TYPES, Field, Schema, members


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
        return wanted in (*WHOLE_TYPES, "double") or _decimal_keeps(0, wanted)
    if given == "float":
        return wanted == "double"
    if parts := decimal_parts(given):
        return _decimal_keeps(parts[1], wanted)
    return _same_parts(members(given), members(wanted))


def _decimal_keeps(scale: int, wanted: str) -> bool:
    parts = decimal_parts(wanted)
    return parts is not None and parts[1] >= scale


def _same_parts(given: Sequence[Field], wanted: Sequence[Field]) -> bool:
    names = [one.name for one in given]
    return (
        bool(names)
        and names == [one.name for one in wanted]
        and all(_keeps(one.type, other.type) for one, other in zip(given, wanted, strict=True))
    )
