"""Commits that are the next version of a Delta table, or none. Without an answer, the table itself is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.states.tables.version_race import Overtaken


@contextmanager
def next_version(place: DeltaPlace, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wraps a commit that Delta must not repeat by itself.

    :param undo: takes back what was written for the commit.
    :raises Overtaken: the commit is not the next version of the table.
    :raises OutcomeUnknownError: it is unknown whether it is.
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
