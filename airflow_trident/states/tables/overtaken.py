"""Commits that are the next version of a table, or none: who was overtaken decides anew."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_trident.errors import StoreUnavailableError

T = TypeVar("T")

_TRIES = 50


class Overtaken(Exception):
    """Somebody committed first. Never leaves :func:`decided_anew`."""


def decided_anew(what: str, act: Callable[[], T], cure: str) -> T:
    """Until nobody is faster: each time, all is decided anew.

    :param what: the table, as an error names it.
    :raises StoreUnavailableError: somebody always is; `cure` says what to do about it.
    """
    for number in range(_TRIES):
        try:
            return act()
        except Overtaken:
            time.sleep(random.random() * min(0.5, 0.005 * 2**number))
    raise StoreUnavailableError(f"others commit to {what} all the time", cure)
