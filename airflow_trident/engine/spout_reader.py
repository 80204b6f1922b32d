"""Reads a source for a rewritten plan: only the used fields, if the spout can leave out the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Emitter
from airflow_trident.errors import DamagedInputError
from airflow_trident.io.arrow import fitted_batch
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.types import Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa


def emitter_of(source: SourceNode) -> Emitter:
    """The spout's emitter, informed about filters and used fields. It may ignore both."""
    emitter = source.spout.emitter()
    if source.filters:
        emitter = emitter.push_filters(source.filters)
    if source.fields != names_of(source.spout.schema):
        emitter = emitter.prune(source.fields)
    return emitter


def conform(batch: pa.RecordBatch, stream: str, given: Schema, wanted: pa.Schema) -> pa.RecordBatch:
    """The wanted fields of a batch from an emitter.

    :param given: the schema of the spout.
    :raises DamagedInputError: the batch has neither the wanted fields nor all fields of the spout, or a value does not
        fit its field.
    """
    if batch.schema.names not in (wanted.names, list(names_of(given))):
        raise DamagedInputError(
            f"stream {stream!r}: the spout gave the fields ({', '.join(batch.schema.names)}) instead of "
            f"({', '.join(names_of(given))})",
            "Mend the spout's emitter or its schema.",
        )
    return fitted_batch(batch, select(given, wanted.names, "the spout"), f"stream {stream!r}")
