"""Names of users' code in plans and errors."""

from __future__ import annotations

from typing import Any


def function_name(function: Any) -> str:
    """The name of a function or of an object's class: the same in every process."""
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]
