"""Reads a source for a rewritten plan: only the used fields, if the spout can leave out the rest.

A spout's reading side is called here, with the border around its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_trident.contracts.spout import Emitter, Split
from airflow_trident.errors import DamagedInputError, spout_code
from airflow_trident.io.arrow import fitted_batch
from airflow_trident.plan.nodes import SourceNode
from airflow_trident.types import Json, Schema, names_of, select

if TYPE_CHECKING:
    import pyarrow as pa


def emitter_of(source: SourceNode) -> Emitter:
    """The spout's emitter, informed about filters and used fields. It may ignore both."""
    with spout_code(source.name):
        emitter = source.spout.emitter()
        if source.filters:
            emitter = emitter.push_filters(source.filters)
        if source.fields != names_of(source.spout.schema):
            emitter = emitter.prune(source.fields)
        return emitter


def splits_of(emitter: Emitter, stream: str, metadata: Json, txid: int | None) -> tuple[Split, ...]:
    """The parts of a batch."""
    with spout_code(stream, txid):
        return tuple(emitter.splits(metadata))


def rows_of(
    emitter: Emitter, split: Split, stream: str, given: Schema, wanted: pa.Schema, txid: int | None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, with the wanted fields.

    :param given: the schema of the spout.
    """
    with spout_code(stream, txid):
        for batch in emitter.read(split):
            yield conform(batch, stream, given, wanted, is_fitted=emitter.is_fitted)


def conform(
    batch: pa.RecordBatch, stream: str, given: Schema, wanted: pa.Schema, *, is_fitted: bool = False
) -> pa.RecordBatch:
    """The wanted fields of a batch from an emitter.

    :param given: the schema of the spout.
    :param is_fitted: as the emitter says.
    :raises DamagedInputError: the batch has neither the wanted fields nor all fields of the spout, or a value does not
        fit its field.
    """
    if is_fitted and batch.schema == wanted:
        return batch
    if batch.schema.names not in (wanted.names, list(names_of(given))):
        raise DamagedInputError(
            f"stream {stream!r}: the spout gave the fields ({', '.join(batch.schema.names)}) instead of "
            f"({', '.join(names_of(given))})",
            "Mend the spout's emitter or its schema.",
        )
    return fitted_batch(batch, select(given, wanted.names, "the spout"), f"stream {stream!r}")
