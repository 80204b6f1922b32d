"""Commits that are the next version of a Delta table, or none. Without an answer, the table itself is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from airflow_trident.errors import ConfigurationError, OutcomeUnknownError, is_of_driver
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.states.tables.version_race import Overtaken

_REFUSED = (
    "Unsupported ",
    "Table features must be specified",
    "Writer features must be specified",
    "Reader features must be specified",
    "The transaction includes Remove action",
)
"""How deltalake begins to say that the table takes no such commit, whoever else writes."""
_NO_ANSWER = "Transaction failed"
"""Said of a lock table that did not answer."""


@contextmanager
def next_version(place: DeltaPlace, undo: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Wraps a commit that Delta must not repeat by itself.

    :param undo: takes back what was written for a commit that the table refuses. It stays where another version was
        found instead: that may be this commit, if the store did it, answered with a failure, and was asked again.
    :raises Overtaken: the commit is not the next version of the table.
    :raises OutcomeUnknownError: it is unknown whether it is.
    :raises ConfigurationError: the table takes no such commit, or this user may not commit to it.
    """
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    try:
        yield
    except BaseException as error:
        if not is_of_driver(error):
            raise
        text = str(error)
        if not isinstance(error, errors.CommitFailedError) or text.startswith(_NO_ANSWER):
            if refusal := place.refusal(error):
                raise refusal from None
            raise OutcomeUnknownError(
                f"the commit to the Delta table {place.where!r} ended without an answer ({place.text_of(error)})",
                "Run the task again: the table knows what is applied.",
            ) from None
        if text.startswith(_REFUSED):
            undo()
            raise ConfigurationError(
                f"the Delta table {place.where!r} has something that deltalake does not write ({place.conceal(text)})",
                "Drop that feature of the table, or write to another table.",
            ) from None
        raise Overtaken from error
