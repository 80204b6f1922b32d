"""Which types of Spark's columns become which declared types without a loss. Imports no Spark."""

from __future__ import annotations

from airflow_trident.types import WHOLE_TYPES

_WHOLE = tuple(WHOLE_TYPES)


def widens(given: str, wanted: str) -> bool:
    """Is every value of the first type one of the second?"""
    if given == "void":
        return True
    if given in _WHOLE and wanted in _WHOLE:
        return _WHOLE.index(given) < _WHOLE.index(wanted)
    if wanted == "double":
        return given in ("float", "byte", "short", "int")
    return wanted == "string" and given.startswith(("char(", "varchar("))
