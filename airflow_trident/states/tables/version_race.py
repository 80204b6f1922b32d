"""Commits that are the next version of a table, or none: an overtaken committer decides anew."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_trident.errors import StoreUnavailableError

T = TypeVar("T")

_TRIES = 50


class Overtaken(Exception):
    """Another committer was first. Never leaves :func:`decided_anew`."""


def decided_anew(what: str, act: Callable[[], T], cure: str) -> T:
    """Repeats until no other committer is faster; each try decides anew.

    :param what: the table, as an error names it.
    :raises StoreUnavailableError: another committer is always faster; `cure` says what to do.
    """
    for number in range(_TRIES):
        try:
            return act()
        except Overtaken:
            time.sleep(random.random() * min(0.5, 0.005 * 2**number))
    raise StoreUnavailableError(f"others commit to {what} all the time", cure)
