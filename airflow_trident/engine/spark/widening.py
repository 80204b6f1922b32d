"""Which types of Spark's columns become which declared types without a loss. Imports no Spark."""

from __future__ import annotations

from airflow_trident.types import WHOLE_TYPES

_WHOLE = tuple(WHOLE_TYPES)


def widens(source_type: str, wanted: str) -> bool:
    """Is every value of the first type one of the second?"""
    if source_type == "void":
        return True
    if source_type in _WHOLE and wanted in _WHOLE:
        return _WHOLE.index(source_type) < _WHOLE.index(wanted)
    if wanted == "double":
        return source_type in ("float", "byte", "short", "int")
    return wanted == "string" and source_type.startswith(("char(", "varchar("))
