"""Views in a catalogue of Spark."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from airflow_trident.contracts.upkeep import View, ViewDialect
from airflow_trident.engine.spark.errors import root_cause, translate
from airflow_trident.errors import ConfigurationError, StoreUnavailableError

_PROPERTY = "airflow-trident.latest"
"""Says whose view it is, see `_mark`."""
_OWN_CATALOG = "spark_catalog"
_TRIES = 5
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_CURES = {
    "SCHEMA_NOT_FOUND": "Make the schema there, or name one that there is.",
    "REQUIRES_SINGLE_PART_NAMESPACE": "Let spark_conf name the catalogue (spark.sql.catalog.NAME), or leave it out.",
    "MISSING_CATALOG_ABILITY": "Name a catalogue that has views.",
    "EXPECT_VIEW_NOT_TABLE": "There is a table of that name: name another view.",
    _NOT_FOUND: "See that this Spark session knows the table by that name: --table schema.name, or table= of the task.",
    "DATA_SOURCE_NOT_FOUND": "Give the session the jars of the table's format (spark.jars.packages), or name the table "
    "as its catalogue does: --table schema.name, or table= of the task.",
}
"""Spark's error class -> what to do."""
_OTHERS_FIRST = ("TABLE_OR_VIEW_ALREADY_EXISTS", "AlreadyExistsException")


def require_persistent(session: Any, view: View) -> None:
    """
    :raises ConfigurationError: the view would be gone with the session.
    """
    named = view.parts[0] if len(view.parts) > 2 else str(session.catalog.currentCatalog())
    if named == _OWN_CATALOG and session.conf.get("spark.sql.catalogImplementation") == "in-memory":
        raise ConfigurationError(
            f"view {view.name!r} would be gone with this Spark session, whose catalogue {_OWN_CATALOG} is in memory",
            "Name a spark_conn_id whose sessions have a metastore; or let spark_conf say "
            "spark.sql.catalogImplementation=hive, and which metastore; or name a view of another catalogue.",
        )


def publish_view(session: Any, view: View, query: str, of: tuple[str, str], progress: Callable[[str], object]) -> bool:
    """Makes the view, or replaces it, in one step.

    :param of: topology and state: nobody else's view is replaced.
    :return: is it another one than before?
    :raises ConfigurationError: there is no such schema or catalogue, or the name is taken.
    :raises StoreUnavailableError: others are always faster.
    """
    name, own, text = ViewDialect.SPARK.quoted(*view.parts), _mark(of), ViewDialect.SPARK.text
    said = f"The latest rows of state {of[1]} of topology {of[0]}"
    made = f"VIEW {name} COMMENT {text(said)} TBLPROPERTIES ({text(_PROPERTY)} = {text(own)}) AS\n{query}"
    for _ in range(_TRIES):
        there = _said_by(session, name, view)
        if there is not None and there != own:
            raise ConfigurationError(
                f"there is a {view.name!r} already, and it is not the view of state {of[1]!r} of topology {of[0]!r}",
                "Give the view another name, or drop what is there.",
            )
        if there is not None and query in _texts_of(session, name, view):
            return False
        progress(f"{'making' if there is None else 'replacing'} view {view.name}")
        try:
            session.sql(f"{'CREATE' if there is None else 'CREATE OR REPLACE'} {made}")
        except Exception as error:  # noqa: BLE001 - any error becomes a typed one
            if there is None and any(one in str(error) for one in _OTHERS_FIRST):
                continue
            raise _typed(error, view) from None
        return True
    raise StoreUnavailableError(f"others make view {view.name!r} again and again", "Run it again when they have ended.")


def _mark(of: tuple[str, str]) -> str:
    """Whose view it is. A digest: Spark does not show properties that look like secrets, as of a state `tokens`."""
    return hashlib.sha256(json.dumps({"topology": of[0], "state": of[1]}).encode()).hexdigest()


def _said_by(session: Any, name: str, view: View) -> str | None:
    """Whose view it is, empty if it does not say; None: there is none of that name."""
    try:
        rows = session.sql(f"SHOW TBLPROPERTIES {name}").collect()
    except Exception as error:  # noqa: BLE001 - any error becomes a typed one
        if _NOT_FOUND in str(error):
            return None
        raise _typed(error, view) from None
    return next((str(row["value"]) for row in rows if row["key"] == _PROPERTY), "")


def _texts_of(session: Any, name: str, view: View) -> set[str]:
    """What Spark says of the view; its query is among it."""
    try:
        return {str(row["data_type"]) for row in session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    except Exception as error:  # noqa: BLE001 - any error becomes a typed one
        raise _typed(error, view) from None


def _typed(error: Exception, view: View) -> Exception:
    text = str(error)
    for kind, cure in _CURES.items():
        if f"[{kind}" in text:
            return ConfigurationError(f"Spark cannot make view {view.name!r}: {root_cause(text) or text}", cure)
    return translate(error, f"view {view.name!r}")
