"""The Delta table of one state: opens or makes it, and checks that it belongs to the state."""

from __future__ import annotations

import json
from typing import Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError, DefinitionChangedError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.extras import require_extra
from airflow_trident.states.delta.runs import PARTITIONS, Runs
from airflow_trident.types import names_of


def open_table(place: DeltaPlace, runs: Runs) -> Any:
    """:return: a `deltalake.DeltaTable`.
    :raises ConfigurationError: the table belongs to something else.
    :raises DefinitionChangedError: the table belongs to the state, but has other fields.
    """
    spec = runs.spec
    module: Any = require_extra("deltalake", EXTRA)
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    wanted = {
        "topology": spec.topology,
        "state": spec.name,
        "fields": ", ".join(map(str, spec.keys)) + " -> " + ", ".join(map(str, spec.values)),
        "kept": "as partial values" if runs.adds else "as values",
    }
    try:
        table = place.table()
    except errors.TableNotFoundError:
        place.make_folder()
        try:
            table = module.DeltaTable.create(
                place.where,
                schema=arrow_schema((*runs.rows, *PARTITIONS)),
                partition_by=list(names_of(PARTITIONS)),
                description=json.dumps(wanted),
                storage_options=dict(place.options) or None,
            )
        except errors.DeltaError:
            table = place.table()  # another process was first
    _require_own(table.metadata().description, place, spec, wanted)
    return table


def _require_own(found: str | None, place: DeltaPlace, spec: StateSpec, wanted: dict[str, str]) -> None:
    try:
        known = json.loads(found or "")
        owner = known["topology"], known["state"]
    except (ValueError, KeyError, TypeError):
        known, owner = {}, None
    if owner != (spec.topology, spec.name):
        whose = f"state {owner[1]!r} of topology {owner[0]!r}" if owner else "something else"
        raise ConfigurationError(
            f"the Delta table {place.where!r} belongs to {whose}, not to state {spec.name!r} "
            f"of topology {spec.topology!r}",
            "Give the state another table, as in DeltaState(path, table=...).",
        )
    if known != wanted:
        raise DefinitionChangedError(
            f"state {spec.name!r} of topology {spec.topology!r} in {place.where!r} has the fields "
            f"{known.get('fields')}, {known.get('kept')}, and now it should have {wanted['fields']}, "
            f"{wanted['kept']}",
            "Give the state a new name, or another path.",
        )
