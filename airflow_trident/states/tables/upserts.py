"""A table of changes: each row belongs to a transaction; for each key, the row of the highest transaction counts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import TXID, StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import comparable, taken
from airflow_trident.types import FieldSpec, parse_names

if TYPE_CHECKING:
    import pyarrow as pa

_KEPT = "changes"
_REWRITTEN = "rows"
"""What a table has whose rows are replaced by copy-on-write: one row of each key."""
_OLDEST = -(2**63)


def said_of(spec: StateSpec) -> str | None:
    """The note in a table that gets rows by key, for its readers, and to refuse other topologies."""
    if not (spec.upserts or spec.rewrites):
        return None
    kept = _REWRITTEN if spec.rewrites else _KEPT
    said = {"topology": spec.topology, "state": spec.name, "kept": kept, "keys": list(spec.key_names)}
    return json.dumps({**said, **({"deleted": spec.deleted} if spec.deleted else {})})


def why_not_changes(found: str | None, spec: StateSpec, *, adopts: bool = False) -> tuple[str, str] | None:
    """The error and its cure, if the rows of `spec` do not fit the note in a table.

    :param found: the note.
    :param adopts: may rows that are rewritten go into a table without one, because the first commit writes it?
    """
    known, wanted = _changes(found), _changes(said_of(spec))
    if known == wanted or (known is None and spec.rewrites and adopts):
        return None
    if known is None:
        return (
            f"it was not made for {'rows' if spec.rewrites else 'changes'} by key",
            f"Let the topology make a table; or have this one say {said_of(spec)}, if its rows are such.",
        )
    whose = f"state {known.get('state')!r} of topology {known.get('topology')!r}"
    if wanted is None or (known.get("topology"), known.get("state")) != (spec.topology, spec.name):
        return f"it has the {known['kept']} of {whose}, by the keys {known.get('keys')}", "Write to another table."
    return (
        f"it has {known['kept']} by the keys {known.get('keys')}, deleted where {known.get('deleted')}, and not "
        f"{wanted['kept']} by {list(spec.key_names)}, deleted where {spec.deleted}",
        "Give the state another table.",
    )


def changes_of(found: str | None, what: str) -> tuple[tuple[str, ...], str | None]:
    """Keys, and the field that marks deleted rows.

    :param what: the table, for the error.
    :raises ConfigurationError: the table has no note about changes.
    """
    known = _changes(found)
    if known is None or known["kept"] != _KEPT:
        raise ConfigurationError(
            f"{what} has no changes by key, so no row of it is the latest one",
            'Read it as it is; persist_table(..., mode="upsert", keys=...) writes changes.',
        )
    return tuple(known["keys"]), known.get("deleted")


def _changes(found: str | None) -> dict[str, Any] | None:
    try:
        known = json.loads(found or "null")
    except ValueError:
        return None  # a description written by a person
    is_ours = isinstance(known, dict) and known.get("kept") in (_KEPT, _REWRITTEN) and known.get("keys")
    return known if is_ours else None


def no_table(what: str) -> ConfigurationError:
    """
    :param what: the table's kind and name.
    """
    return ConfigurationError(
        f"there is no {what} yet",
        "The first commit of a state that writes to it makes it. If there was one, see that the name is right.",
    )


def latest_rows(rows: Any, keys: FieldSpec, deleted: str | None = None) -> Any:
    """The rows of a table of changes that count: of each key the row with the highest ``_txid``, unless it is deleted.

    :param rows: all of the table's, as a `pyarrow.Table`, or a DataFrame of Spark, classic or Connect.
    :param deleted: a boolean column.
    :return: of the same kind, without the column ``_txid``. Rows of others without a ``_txid`` are the oldest.
    """
    import pyarrow as pa

    names = parse_names(keys)
    if isinstance(rows, pa.Table):
        return latest_changes(rows, names, deleted).drop_columns([TXID])
    return _of_spark(rows, names, deleted)


def latest_changes(rows: pa.Table, keys: tuple[str, ...], deleted: str | None) -> pa.Table:
    """The rows that count, unchanged."""
    latest = taken(rows, latest_places(rows, keys))
    return latest if deleted is None else without_deleted(latest, deleted)


def without_deleted(rows: pa.Table, deleted: str) -> pa.Table:
    import pyarrow.compute as pc

    return rows.filter(pc.invert(rows.column(deleted).fill_null(False)))


def latest_places(rows: pa.Table, keys: tuple[str, ...]) -> pa.Array:
    """Positions of the latest row of each key, ascending, deleted rows included."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not rows.num_rows:
        return pa.array([], pa.int64())
    order = pc.sort_indices(rows.column(TXID).fill_null(_OLDEST))  # equal ones stay in their order
    by = [f"key {number}" for number in range(len(keys))]  # whatever the fields' names are
    sorted_keys = taken(comparable(rows.select(keys)), order).rename_columns(by)
    sorted_keys = sorted_keys.append_column("place", pa.array(range(rows.num_rows), pa.int64()))
    last = sorted_keys.group_by(by, use_threads=False).aggregate([("place", "max")])
    places = order.take(last.column("place_max").combine_chunks())
    return places.take(pc.sort_indices(places)).cast(pa.int64())


def _of_spark(rows: Any, keys: tuple[str, ...], deleted: str | None) -> Any:
    """By texts alone: classic and Connect sessions have different column classes."""
    by, place = ", ".join(f"`{key}`" for key in keys), place_beside(rows.columns)
    newest = f"row_number() OVER (PARTITION BY {by} ORDER BY `{TXID}` DESC NULLS LAST) AS {place}"
    latest = rows.selectExpr("*", newest).where(f"{place} = 1")
    if deleted is not None:
        latest = latest.where(f"NOT coalesce(`{deleted}`, false)")
    return latest.drop(TXID, place)


def place_beside(columns: Iterable[str]) -> str:
    """A name for the row numbers that is none of the table's columns, whose case engines ignore."""
    name, taken = "_place", {one.lower() for one in columns}
    while name in taken:
        name += "_"
    return name
