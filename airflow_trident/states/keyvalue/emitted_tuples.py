"""The emitted tuples of a stateful function, kept with its checkpoint in Arrow's stream format, which keeps types."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import CorruptRecordError, FencedError
from airflow_trident.io.arrow import rows_to_table
from airflow_trident.types import Json, Schema

if TYPE_CHECKING:
    import pyarrow as pa


def encode_emitted(txid: int, schema: Schema, rows: list[tuple[Any, ...]]) -> Json:
    import pyarrow as pa

    table = rows_to_table(schema, rows)
    body = pa.BufferOutputStream()
    with pa.ipc.new_stream(body, table.schema) as writer:
        writer.write_table(table)
    return {"txid": txid, "body": base64.b64encode(body.getvalue()).decode()}


def decode_emitted(kept: Json, txid: int, where: str) -> pa.Table:
    """:param where: the namespace, for errors.
    :raises FencedError: the tuples are of another transaction.
    :raises CorruptRecordError: they cannot be read.
    """
    import pyarrow as pa

    if not isinstance(kept, dict) or not isinstance(kept.get("body"), str):
        raise CorruptRecordError(
            f"namespace {where!r} holds nothing that its function emitted for transaction {txid}",
            "A part of the store was lost, or the function had no outputs when it was applied: restore a whole copy.",
        )
    if kept["txid"] != txid:
        raise FencedError(
            f"namespace {where!r} holds what its function emitted for transaction {kept['txid']}, not for {txid}, "
            "which is to be committed",
            "Another committer has finished it: this one has nothing to do.",
        )
    with pa.ipc.open_stream(base64.b64decode(str(kept["body"]))) as reader:
        return reader.read_all()
