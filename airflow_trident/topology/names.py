"""Names that users give to topologies, streams and states."""

from __future__ import annotations

import re

from airflow_trident.errors import PlanError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}\Z")


def require_name(what: str, name: str) -> str:
    """:raises PlanError: not a name that ledgers, folders and URLs can all carry."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise PlanError(
            f"{name!r} cannot be the name of a {what}",
            "Use letters, digits, '_', '.' and '-', beginning with a letter, at most 200.",
        )
    return name
