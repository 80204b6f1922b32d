"""Names and numbers that users give to topologies, streams and states."""

from __future__ import annotations

import re

from airflow_trident.errors import PlanError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}\Z")


def require_name(what: str, name: str) -> str:
    """:raises PlanError: ledgers, folders and URLs cannot all contain this name."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise PlanError(
            f"{name!r} cannot be the name of a {what}",
            "Use letters, digits, '_', '.' and '-', beginning with a letter, at most 200.",
        )
    return name


def at_least_one(verb: str, number: int) -> int:
    """:raises PlanError: `number` is no whole number of 1 or more."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise PlanError(f"{verb} got {number!r}", "Give a whole number, 1 or more.")
    return number


def positive(verb: str, number: float) -> float:
    """:raises PlanError: `number` is no number above 0."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise PlanError(f"{verb} got {number!r}", "Give a number above 0.")
    return number
