"""Commits that are the next version of a Delta table, or none: who was overtaken decides anew, and who got no answer
asks the table."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_trident.errors import OutcomeUnknownError, StoreUnavailableError
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra

T = TypeVar("T")

_TRIES = 50


class Overtaken(Exception):
    """Somebody committed first. Never leaves :func:`decided_anew`."""


def decided_anew(place: DeltaPlace, act: Callable[[], T], cure: str) -> T:
    """Until nobody is faster: each time, all is decided anew.

    :raises StoreUnavailableError: somebody always is; `cure` says what to do about it.
    """
    for number in range(_TRIES):
        try:
            return act()
        except Overtaken:
            time.sleep(random.random() * min(0.5, 0.005 * 2**number))
    raise StoreUnavailableError(f"others commit to the Delta table {place.where!r} all the time", cure)


@contextmanager
def next_version(place: DeltaPlace, undo: Callable[[], None]) -> Iterator[None]:
    """Around a commit that Delta may not repeat by itself.

    :param undo: takes back what was written for it.
    :raises Overtaken: it is not the next version of the table.
    :raises OutcomeUnknownError: nobody said whether it is.
    """
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    try:
        yield
    except errors.CommitFailedError as error:
        undo()
        raise Overtaken from error
    except (OSError, errors.DeltaError) as error:
        raise OutcomeUnknownError(
            f"the commit to the Delta table {place.where!r} ended without an answer ({place.conceal(str(error))})",
            "Run the task again: the table knows what is applied.",
        ) from None
