"""The current value of each key of a Delta state, as a separate table that everybody can read.

Each publication writes the whole table as one version. An application transaction, named by the id of the state's own
table, holds the last commit of the state that it includes; a slower publisher with less writes nothing. A state that
was made anew has another table, whose commits count from 1.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.connections import require_extra
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.parquet import write_parquet
from airflow_trident.states.core.checks import application_of
from airflow_trident.states.delta.table import described, next_version, old_files, removed

if TYPE_CHECKING:
    import pyarrow as pa

KEPT = "latest"


def publish(
    place: DeltaPlace, spec: StateSpec, last: tuple[str, int], rows: Callable[[], pa.Table], keep_h: int
) -> bool:
    """:param place: of the table of values.
    :param last: the id of the state's own table, and its last commit that is in `rows`.
    :param keep_h: how many hours files of older versions stay for their readers.
    :return: was it new?
    :raises ConfigurationError: the table belongs to something else.
    :raises Overtaken: another process was faster.
    """
    import pyarrow.parquet as pq

    transaction: Any = require_extra("deltalake.transaction", EXTRA)
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    table_id, commit = last
    app = application_of(spec, KEPT, table_id)
    with place.errors():
        table = _open(place, spec)
        if (table.transaction_version(app) or 0) >= commit:
            return False
        files, name = place.files(), f"{uuid.uuid4().hex}.parquet"
        with files.open_output_stream(name) as file:
            write_parquet(rows(), file)
            size = file.tell()
        with files.open_input_file(name) as file:
            new = described(pq.read_metadata(file), name, size, [column.name for column in table.schema().fields], {})

        def forget() -> None:
            with contextlib.suppress(OSError):
                files.delete_file(name)

        with next_version(place, forget):
            table.create_write_transaction(
                [new.entry, *map(removed, old_files(table))],
                mode="append",
                schema=table.schema(),
                commit_properties=transaction.CommitProperties(
                    app_transactions=[transaction.Transaction(app, commit)], max_commit_retries=0
                ),
            )
        with contextlib.suppress(errors.CommitFailedError):  # another process published more
            table.update_incremental()
            table.vacuum(keep_h, dry_run=False, enforce_retention_duration=False, full=True)
    return True


def _open(place: DeltaPlace, spec: StateSpec) -> Any:
    module: Any = require_extra("deltalake", EXTRA)
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    fields = (*spec.keys, *spec.values)
    description = {"topology": spec.topology, "state": spec.name, "kept": KEPT, "fields": ", ".join(map(str, fields))}
    try:
        table = place.table()
    except errors.TableNotFoundError:
        place.make_folder()
        with contextlib.suppress(errors.DeltaError):  # another process was first
            module.DeltaTable.create(
                place.where,
                schema=arrow_schema(fields),
                description=json.dumps(description),
                storage_options=dict(place.options) or None,
            )
        table = place.table()
    if table.metadata().description != json.dumps(description):
        raise ConfigurationError(
            f"the Delta table {place.where!r} is not what state {spec.name!r} of topology {spec.topology!r} was "
            "published as",
            "Give the state another table, as in DeltaState(path, table=...).",
        )
    return table
